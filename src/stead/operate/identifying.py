"""Finds the node or work that a user names: by an id, the beginning of an id, an address or a name.

Rule: only this module resolves such a name, and only it reports that no node, or more than one, matches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from stead.errors import absent, several
from stead.language.nodes import Node
from stead.operate.changes import Absent, Conflict
from stead.operate.views import NodeView
from stead.text import ID_BEGINS


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
        self._ids, self._known = sorted(ids), frozenset(ids)

    def meant(self, name: str, by: str = "") -> list[str]:
        """Ids of all nodes that match; `by` (``node_id`` or ``node_ip``) limits the match to that label."""
        found: list[str] = []
        if by != "node_ip":
            found = [name] if name in self._known else begin_so(self._ids, name)
        if by != "node_id" and not found:
            named = [] if by else self._by_name.get(name, [])
            found = list(dict.fromkeys([*self._by_ip.get(name, []), *named]))
        if not found:
            raise Absent(absent("node", name, {*self._known, *self._by_name}))
        return found

    def one(self, name: str, by: str = "") -> str:
        """The id of the one node that matches."""
        found = self.meant(name, by)
        if len(found) > 1:
            raise Conflict(several(name, found, "nodes"))
        return found[0]


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
