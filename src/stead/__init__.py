"""stead puts work in its place: the public names, nothing else.

Rule: importing stead imports nothing. A name is loaded when it is first used, so that a command line
that only prints its help does not wait for numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stead.asks import Affinity, Ask, Choice, Group, PolicyName, Preference, Spread, Strategy, locality
    from stead.engine import Engine, Settings
    from stead.errors import Invalid, Unsupported
    from stead.labelling import Labels, Requirement, Selector
    from stead.node import Node, NodeTemplate
    from stead.ray.api import (
        Unplaced,
        drain,
        events,
        get,
        init,
        label,
        labels,
        nodes,
        placement_group,
        remote,
        remove_placement_group,
        taint,
        uncordon,
        untaint,
        why,
    )
    from stead.resources import Resources
    from stead.selectors import parse_label_selector, parse_selector
    from stead.strategies import (
        ActorAffinitySchedulingStrategy,
        DoesNotExist,
        Exist,
        Exists,
        In,
        LabelMatchExpression,
        LabelMatchOperator,
        NodeAffinity,
        NodeAffinitySchedulingStrategy,
        NotIn,
        actor_affinity,
        affinity,
        anti_affinity,
        label_does_not_exist,
        label_exist,
        label_exists,
        label_in,
        label_not_in,
        node_affinity,
    )
    from stead.taints import Effect, Taint, Toleration

__version__ = "0.1.0"

_HOME = {
    "stead.asks": "Affinity Ask Choice Group PolicyName Preference Spread Strategy locality",
    "stead.engine": "Engine Settings",
    "stead.errors": "Invalid Unsupported",
    "stead.labelling": "Labels Requirement Selector",
    "stead.node": "Node NodeTemplate",
    "stead.ray.api": "Unplaced drain events get init label labels nodes placement_group remote "
    "remove_placement_group taint uncordon untaint why",
    "stead.resources": "Resources",
    "stead.selectors": "parse_label_selector parse_selector",
    "stead.strategies": "ActorAffinitySchedulingStrategy DoesNotExist Exist Exists In LabelMatchExpression "
    "LabelMatchOperator NodeAffinity NodeAffinitySchedulingStrategy NotIn actor_affinity affinity anti_affinity "
    "label_does_not_exist label_exist label_exists label_in label_not_in node_affinity",
    "stead.taints": "Effect Taint Toleration",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [  # noqa: RUF022  # by the module they live in
    "Affinity",
    "Ask",
    "Choice",
    "Group",
    "PolicyName",
    "Preference",
    "Spread",
    "Strategy",
    "locality",
    "Engine",
    "Settings",
    "Invalid",
    "Unsupported",
    "Labels",
    "Requirement",
    "Selector",
    "Node",
    "NodeTemplate",
    "Unplaced",
    "drain",
    "events",
    "get",
    "init",
    "label",
    "labels",
    "nodes",
    "placement_group",
    "remote",
    "remove_placement_group",
    "taint",
    "uncordon",
    "untaint",
    "why",
    "Resources",
    "parse_label_selector",
    "parse_selector",
    "ActorAffinitySchedulingStrategy",
    "DoesNotExist",
    "Exist",
    "Exists",
    "In",
    "LabelMatchExpression",
    "LabelMatchOperator",
    "NodeAffinity",
    "NodeAffinitySchedulingStrategy",
    "NotIn",
    "actor_affinity",
    "affinity",
    "anti_affinity",
    "label_does_not_exist",
    "label_exist",
    "label_exists",
    "label_in",
    "label_not_in",
    "node_affinity",
    "Effect",
    "Taint",
    "Toleration",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'stead' has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULE_OF[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        from stead.errors import Unsupported

        raise Unsupported(f"stead.{name} needs Ray; install it with pip install 'stead[ray]'") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
