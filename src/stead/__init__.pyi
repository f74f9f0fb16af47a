"""The public names of stead, each written once: `__init__.py` loads them from the modules named here."""

# ruff: noqa: I001  # one statement for each module

from stead.engine.engine import Engine as Engine
from stead.engine.settings import Settings as Settings
from stead.engine.explain.events import (
    Event as Event,
    EventKind as EventKind,
)
from stead.engine.explain.explanations import Explanation as Explanation
from stead.errors import (
    Invalid as Invalid,
    Unsupported as Unsupported,
)
from stead.language.asks import (
    Affinity as Affinity,
    Ask as Ask,
    Choice as Choice,
    Group as Group,
    PolicyName as PolicyName,
    Preference as Preference,
    Spread as Spread,
    Strategy as Strategy,
    locality as locality,
)
from stead.language.labels import (
    Labels as Labels,
    Requirement as Requirement,
    Selector as Selector,
)
from stead.language.nodes import (
    Node as Node,
    NodeTemplate as NodeTemplate,
)
from stead.language.resources import (
    Amount as Amount,
    Resources as Resources,
)
from stead.language.selectors import (
    parse_label_selector as parse_label_selector,
    parse_selector as parse_selector,
)
from stead.language.strategies import (
    ActorAffinitySchedulingStrategy as ActorAffinitySchedulingStrategy,
    DoesNotExist as DoesNotExist,
    Exist as Exist,
    Exists as Exists,
    In as In,
    LabelMatchExpression as LabelMatchExpression,
    LabelMatchOperator as LabelMatchOperator,
    NodeAffinity as NodeAffinity,
    NodeAffinitySchedulingStrategy as NodeAffinitySchedulingStrategy,
    NotIn as NotIn,
    actor_affinity as actor_affinity,
    affinity as affinity,
    anti_affinity as anti_affinity,
    label_does_not_exist as label_does_not_exist,
    label_exist as label_exist,
    label_exists as label_exists,
    label_in as label_in,
    label_not_in as label_not_in,
    node_affinity as node_affinity,
)
from stead.language.taints import (
    Effect as Effect,
    Taint as Taint,
    Toleration as Toleration,
)
from stead.operate.views import (
    NodeView as NodeView,
)
from stead.ray.api import (
    Changed as Changed,
    Unplaced as Unplaced,
    drain as drain,
    events as events,
    get as get,
    init as init,
    label as label,
    labels as labels,
    nodes as nodes,
    placement_group as placement_group,
    remote as remote,
    remove_placement_group as remove_placement_group,
    taint as taint,
    uncordon as uncordon,
    untaint as untaint,
    why as why,
)
from stead.ray.submit.option_types import (
    GroupFallback as GroupFallback,
    InitOptions as InitOptions,
    LabelFallback as LabelFallback,
    RemoteOptions as RemoteOptions,
    SchedulingStrategy as SchedulingStrategy,
    TolerationMap as TolerationMap,
)
from stead.ray.submit.remote import (
    RemoteClass as RemoteClass,
    RemoteDecorator as RemoteDecorator,
    RemoteFunction as RemoteFunction,
)

__all__: list[str]
__version__: str
