"""Budgets: how much work of a kind may be disrupted.

Rule: a budget is a preference, not a rule. Preemption first chooses work that no budget protects; if there is none, it
exceeds a budget rather than leave work of a higher priority pending.
"""

from __future__ import annotations

from dataclasses import dataclass

from stead.language.labels import Labels, Selector


@dataclass(frozen=True, slots=True)
class Budget:
    """How many pieces of matching work may be evicted now, like a PodDisruptionBudget of Kubernetes.

    Attributes:
        id: Its id.
        selector: Which work it protects, by its labels. Work without labels is not protected.
        allowed: How many pieces may be evicted now.
        namespace: The namespace of the work.

    Example:
        ```python
        Budget("web", parse_selector("app=web"), allowed=1)
        ```
    """

    id: str
    selector: Selector
    allowed: int
    namespace: str = ""

    def protects(self, namespace: str, labels: Labels) -> bool:
        """Whether it protects work with these labels in this namespace."""
        return bool(labels) and namespace == self.namespace and self.selector.matches(labels)
