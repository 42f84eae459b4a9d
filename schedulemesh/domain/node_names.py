"""Names of nodes: Ray's ids, the shortest beginnings that are unique, host names and addresses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from schedulemesh.domain.sentences import Sentence, say

#: Characters of the shortest beginning of an id.
_LEAST = 4
#: Ids that an error names.
_NAMED = 5


def short_ids(node_ids: Collection[str]) -> dict[str, str]:
    """Of each id the shortest beginning that no other one has, of at least four characters."""
    ordered = sorted(node_ids)
    neighbours = zip(["", *ordered], ordered, [*ordered[1:], ""], strict=False)
    return {
        node_id: node_id[: max(_LEAST, _common(before, node_id) + 1, _common(node_id, after) + 1)]
        for before, node_id, after in neighbours
    }


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common from their beginning."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def shown_names(nodes: Mapping[str, tuple[str, str]], short: Mapping[str, str]) -> dict[str, str]:
    """What people are shown of each node: its host name, its address or its short id, the first of these that
    no other node has. ``nodes``: the host name and the address of each by its id; ``short``: its short id.
    """
    counts = Counter(name for names in nodes.values() for name in set(names))
    return {
        node_id: next((n for n in names if n and counts[n] == 1), short[node_id])
        for node_id, names in nodes.items()
    }


def nodes_named(name: str, nodes: Mapping[str, Iterable[str]]) -> list[str]:
    """The ids of the nodes that a name means: an id; else a host name or an address; else the beginning of
    ids. ``nodes``: the host name and the address of each node by its id.
    """
    if name in nodes:
        return [name]
    if named := [node_id for node_id, others in nodes.items() if name and name in others]:
        return sorted(named)
    return sorted(node_id for node_id in nodes if name and node_id.startswith(name))


def unknown_node(name: str, named: Collection[str], nodes: Collection[str]) -> Sentence:
    """The sentence that a name means no node, or several."""
    if named:
        return say("several_nodes", node=name, nodes=_listed(named))
    return say("no_node", node=name, nodes=_listed(nodes) if nodes else say("none_yet"))


def _listed(node_ids: Collection[str]) -> Sentence:
    names, more = tuple(sorted(node_ids)), len(node_ids) - _NAMED
    if more > 0:
        return say("names_and_others", names=names[:_NAMED], count=more)
    return say("names", names=names)
