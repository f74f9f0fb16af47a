"""Usage over time: what is stranded, the last day in memory and in a file, and a sampler that never blocks."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from stead.engine.engine import Engine
from stead.engine.facts import AskSubmitted, Fact, NodeJoined
from stead.language.asks import Ask
from stead.language.nodes import Node
from stead.language.taints import Taint, Toleration
from stead.operate import usage
from stead.operate.snapshot import Snapshot
from stead.operate.usage import DAY_S, KEPT, RESOURCES_MAX, History, Sample, Sampler, sample_json, sample_of, stranded

WAIT_S = 60.0


def snapshot(*facts: Fact) -> Snapshot:
    engine = Engine()
    engine.apply(*facts)
    engine.decide()
    return Snapshot(engine, 0.0)


def node(id: str, cpus: int, gpus: int, taint: str = "", draining: bool = False) -> Fact:
    return NodeJoined(Node.of(id, {"CPU": cpus, "GPU": gpus}, {}, [Taint(taint)] if taint else [], draining=draining))


def work(id: str, cpus: int, gpus: int = 0, tolerates: str = "") -> Fact:
    tolerations = (Toleration(tolerates),) if tolerates else ()
    resources = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    return AskSubmitted(Ask.of(id, resources, tolerations=tolerations))


def sample(at: float, pending: int = 0) -> Sample:
    return Sample(at, pending, 1, 1, {"CPU": 4.0}, {"CPU": 1.0}, {"CPU": 0.0})


class TestStranded:
    @pytest.mark.parametrize(
        ("facts", "gpus"),
        [
            ([node("a", 8, 4), work("train", 1, 1)], 0.0),
            ([node("a", 8, 4)], 0.0),
            ([node("a", 8, 4), work("web", 1)], 0.0),
            ([node("a", 1, 4), work("train", 1, 1)], 3.0),
            ([node("a", 8, 4, taint="gpu"), node("b", 8, 2), work("train", 1, 1)], 4.0),
            ([node("a", 8, 4, taint="gpu"), node("b", 8, 2), work("train", 1, 1, tolerates="gpu")], 0.0),
            ([node("a", 8, 4, draining=True), node("b", 8, 2), work("train", 1, 1)], 4.0),
            ([node("a", 8, 2), node("b", 8, 2), work("train", 1, 4)], 4.0),
        ],
        ids=[
            "not if one more piece fits",
            "not without work",
            "not if no work requests it",
            "next to a full CPU",
            "behind a taint that no work tolerates",
            "not behind a taint that the work tolerates",
            "on a drained node",
            "two by two if all work requests four",
        ],
    )
    def test_gpus_are_stranded(self, facts: list[Fact], gpus: float) -> None:
        assert stranded(snapshot(*facts)).get("GPU", 0.0) == gpus

    def test_a_sample_has_all_numbers(self) -> None:
        found = sample_of(snapshot(node("a", 1, 4), work("train", 1, 1), work("more", 1, 1)), 60.0)
        assert found == Sample(
            60.0, 1, 1, 1, {"CPU": 1.0, "GPU": 4.0}, {"CPU": 1.0, "GPU": 1.0}, {"CPU": 0.0, "GPU": 3.0}
        )

    def test_a_sample_has_few_resources_and_the_usual_ones_first(self) -> None:
        many = {f"custom{number:02}": 1 for number in range(50)}
        found = sample_of(snapshot(NodeJoined(Node.of("a", {**many, "GPU": 1, "CPU": 1}))), 0.0)
        assert list(found.total)[:3] == ["CPU", "GPU", "custom00"]
        assert len(found.total) == len(found.used) == len(found.stranded) == RESOURCES_MAX


class TestTheLastDay:
    def test_is_all_that_is_stored(self) -> None:
        history, now = History(), time.time()
        for number in range(2 * KEPT):
            history.add(sample(now + number, number))
        found = history.samples()
        assert (len(found), found[0].pending, found[-1].pending) == (KEPT, KEPT, 2 * KEPT - 1)
        assert [each.pending for each in history.samples(found[-2].at)] == [2 * KEPT - 1]

    def test_has_no_older_samples(self) -> None:
        history, now = History(), time.time()
        history.add(sample(now - DAY_S - 1))
        history.add(sample(now - DAY_S + 60))
        assert [each.at for each in history.samples()] == [now - DAY_S + 60]

    def test_drops_future_samples_when_the_clock_was_set_back(self) -> None:
        history, now = History(), time.time()
        for at in (now - 60, now + 300, now + 360, now):
            history.add(sample(at))
        assert [each.at for each in history.samples()] == [now - 60, now]


class TestTheFile:
    def test_survives_a_restart_with_its_gap(self, tmp_path: Path) -> None:
        path, now = tmp_path / "use-1.json", time.time()
        before = History(path)
        before.add(sample(now - 600, 5))
        after = History(path)
        after.add(sample(now, 6))
        assert [(each.at, each.pending) for each in History(path).samples()] == [(now - 600, 5), (now, 6)]

    def test_only_its_owner_can_read_it_and_nothing_else_is_left(self, tmp_path: Path) -> None:
        os.umask(os.umask(0))
        path = tmp_path / "use-1.json"
        History(path).add(sample(time.time()))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [each.name for each in tmp_path.iterdir()] == ["use-1.json"]

    def test_is_small(self, tmp_path: Path) -> None:
        path, history, now = tmp_path / "use-1.json", History(), time.time()
        amounts = {f"a resource of a long name {number:02}": 123456789.1234 for number in range(RESOURCES_MAX)}
        for number in range(KEPT - 1):
            history.add(Sample(now + number, 10**6, 10**6, 10**4, amounts, amounts, amounts))
        whole = History(path)
        whole._samples = history._samples
        whole.add(Sample(now + KEPT, 10**6, 10**6, 10**4, amounts, amounts, amounts))
        assert path.stat().st_size < usage.FILE_BYTES_MAX
        assert len(usage._read(path)) < KEPT, "the future is not read"

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            "null",
            '{"samples": 5}',
            '{"samples": [[]]}',
            '{"samples": [{"at": 1}]}',
            json.dumps({"samples": [{**sample_json(sample(1.0)), "at": "x"}]}),
            json.dumps({"samples": [{**sample_json(sample(1.0)), "total": []}]}),
            json.dumps({"samples": [{**sample_json(sample(1.0)), "at": float("nan")}]}),
            json.dumps({"samples": [{**sample_json(sample(1.0)), "pending": float("inf")}]}),
            "[" * 100_000,
            "\x00",
        ],
    )
    def test_that_is_damaged_is_logged_once_and_started_again(
        self, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "use-1.json"
        path.write_text(text)
        history = History(path)
        assert history.samples() == []
        assert len(caplog.records) == 1
        history.add(sample(time.time()))
        assert len(History(path).samples()) == 1

    def test_that_is_a_link_or_a_pipe_is_not_read(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        real = tmp_path / "elsewhere"
        real.write_text(json.dumps({"samples": [sample_json(sample(time.time() - 60))]}))
        (tmp_path / "use-1.json").symlink_to(real)
        os.mkfifo(tmp_path / "use-2.json")
        assert History(tmp_path / "use-1.json").samples() == History(tmp_path / "use-2.json").samples() == []
        History(tmp_path / "use-1.json").add(sample(time.time()))
        assert not (tmp_path / "use-1.json").is_symlink()
        assert len(json.loads(real.read_text())["samples"]) == 1, "the target of the link is unchanged"

    def test_that_cannot_be_written_is_logged_once_and_memory_is_used(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        history = History(tmp_path / "nowhere" / "use-1.json")
        for at in (time.time() - 60, time.time()):
            history.add(sample(at))
        assert len(history.samples()) == 2
        assert ["kept in memory only" in record.message for record in caplog.records] == [True]

    def test_of_a_cluster_that_was_not_served_for_a_day_is_removed(self, tmp_path: Path) -> None:
        for name, age in (("use-old.json", DAY_S + 60), ("use-new.json", 60), ("tokens.json", 2 * DAY_S)):
            (tmp_path / name).write_text("{}")
            os.utime(tmp_path / name, (time.time() - age, time.time() - age))
        History(tmp_path / "use-1.json")
        assert sorted(each.name for each in tmp_path.iterdir()) == ["tokens.json", "use-new.json"]


class TestTheSampler:
    def test_takes_the_first_sample_at_once(self) -> None:
        taken = threading.Event()

        class Signalling(History):
            def add(self, sample: Sample) -> None:
                super().add(sample)
                taken.set()

        history, found = Signalling(), snapshot(node("a", 8, 4))
        with Sampler(lambda: found, history).running():
            assert taken.wait(WAIT_S)
        assert [each.nodes for each in history.samples()] == [1]

    def test_leaves_a_gap_when_the_cluster_does_not_answer(self) -> None:
        def fails() -> Snapshot:
            raise ConnectionError("gone")

        history = History()
        assert not Sampler(fails, history).take()
        assert Sampler(lambda: snapshot(node("a", 8, 4)), history).take()
        assert len(history.samples()) == 1

    def test_gives_up_on_an_answer_that_comes_too_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(usage, "SLOW_S", 0.0)
        history, found = History(), snapshot(node("a", 8, 4))
        assert not Sampler(lambda: found, history).take()
        assert history.samples() == []

    def test_a_cluster_that_hangs_blocks_nothing_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(usage, "END_S", 0.0)
        hangs, goes_on = threading.Event(), threading.Event()

        def hang() -> Snapshot:
            hangs.set()
            goes_on.wait(WAIT_S)
            return snapshot(node("a", 8, 4))

        history = History()
        with Sampler(hang, history).running():
            assert hangs.wait(WAIT_S)
            assert history.samples() == []
        goes_on.set()
        for thread in threading.enumerate():
            if thread.name == "stead-use":
                thread.join(WAIT_S)
        assert history.samples() == [], "a sample after the shutdown is dropped"
