"""The launches of an autoscaler, from the request until the node is gone.

Rule: what the provider lists is the truth. What is remembered here beside it may be lost in a restart: then launches
are adopted from the list. It counts a launch until it is listed or has failed, because a list may lag.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stead.engine.scaling.decisions import LaunchEnded, LaunchId, NodeArrived, NodeLost, ScaleDecision
from stead.language.nodes import Node, NodeId, NodeTemplate
from stead.language.times import duration_text
from stead.planner.instances import Instance, InstanceState, LaunchFailed
from stead.planner.joining import lacking, nodes_of
from stead.planner.resting import Resting

COMPLETE_S = 30.0
"""How long a node that has joined may lack labels, taints or resources of its kind: they may be set after the join."""

REJOIN_S = 60.0
"""How long a node may be missing in the cluster while its instance runs, for example while the controller restarts."""

REPEAT_S = 30.0
"""If an instance that should end is still listed as running after this time, its end is decided again."""


@dataclass(slots=True)
class Launched:
    """One launch. `instance` is as it was last listed, or as requested.

    Attributes:
        adopted: When it was adopted from the list, because another autoscaler requested it.
        node: Its node in the cluster, if it has joined. `last_node` remains after it has left.
        joined: When its node was first seen in the cluster.
        has_arrived: Whether its node was what its kind describes.
        wrong: What its node lacks, if the node did not get it in time.
        missing: Since when its node is not in the cluster any more.
        end: The decision that ended it. It has none if it was ended before a restart.
        ended: When it was ended.
        idle: Since when nothing runs on its node.
        emptied: Since when its node is drained and empty.
        begun: When its retirement was begun.
        cancelled: When its retirement was cancelled.
    """

    instance: Instance
    is_listed: bool = False
    adopted: float | None = None
    node: NodeId = ""
    last_node: NodeId = ""
    joined: float | None = None
    has_arrived: bool = False
    wrong: str = ""
    missing: float | None = None
    end: ScaleDecision | None = None
    ended: float | None = None
    idle: float | None = None
    emptied: float | None = None
    begun: float | None = None
    cancelled: float | None = None

    @property
    def id(self) -> LaunchId:
        return self.instance.launch

    @property
    def kind(self) -> str:
        return self.instance.kind

    @property
    def is_going(self) -> bool:
        """Whether it is being ended, by the autoscaler or by somebody else."""
        return self.ended is not None or self.instance.state in (InstanceState.ENDING, InstanceState.FAILED)

    @property
    def is_coming(self) -> bool:
        """Whether its node may still join."""
        return not self.is_going and not self.node

    @property
    def is_incomplete(self) -> bool:
        """Whether its node has joined and may still get what it lacks."""
        return bool(self.node) and not (self.is_going or self.has_arrived or self.wrong)

    @property
    def should_end(self) -> bool:
        """Whether it was ended, and the provider still lists it as alive."""
        alive = self.instance.state is not InstanceState.ENDING
        return self.ended is not None and self.is_listed and alive

    @property
    def is_gone(self) -> bool:
        """Whether it was ended and is not listed."""
        return self.ended is not None and not self.is_listed

    @property
    def is_other(self) -> bool:
        """Whether it is there, and neither a node of its kind nor about to be one."""
        return not (self.counts or self.is_coming or self.is_gone)

    @property
    def counts(self) -> bool:
        """Whether its node counts as one of its kind."""
        return bool(self.node) and not self.is_going and not self.wrong


class Launches:
    """All launches that are listed, or were requested and may still be listed."""

    def __init__(self, kinds: Mapping[str, NodeTemplate], join_s: float, resting: Resting) -> None:
        self._kinds, self._join_s, self._resting = kinds, join_s, resting
        self._all: dict[LaunchId, Launched] = {}
        self._requested: list[float] = []

    def __iter__(self) -> Iterator[Launched]:
        return iter(self._all.values())

    def __contains__(self, id: LaunchId) -> bool:
        return id in self._all

    def request(self, id: LaunchId, kind: str, now: float) -> None:
        """A launch is requested now."""
        self._all[id] = Launched(Instance(id, kind, InstanceState.STARTING, now))
        self._requested.append(now)

    def requested_since(self, moment: float) -> list[float]:
        """When launches were requested after this time, in order; also of another autoscaler. Forgets those before."""
        self._requested = sorted(at for at in self._requested if at > moment)
        return self._requested

    def end(self, launch: Launched, decision: ScaleDecision, now: float) -> ScaleDecision:
        """Remember the decision that ends a launch."""
        launch.end, launch.ended = decision, now
        return decision

    def follow(
        self, now: float, instances: Sequence[Instance], failures: Iterable[LaunchFailed], nodes: Mapping[NodeId, Node]
    ) -> list[ScaleDecision]:
        """What became of each launch since the last call."""
        decisions: list[ScaleDecision] = []
        for failure in failures:
            launch = self._all.get(failure.launch)
            if launch is not None and launch.ended is None:
                decisions.append(self._give_up(launch, failure.why, now, failure.is_stock_out))
        decisions += self._listed(now, instances)
        found = nodes_of((launch.instance for launch in self._all.values()), nodes)
        for launch in self._all.values():
            launch.node = found.get(launch.id, "")
            launch.last_node = launch.node or launch.last_node
            if launch.ended is None:
                decisions += self._followed(launch, nodes, now)
            elif launch.end is not None and launch.should_end and now >= launch.ended + REPEAT_S:
                decisions.append(self.end(launch, launch.end, now))
        return decisions

    def _listed(self, now: float, instances: Sequence[Instance]) -> list[ScaleDecision]:
        """Take over the list. What has disappeared from it is gone."""
        decisions: list[ScaleDecision] = []
        listed = {instance.launch: instance for instance in instances}
        for id, instance in listed.items():
            launch = self._all.get(id)
            if launch is None:
                launch = self._all[id] = Launched(instance, adopted=now)
                self._requested.append(instance.since)
                if instance.state is InstanceState.ENDING:
                    launch.ended = now  # decided before a restart
            launch.instance, launch.is_listed = instance, True
        for launch in [launch for launch in self._all.values() if launch.id not in listed]:
            if launch.is_listed:
                del self._all[launch.id]
                if launch.ended is None:
                    decisions.append(self._vanished(launch, now))
            elif launch.ended is not None and now >= launch.ended + self._join_s:
                del self._all[launch.id]  # it was never listed, and will not be
        return decisions

    def _vanished(self, launch: Launched, now: float) -> ScaleDecision:
        if launch.last_node:
            return self._lost(launch)
        return self._give_up(launch, "it disappeared before its node joined", now)

    def _followed(self, launch: Launched, nodes: Mapping[NodeId, Node], now: float) -> Iterator[ScaleDecision]:
        if launch.instance.state is InstanceState.FAILED:
            why = launch.instance.problem or "it failed"
            if launch.has_arrived:
                yield self.end(launch, self._lost(launch), now)
            else:
                yield self._give_up(launch, why, now, launch.instance.is_stock_out)
        elif launch.instance.state is InstanceState.ENDING:
            return
        elif launch.node:
            launch.missing = None
            yield from self._joined(launch, nodes[launch.node], now)
        elif launch.last_node:
            launch.missing = now if launch.missing is None else launch.missing
            if now >= launch.missing + REJOIN_S:
                yield self.end(launch, self._lost(launch), now)
        elif now >= self._deadline(launch):
            what = "its node did not join" if launch.is_listed else "the provider did not list it"
            yield self._give_up(launch, f"{what} within {duration_text(self._join_s)}", now)

    def _joined(self, launch: Launched, node: Node, now: float) -> Iterator[ScaleDecision]:
        launch.joined = now if launch.joined is None else launch.joined
        if launch.has_arrived or launch.wrong:
            return
        template = self._kinds.get(launch.kind)
        lack = "" if template is None else lacking(template, node)
        is_new = launch.adopted is None or launch.adopted < launch.joined
        is_old = not is_new and now >= launch.instance.since + self._join_s
        if not lack or is_old:  # people may have changed the labels and taints of an old node
            launch.has_arrived = True
            if is_new:
                self._resting.arrived(launch.kind, launch.instance.since)
                yield NodeArrived(launch.id, launch.kind, node.id)
        elif now >= launch.joined + COMPLETE_S:
            launch.wrong = lack
            self._resting.failed(launch.kind, launch.instance.since, lack, False, now)

    def _deadline(self, launch: Launched) -> float:
        """When a launch is given up. The cluster may have restarted with the autoscaler, so an adopted node has time to
        join again."""
        deadline = launch.instance.since + self._join_s
        return deadline if launch.adopted is None else max(deadline, launch.adopted + REJOIN_S)

    def moments(self) -> Iterator[float]:
        """When time alone could next change a launch."""
        for launch in self._all.values():
            if launch.ended is not None:
                if launch.should_end:
                    yield launch.ended + REPEAT_S
            elif launch.missing is not None and not launch.node:
                yield launch.missing + REJOIN_S
            elif launch.is_coming:
                yield self._deadline(launch)
            elif launch.is_incomplete and launch.joined is not None:
                yield launch.joined + COMPLETE_S

    @staticmethod
    def _lost(launch: Launched) -> NodeLost:
        return NodeLost(launch.id, launch.kind, launch.last_node)

    def _give_up(self, launch: Launched, why: str, now: float, is_stock_out: bool = False) -> ScaleDecision:
        retry = self._resting.failed(launch.kind, launch.instance.since, why, is_stock_out, now)
        return self.end(launch, LaunchEnded(launch.id, launch.kind, why, retry), now)
