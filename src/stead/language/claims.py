"""Claims: storage that work uses, and the nodes that can reach it.

Rule: a claim is a plain value that the cluster reports, and it can change while work waits for it. Work names its
claims by id (`Ask.claims`); what is stored in a claim does not matter here.
"""

from __future__ import annotations

from dataclasses import dataclass

from stead.language.labels import ANYWHERE, Selector

ClaimId = str


@dataclass(frozen=True, slots=True)
class Claim:
    """Storage that work uses, like a PersistentVolumeClaim of Kubernetes.

    Attributes:
        id: Its id, on Kubernetes ``namespace/name``.
        selector: Which nodes can use it.
        exclusive: Whether only one piece of work at a time can use it.
        driver: Which limit of volumes per node it counts against; empty for none.
        bound: Whether its volume exists. If not, the first work that is placed decides where the volume will be, and
            other work that uses the claim must go to the same node.
        problem: Why no work can use it now, as a short clause; empty if work can.

    Example:
        ```python
        Claim("shop/data", parse_selector("zone=a"), exclusive=True)
        ```
    """

    id: ClaimId
    selector: Selector = ANYWHERE
    exclusive: bool = False
    driver: str = ""
    bound: bool = True
    problem: str = ""
