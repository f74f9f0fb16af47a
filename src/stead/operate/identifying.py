"""Finds the node, work, group or owner that a user names: by an id, an address or a name, or the beginning of an id.

Rule: only this module resolves such a name, and only it reports that nothing, or more than one, matches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice

from stead.errors import absent, several
from stead.language.nodes import Node
from stead.operate.changes import Absent, Conflict
from stead.operate.views import NodeView
from stead.text import ID_BEGINS

COMPARED_MAX = 10_000
"""Maximum number of names to search for one that is similar to an unknown name."""


def meant(given: str, ids: Sequence[str], named: Sequence[str]) -> list[str]:
    """The ids of what a user means, of a sorted list: the one with this id; else those with this name (`named`); else
    those whose id starts so."""
    place = bisect_left(ids, given)
    if ids[place : place + 1] == [given]:
        return [given]
    return list(dict.fromkeys(named)) or begin_so(ids, given)


def only(given: str, found: Sequence[str], what: str, known: Iterable[str], where: str = "in this cluster") -> str:
    """The one id that was found; `known` are the names to suggest if nothing was found."""
    if not found:
        raise Absent(absent(what, given, islice(known, COMPARED_MAX), where))
    if len(found) > 1:
        raise Conflict(several(given, found, "pieces of work" if what == "work" else f"{what}s"))
    return found[0]


class NodeNames:
    def __init__(self, nodes: Iterable[Node | NodeView]) -> None:
        self._by_ip: dict[str, list[str]] = {}
        self._by_name: dict[str, list[str]] = {}
        ids = []
        for node in nodes:
            ids.append(node.id)
            for name, known in ((node.ip, self._by_ip), (node.name, self._by_name)):
                if name:
                    known.setdefault(name, []).append(node.id)
        self._ids = sorted(ids)

    def meant(self, name: str, by: str = "") -> list[str]:
        """Ids of all nodes that match; `by` (``node_id`` or ``node_ip``) limits the match to that label."""
        ips = [] if by == "node_id" else self._by_ip.get(name, [])
        names = [] if by else self._by_name.get(name, [])
        found = meant(name, [] if by == "node_ip" else self._ids, [*ips, *names])
        return found or [only(name, found, "node", (*self._by_name, *self._ids))]

    def one(self, name: str, by: str = "") -> str:
        """The id of the one node that matches."""
        return only(name, self.meant(name, by), "node", ())


def begin_so(ids: Sequence[str], name: str) -> list[str]:
    """The ids, of a sorted list, that start with `name`. ``1a2b3c4d5e6f/0/1``, as tables show it, is a member of the
    group whose id starts with the first part; without a slash a group comes before its members."""
    begin, slash, rest = name.partition("/")
    if len(begin) < ID_BEGINS:
        return []
    found = [(id, *id.partition("/")) for id in ids[bisect_left(ids, begin) : bisect_left(ids, f"{begin}\U0010ffff")]]
    if slash:
        return [id for id, _, _, after in found if after.startswith(rest)]
    whole = {id for id, _, _, _ in found}
    return [id for id, group, _, _ in found if group == id or group not in whole]
