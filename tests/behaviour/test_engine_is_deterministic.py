"""Equal facts give equal decisions: in one process, and in processes that hash strings differently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import stead
from stead.language.asks import Affinity
from stead.language.labels import Requirement, Selector
from tests.behaviour import all_of, ask, cluster, node, refusals, run
from tests.behaviour.scenario import story

ROOT = Path(__file__).parent.parent.parent
SEEDS = (1, 2)


def in_another_process(code: str, hash_seed: int) -> bytes:
    """What the code prints in a Python that hashes strings with this seed."""
    paths = (*stead.__path__, str(ROOT))
    found = os.pathsep.join((str(Path(paths[0]).parent), paths[-1]))
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": found}
    return subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True).stdout


def test_the_same_seed_gives_the_same_story_and_another_does_not() -> None:
    first, again, other = story(SEEDS[0]), story(SEEDS[0]), story(SEEDS[1])
    assert first == again
    assert first != other


def test_the_story_is_the_same_for_every_hash_seed() -> None:
    code = (
        f"import sys; from tests.behaviour.scenario import story; [sys.stdout.buffer.write(story(s)) for s in {SEEDS}]"
    )
    assert in_another_process(code, 0) == in_another_process(code, 12345)


def kept_away() -> str:
    """Eight kinds of work on one node have symmetric anti-affinities; the apps they exclude, in blame order."""
    engine = cluster(node("n0"))
    for index in range(8):
        apps = ("web", f"other-{index}", f"more-{index}", f"still-{index}")
        shy = Affinity(Selector.all_of(Requirement.is_in("app", *apps)), near=False, symmetric=True)
        run(engine, ask(f"shy-{index}", affinities=all_of(shy)), "n0")
    found = refusals(engine, ask("w", labels={"app": "web"}))
    return repr([sorted(reason.affinity.selector.terms[0][0].values) for reason, _, _ in found])  # type: ignore[union-attr]  # all are KeptAway


def test_reasons_of_one_kind_have_the_same_order_for_every_hash_seed() -> None:
    code = "from tests.behaviour.test_engine_is_deterministic import kept_away; print(kept_away())"
    assert in_another_process(code, 0) == in_another_process(code, 1)
