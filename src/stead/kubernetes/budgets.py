"""Converts Kubernetes' PodDisruptionBudgets to budgets.

Rule: the number of evictions that a budget allows is what its status says; only Kubernetes' own controller counts.
"""

from __future__ import annotations

from stead.errors import Invalid
from stead.kubernetes.fields import Fields, fields_in, number_in
from stead.kubernetes.selecting import pod_selector_of
from stead.language.budgets import Budget
from stead.language.labels import NOWHERE, Selector


def budget_of(found: Fields, is_beta: bool = False) -> Budget:
    """The budget of a PodDisruptionBudget. In the API policy/v1beta1, an empty selector matches nothing. One that
    cannot be read matches nothing either."""
    metadata, spec = fields_in(found, "metadata"), fields_in(found, "spec")
    namespace = metadata.get("namespace") or ""
    allowed = number_in(fields_in(found, "status"), "disruptionsAllowed")
    return Budget(budget_id(found), _selector(spec, is_beta), max(0, allowed), namespace)


def budget_id(found: Fields) -> str:
    """``namespace/name``"""
    metadata = fields_in(found, "metadata")
    return f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}"


def _selector(spec: Fields, is_beta: bool) -> Selector:
    written = spec.get("selector")
    if is_beta and not written:
        return NOWHERE
    try:
        return pod_selector_of(written)
    except Invalid:
        return NOWHERE
