"""Why a pod is pending, or where it is, in Kubernetes' own words: what the desk answers to `stead why`.

Rule: reasons, changes and scores are the engine's; the sentence about nodes is the one that kube-scheduler would write
(`wording`). A pod that the engine does not place has one clear sentence that says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from stead.engine.engine import Engine
from stead.engine.explain import wording
from stead.engine.explain.explanations import Explanation
from stead.kubernetes.api_objects import Problem
from stead.kubernetes.desk.references import reference
from stead.kubernetes.gangs import KUBE_SCHEDULER
from stead.kubernetes.templates import Pod
from stead.kubernetes.wording import change_text, why_gang_pending, why_pending
from stead.language.asks import Ask, Group
from stead.text import first_few, plural

NODES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class KubeExplanation(Explanation):
    """An explanation in the words of Kubernetes."""

    text: str = field(default="", compare=False)

    @property
    def change_text(self) -> str:
        return "" if self.change is None else change_text(self.change, self.names)

    def __str__(self) -> str:
        return "\n".join([self.text, *(f"{hint}." for hint in self.hints)])


_FIELDS = [each.name for each in fields(Explanation)]


def worded(found: Explanation, text: str) -> KubeExplanation:
    """The same explanation with this text."""
    return KubeExplanation(**{name: getattr(found, name) for name in _FIELDS}, text=text)


def explained(engine: Engine, what: str | Ask | Group) -> KubeExplanation:
    """The engine's explanation, in the words of Kubernetes."""
    found = engine.explain(what)
    if isinstance(what, str) and found.members:
        return worded(found, why_gang_pending(engine, what))
    if found.chosen is not None or found.members or found.together is not None:
        return worded(found, str(found))
    ask = engine.item(what) if isinstance(what, str) else what
    assert isinstance(ask, Ask)
    if found.fits:
        text = _available(engine, ask, found)
    elif found.nominated:
        kept = wording.nomination(found.nominated, found.ending, found.names)
        text = f"{why_pending(engine, ask, found)} {kept}"
    else:
        text = why_pending(engine, ask, found)
    return worded(found, text)


def _available(engine: Engine, ask: Ask, found: Explanation) -> str:
    """``2/5 nodes are available: cpu-1, cpu-2.``: the best ones first."""
    best = [engine.titles[node] for tier in engine.tiers(ask) for node in tier]
    first = next(each for each in found.verdicts if each.candidates)
    verb = "is" if first.nodes == 1 else "are"
    return f"{len(best)}/{plural(first.nodes, 'node')} {verb} available: {first_few(best, NODES_SHOWN)}."


def placed(found: KubeExplanation, pod: Pod) -> KubeExplanation:
    """Why a bound pod is where it is. Its own scheduler has bound it, whichever that is."""
    by = pod.scheduler_name or "hand"
    assert found.chosen is not None
    node = found.names.get(found.chosen.node) or found.chosen.node
    text = found.text.replace(f"Placed on {node} by {found.policy}", f"Bound to {node} by {by}", 1)
    return worded(found, f"{text} It is being deleted." if pod.is_deleting else text)


def not_bound_yet(found: KubeExplanation, pod: Pod) -> KubeExplanation:
    """A pod that would fit, and that its scheduler has not bound yet."""
    waits = (
        f"It waits for the scheduler {pod.scheduler_name!r} to bind it; if that takes long, check that this one runs."
    )
    return worded(found, f"{found.text} {waits}")


def in_one_sentence(
    engine: Engine, pod: Pod, problem: Problem | None, lenient: Ask | None, namespace: str
) -> KubeExplanation:
    """Why the engine does not know a pod. `lenient` is its ask without what is a problem for stead."""
    called = reference(pod.key, namespace)
    if pod.node_name:
        text = f"{called} is bound to {pod.node_name}, but there is no such node; Kubernetes deletes such pods."
    elif pod.is_deleting:
        text = f"{called} is being deleted, so it is not scheduled."
    elif pod.is_gated:
        text = (
            f"{called} is not scheduled before its scheduling gates are removed; see spec.schedulingGates, and the "
            "controller that removes them."
        )
    else:
        if problem is None:
            why, part = f"{called} is not scheduled: it has just changed", "Otherwise"
        elif problem.is_unsupported:
            why, part = f"{called} cannot be explained completely: {_cause(problem)}", "Without that"
        elif pod.scheduler_name == KUBE_SCHEDULER:  # it may know nothing of annotations and pod groups
            why, part = f"stead would not schedule {called}: {_cause(problem)}", "Otherwise"
        else:
            why, part = f"{called} is not scheduled: {_cause(problem)}", "Otherwise"
        if lenient is not None:
            found = explained(engine, lenient)
            return worded(found, f"{why}. {part}: {found.text}")
        text = f"{why}."
    return KubeExplanation(pod.key, text=text)


def _cause(problem: Problem) -> str:
    """The problem without the advice, which is for pods of stead's own scheduler."""
    cause = problem.sentence.partition("; ")[0].rstrip(".")
    return cause[:1].lower() + cause[1:]
