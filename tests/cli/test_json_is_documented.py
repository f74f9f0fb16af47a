"""Every field of the JSON that commands print and the service answers is in docs/json.md, and nothing else is."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stead.engine import reasons
from stead.engine.explain.events import Event, EventKind
from stead.operate.audit import Entry
from stead.operate.scale import scale_json
from stead.operate.views import Summary
from stead.specs.following import Update
from tests.autoscaled import CPU, GPU, report_scaling
from tests.serving import Served, simulated

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
SPEC, CHANGES = str(ROOT / "tests/golden/work.yaml"), str(ROOT / "tests/golden/what-if.yaml")

Run = Callable[..., tuple[int, str, str]]


def documented() -> dict[str, set[str]]:
    """The fields in the table under each heading."""
    found: dict[str, set[str]] = {}
    for part in re.split(r"^##+ ", PAGE, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        found[title] = set(re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE))
    return found


FIELDS = documented()

PARTS = {
    "A node": {"taints": "A taint"},
    "An explanation": {
        "choices": "A choice",
        "change": "A smallest change",
        "chosen": "A score",
        "runners_up": "A score",
        "members": "An explanation",
    },
    "A choice": {"refusals": "A refusal"},
    "A difference": {
        **dict.fromkeys(("placed", "moved", "stranded", "blocked", "waiting", "refused"), "A fate"),
        "stays": "Work that stays",
    },
    "A change": {"node": "A node", "audit": "An entry of the audit"},
    "A decision of the past": {"explanation": "An explanation"},
    "A node's use": {"uses": "Use of a resource"},
    "A description": {
        "uses": "Use of a resource",
        "shares": "A share of devices",
        "work": "A piece of work",
        "why": "An explanation",
        "events": "An event",
        "changes": "An entry of the audit",
    },
    "A plan": {
        "new_nodes": "New nodes of a plan",
        "coming": "New nodes of a plan",
        "pending": "Work that a plan leaves pending",
    },
    "The autoscaler": {
        "kinds": "A kind of node",
        "launches": "A launch",
        "nodes": "A launched node",
        "plan": "A plan",
        "proposals": "A proposal",
        "limits": "Limits of the autoscaler",
        "tallied": "Counters of the autoscaler",
    },
}
"""The table that documents the objects in a field."""


def checked(title: str, found: Any) -> Iterator[str]:
    """Every object in the value has the documented fields; yields the titles of the tables that it used."""
    for each in found if isinstance(found, list) else [found]:
        if each is None:
            continue
        assert set(each) == FIELDS[title], f"docs/json.md, {title}"
        yield title
        for field, part in PARTS.get(title, {}).items():
            yield from checked(part, each[field])


PRINTED: list[tuple[str, list[str]]] = [
    ("The cluster", ["status"]),
    ("A node", ["nodes"]),
    ("A piece of work", ["work"]),
    ("A group", ["groups"]),
    ("An event", ["events"]),
    ("An explanation", ["why", "render"]),
    ("An explanation", ["why", "web-1"]),
    ("An explanation", ["why", "ring"]),
    ("An explanation", ["why", "--spec", SPEC]),
    ("A difference", ["what-if", "--spec", CHANGES, "--evict", "cpu-2", "--drain", "cpu-1"]),
    ("A finding", ["lint"]),
    ("A plan", ["plan"]),
    ("A node's use", ["top"]),
    ("An owner", ["top", "owners"]),
    ("A description", ["describe", "node", "cpu-1"]),
    ("A description", ["describe", "node", "0123456789ab"]),
    ("A description", ["describe", "work", "render"]),
    ("A description", ["describe", "group", "pair"]),
    ("A decision of the past", ["replay", "--ask", "late"]),
]

ANSWERED: list[tuple[str, str]] = [
    ("The cluster", "/status"),
    ("A node", "/nodes"),
    ("A node", "/nodes/cpu-1"),
    ("A piece of work", "/asks"),
    ("A piece of work", "/asks/web-1"),
    ("A group", "/groups"),
    ("An event", "/events"),
    ("An explanation", "/asks/render/why"),
    ("A finding", "/lint"),
    ("A decision of the past", "/replay?ask=late"),
]


@pytest.mark.usefixtures("looked_at")
@pytest.mark.parametrize(("title", "words"), PRINTED, ids=[" ".join(words[:2]) for _, words in PRINTED])
def test_a_command_prints_the_documented_fields(title: str, words: list[str], run: Run) -> None:
    assert title in set(checked(title, json.loads(run(*words, "-o", "json")[1])))


@pytest.mark.parametrize(("title", "path"), ANSWERED, ids=[path for _, path in ANSWERED])
def test_the_service_answers_the_documented_fields(title: str, path: str, looked_at: Served) -> None:
    with urllib.request.urlopen(looked_at.url + path, timeout=60) as answer:
        found = json.load(answer)
    assert title in set(checked(title, found.get("items", found)))


@pytest.mark.usefixtures("looked_at")
@pytest.mark.parametrize(
    ("kind", "name", "title"),
    [("node", "cpu-1", "A node"), ("work", "web-1", "A piece of work"), ("group", "ring", "A group")],
)
def test_the_subject_of_a_description_is_as_in_its_list(kind: str, name: str, title: str, run: Run) -> None:
    assert title in set(checked(title, json.loads(run("describe", kind, name, "-o", "json")[1])["subject"]))


@pytest.mark.usefixtures("looked_at")
def test_two_what_ifs_are_two_differences(run: Run) -> None:
    found = json.loads(run("what-if", CHANGES, "--compare", CHANGES, "-o", "json")[1])["compared"]
    assert [set(each) for each in found] == [{"name", "difference"}] * 2
    assert all("A difference" in set(checked("A difference", each["difference"])) for each in found)


def test_changes_and_their_audit_have_the_documented_fields(changed: Served, run: Run) -> None:
    made = json.loads(run("taint", "nodes", "cpu-1", "k=v:NoSchedule", "-o", "json")[1])
    met = set(checked("A change", made))
    met |= set(checked("A change", json.loads(run("undo", "1", "-o", "json")[1])))
    met |= set(checked("An entry of the audit", json.loads(run("audit", "-o", "json")[1])))
    assert met == {"A change", "A node", "A taint", "An entry of the audit"}
    (tried,) = json.loads(run("drain", "cpu-1", "--dry-run", "-o", "json")[1])
    assert set(tried) == {"node", "dry_run", "difference"}
    assert set(checked("A difference", tried["difference"])) == {"A difference", "A fate", "Work that stays"}


@pytest.mark.usefixtures("looked_at")
def test_every_table_of_the_page_is_checked(run: Run) -> None:
    met = {"A change", "An entry of the audit", "Submitted work", *tables_of_scale()}
    for title, words in PRINTED:
        met |= set(checked(title, json.loads(run(*words, "-o", "json")[1])))
    assert met == {title for title, fields in FIELDS.items() if fields}


def tables_of_scale() -> set[str]:
    """The tables of what an autoscaler reports."""
    with simulated(ROOT / "tests/golden/served.yaml") as desk:
        return set(checked("The autoscaler", scale_json(report_scaling(desk, CPU, GPU))["autoscaler"]))


def test_views_have_no_undocumented_field() -> None:
    assert set(Update.__dataclass_fields__) == FIELDS["Submitted work"]
    assert set(Summary.__dataclass_fields__) == FIELDS["The cluster"]
    assert set(Event.__dataclass_fields__) == FIELDS["An event"]
    assert {*Entry.__dataclass_fields__, "changes", "self_declared"} == FIELDS["An entry of the audit"]


def test_the_codes_of_refusals_are_explained() -> None:
    page = (ROOT / "docs" / "explanations.md").read_text(encoding="utf-8")
    codes = {each.code for each in vars(reasons).values() if isinstance(getattr(each, "code", None), str)}
    assert {code for code in codes if f"`{code}`" not in page} == set()


def test_every_kind_of_event_is_documented() -> None:
    _, _, kinds = PAGE.partition("Kinds of events:")
    assert [kind for kind in EventKind if f"`{kind}`" not in kinds.partition("##")[0]] == []
