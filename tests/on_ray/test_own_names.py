"""Stead's own objects in Ray are recognised by their names, and its actors and placement groups are not listed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray

import stead
from stead.operate.snapshot import ALL
from stead.ray.remote_desk import remote_desk
from stead.ray.wire.own_names import (
    ANCHORS,
    NAMESPACE,
    ONCE,
    PLUGS,
    TICKET_PLUGS,
    WANTED,
    is_own_group,
    is_own_name,
    labelled_names,
    read_labelled,
)
from stead.ray.wire.tables import Tables
from tests.on_ray.conftest import ClusterOf
from tests.on_ray.waiting import wait_for
from tests.on_ray.workload import SOON_S, Resident, attached

OWN = (PLUGS, TICKET_PLUGS, ANCHORS, WANTED)


@pytest.mark.parametrize("begin", OWN)
def test_a_group_is_steads_own_only_with_the_whole_prefix(begin: str) -> None:
    assert is_own_group(f"{begin}0")
    assert not is_own_group(begin.removesuffix("/"))
    assert not is_own_group(f"{begin.removesuffix('/')}in/0")
    assert not is_own_group("stead-demo")


LONG = {"zone": f"in({','.join(f'value-{number}' for number in range(1000))})"}


@pytest.mark.parametrize(
    "selectors",
    [[{"zone": "a"}], [{"zone": "!in(a,b)", "disk": "ssd"}, {"zone": "b"}, {}], [LONG, {"zone": "a"}]],
    ids=["one", "with fallbacks", "long"],
)
def test_label_selectors_can_be_read_from_the_names_that_a_task_holds(selectors: list[dict[str, str]]) -> None:
    names = labelled_names(selectors)
    assert read_labelled(["CPU", ONCE, *reversed(names)]) == selectors
    assert all(is_own_name(name) for name in names)
    assert max(map(len, names)) < 1_100


def test_work_without_label_selectors_holds_no_name_of_them() -> None:
    assert read_labelled(["CPU", ONCE, "stead.plain.0"]) == []


def test_equal_label_selectors_have_equal_names() -> None:
    assert labelled_names([{"zone": "a", "disk": "ssd"}]) == labelled_names([{"disk": "ssd", "zone": "a"}])
    assert labelled_names([{"zone": "a"}]) != labelled_names([{"zone": "b"}])


def test_no_name_of_a_label_selector_looks_like_a_resource_of_a_placement_group() -> None:
    for length in range(900, 1100):  # wherever a long selector is divided
        names = labelled_names([{"zone": "a" * length + "_group_0_" + "abcd" * 9}])
        assert not any(name[-1].isalnum() for name in names)


@pytest.fixture(scope="module")
def groups(cluster_of: ClusterOf) -> Iterator[dict[str, str]]:
    """A cluster with an agent on its second node, one of each of stead's groups, and a user's group with a similar
    name."""
    found = cluster_of([{"num_cpus": 2}, {"num_cpus": 2}], environment={"STEAD_AGENTS": "all"})
    with attached(found):
        made = {
            name: ray.util.placement_group([{"CPU": 0.1}], name=name)
            for name in ("stead-demo", *map("{}0".format, OWN))
        }
        for group in made.values():
            assert group.wait(30)
        yield {name: group.id.hex() for name, group in made.items()}


@pytest.mark.long
class TestLists:
    def test_only_the_users_group_is_listed(self, groups: dict[str, str]) -> None:
        wait_for(lambda: remote_desk().groups(ALL).items, SOON_S, "the user's group")
        assert [view.name for view in remote_desk().groups(ALL).items] == ["stead-demo"]
        with pytest.raises(stead.Invalid, match="no placement group"):
            stead.why(groups[f"{WANTED}0"])

    @pytest.mark.usefixtures("groups")
    def test_neither_the_controller_nor_its_agents_are_listed(self) -> None:
        def own() -> set[tuple[str, str]]:
            rows = Tables(ray.get_runtime_context().gcs_address).actors()
            return {(row.class_name, row.namespace) for row in rows if row.state == "ALIVE"}

        wait_for(lambda: len(own()) == 2, SOON_S, "the agent")
        assert own() == {("ControllerActor", NAMESPACE), ("PageAgent", NAMESPACE)}
        mine = Resident.options(name="mine").remote()
        ray.get(mine.where.remote(), timeout=SOON_S)

        def actors() -> list[str]:
            return [view.name for view in remote_desk().work(ALL).items if view.kind == "actor"]

        wait_for(actors, SOON_S, "the user's actor")
        assert actors() == ["mine"]
        ray.kill(mine)
