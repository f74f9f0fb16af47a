"""`stead plan` with and without a cluster, and `stead scale`: what the autoscaler does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stead.sim.desk import SimDesk
from tests.autoscaled import CPU, GPU, report_scaling
from tests.golden_files import assert_golden
from tests.serving import serving, simulated

Run = Callable[..., tuple[int, str, str]]

GOLDEN = Path(__file__).parent.parent / "golden"
SERVED, AUTOSCALED, CLUSTER = (str(GOLDEN / name) for name in ("served.yaml", "autoscaled.yaml", "ray-cluster.yaml"))
WORK = """
work:
- {id: trainer, count: 3, resources: {GPU: 2}, tolerations: gpu_node=true}
- {id: loader, count: 18, resources: {CPU: 1}, selector: zone = a}
"""


@pytest.fixture
def here(lone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, as the current one of the command."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def work(here: Path) -> str:
    path = here / "work.yaml"
    path.write_text(WORK, encoding="utf-8")
    return str(path)


@pytest.fixture
def scaled(lone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimDesk]:
    """Commands use a service whose cluster has an autoscaler."""
    with simulated(Path(SERVED)) as desk, serving(desk) as served:
        for name, value in served.variables.items():
            monkeypatch.setenv(name, value)
        kinds = replace(CPU, count_min=1), GPU
        report_scaling(desk, *kinds)
        yield desk


class TestPlan:
    def test_of_work_without_a_cluster(self, work: str, run: Run) -> None:
        code, out, _ = run("plan", "--empty", "--config", CLUSTER, "--spec", work)
        assert code == 0
        assert_golden("plan-empty.txt", out)

    def test_for_the_minimum_of_a_kind(self, here: Path, run: Run) -> None:
        (here / "kinds.yaml").write_text("nodes: [{id: a, capacity: {CPU: 4}, min: 2, price: 0.25}]", encoding="utf-8")
        code, out, _ = run("plan", "--empty", "--nodes", "kinds.yaml")
        assert code == 0
        assert out.startswith(
            "2 new nodes of the kind a (CPU 4; 0.25 per hour each) are for the minimum of this kind.\n"
        )

    def test_with_the_limits_of_a_file(self, here: Path, work: str, run: Run) -> None:
        kinds = "nodes: [{id: a, capacity: {CPU: 4}, labels: {zone: a}}]\nquotas: [{name: few, nodes: 2}]"
        (here / "kinds.yaml").write_text(kinds, encoding="utf-8")
        _, out, _ = run("plan", "--empty", "--nodes", "kinds.yaml", "--spec", work)
        assert "Limits reached: few.\n" in out
        assert "the nearest kind is a: the limit few is reached." in out

    def test_of_a_saved_cluster_is_the_plan_of_the_cluster(self, work: str, run: Run) -> None:
        more = ("--config", CLUSTER, "--spec", work)
        _, expected, told = run("plan", "--scenario", SERVED, "--save", "saved.json", *more)
        assert told == "Saved the cluster to saved.json; plan with it by: stead plan --snapshot saved.json\n"
        assert run("plan", "--snapshot", "saved.json", *more)[1] == expected

    @pytest.mark.usefixtures("lone")
    def test_of_a_scenario_as_it_begins(self, run: Run) -> None:
        _, out, _ = run("plan", "--snapshot", SERVED, "-o", "json")
        pending = {id for each in json.loads(out)["pending"] for id in each["ids"]}
        assert "late" in pending, "its deadline has not passed yet"

    @pytest.mark.usefixtures("scaled")
    def test_with_the_kinds_of_the_autoscaler(self, run: Run) -> None:
        _, out, _ = run("plan")
        assert "of the kind cpu is coming" in out
        assert "render: the nearest kind is gpu: tainted gpu_node=true." in out

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["--empty"], "a cluster without nodes has no kinds of nodes; give --config FILE or --nodes FILE"),
            (["--empty", "--snapshot", "x"], "give --snapshot or --empty, not both"),
            (
                ["--snapshot", "x", "--scenario", "y"],
                "--snapshot needs no cluster; leave it out, or leave out --scenario",
            ),
            (["--empty", "--address", "y"], "--empty needs no cluster; leave it out, or leave out --address"),
            (["--nodes", SERVED, "--config", CLUSTER], "give --nodes or --config, not both"),
        ],
    )
    @pytest.mark.usefixtures("lone")
    def test_of_several_clusters_is_wrong_usage(self, words: list[str], sentence: str, run: Run) -> None:
        code, _, told = run("plan", *words)
        assert (code, sentence in told) == (2, True), told

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["--snapshot", "nowhere.json"], "nowhere.json cannot be read: No such file or directory"),
            (["--snapshot", "bad.json"], "bad.json: it is not a cluster that this version of stead saved"),
            (["--snapshot", CLUSTER], "cluster_name: is not a known field"),
            (["--scenario", SERVED, "--save", "no/where.json"], "no/where.json cannot be written: No such file"),
            (["--scenario", SERVED, "--spec", "changes.yaml"], "changes.yaml: a spec of work has no changes"),
            (["--scenario", SERVED, "--config", SERVED], "is not a known field"),
        ],
    )
    def test_of_a_bad_file_is_refused(self, words: list[str], sentence: str, here: Path, run: Run) -> None:
        (here / "bad.json").write_text('{"stead_snapshot": 1', encoding="utf-8")
        (here / "changes.yaml").write_text("changes: [{drain: cpu-1}]", encoding="utf-8")
        code, _, told = run("plan", *words)
        assert (code, sentence in told) == (1, True), told

    @pytest.mark.usefixtures("looked_at")
    def test_through_a_service_saves_nothing(self, run: Run) -> None:
        code, _, told = run("plan", "--save", "saved.json")
        assert code == 1 and "a service cannot save its cluster" in told


class TestScale:
    @pytest.mark.usefixtures("lone")
    def test_of_an_autoscaler_is_as_in_the_golden_file(self, run: Run) -> None:
        code, out, _ = run("scale", "--scenario", AUTOSCALED)
        assert code == 0
        assert_golden("scale.txt", out)

    def test_shows_problems_reasons_and_proposals(self, scaled: SimDesk, run: Run) -> None:
        _, out, _ = run("scale")
        assert_golden("scale-reported.txt", out)
        assert json.loads(run("scale", "-o", "json")[1])["autoscaler"]["provider"] == "local raylets"

    @pytest.mark.usefixtures("scaled")
    def test_says_since_when_the_autoscaler_is_silent(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stead.operate.scale.SILENT_S", -1.0)
        _, out, _ = run("scale")
        assert out.startswith("The autoscaler has not reported since 2026-01-01 00:01:30 UTC (0s ago); this is what")

    @pytest.mark.usefixtures("looked_at")
    def test_says_that_there_is_no_autoscaler(self, run: Run) -> None:
        assert run("scale")[1].startswith("No autoscaler has reported to this cluster; start one with: stead autoscale")
        assert json.loads(run("scale", "-o", "json")[1]) == {"autoscaler": None}

    def test_prints_no_control_characters_of_names(self, scaled: SimDesk, run: Run) -> None:
        view = scaled.scale()
        assert view is not None
        evil = "\x1b[31m\u202e"
        (first, *_) = view.nodes
        kinds = tuple(replace(each, name=evil, why=evil, rests_until=9e9) for each in view.kinds)
        scaled.report_scale(
            replace(view, provider=evil, kinds=kinds, nodes=(replace(first, title=evil, kept=evil),)), ()
        )
        _, out, _ = run("scale")
        assert "\x1b" not in out and "\u202e" not in out


@pytest.mark.usefixtures("lone")
def test_a_node_of_a_kind_of_the_autoscaler_is_a_what_if(run: Run) -> None:
    _, out, _ = run("what-if", "--scenario", AUTOSCALED, "--add-kind", "t4", "--count", "2", "-o", "json")
    found = json.loads(out)
    assert found["added"] == ["new-1", "new-2"]
    assert [each["ids"] for each in found["placed"]] == [["eval"]]
