"""Equal facts give equal decisions: in one process, and in processes that hash strings differently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import stead
from behaviour import all_of, ask, cluster, node, refusals, run
from behaviour.scenario import story
from stead.asks import Affinity
from stead.labelling import Requirement, Selector

TESTS = Path(__file__).parent.parent
SEEDS = (1, 2)


def in_another_process(code: str, hash_seed: int) -> bytes:
    """What the code prints in a Python that hashes strings with this seed."""
    paths = (*stead.__path__, str(TESTS))
    found = os.pathsep.join((str(Path(paths[0]).parent), paths[-1]))
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": found}
    return subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True).stdout


def test_the_same_story_told_twice_is_the_same_and_another_is_not() -> None:
    first, again, other = story(SEEDS[0]), story(SEEDS[0]), story(SEEDS[1])
    assert first == again
    assert first != other


def test_the_story_is_the_same_whatever_the_hash_seed() -> None:
    code = f"import sys; from behaviour.scenario import story; [sys.stdout.buffer.write(story(s)) for s in {SEEDS}]"
    assert in_another_process(code, 0) == in_another_process(code, 12345)


def kept_away() -> str:
    """Eight kinds of work on one node keep newcomers away; the apps that each means, in the order of blame."""
    engine = cluster(node("n0"))
    for index in range(8):
        apps = ("web", f"other-{index}", f"more-{index}", f"still-{index}")
        shy = Affinity(Selector.all_of(Requirement.is_in("app", *apps)), near=False, symmetric=True)
        run(engine, ask(f"shy-{index}", affinities=all_of(shy)), "n0")
    found = refusals(engine, ask("w", labels={"app": "web"}))
    return repr([sorted(reason.affinity.selector.terms[0][0].values) for reason, _, _ in found])  # type: ignore[union-attr]  # all are KeptAway


def test_reasons_of_one_kind_stand_in_the_same_order_whatever_the_hash_seed() -> None:
    code = "from behaviour.test_engine_is_deterministic import kept_away; print(kept_away())"
    assert in_another_process(code, 0) == in_another_process(code, 1)
