"""Rankings of nodes: for a strategy and a need, the nodes on which it fits, best first.

Scoring every node for every task would make each decision take time proportional to the cluster's size.
Rankings are cached instead, and only the nodes that changed since the last use are scored again. The cache
does not change any decision: a ranking computed from scratch is the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedList

from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.state.device_guarantees import has_room
from schedulemesh.engine.state.fragmentation import Workload
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.scoring import BUILT_IN, Scale

#: Cached rankings, one per strategy and need; the least recently used one is dropped first.
KEPT = 256

_Key = tuple[float, float, str]


class _Ranking:
    __slots__ = ("changed", "keys", "order")

    def __init__(self, nodes: set[str]) -> None:
        #: (score, node id) of every node on which the need fits.
        self.order: SortedList[_Key] = SortedList()
        self.keys: dict[str, _Key] = {}
        #: Nodes to be scored again.
        self.changed = nodes


class Rankings:
    """The rankings over one set of nodes."""

    def __init__(self, nodes: dict[str, Node], workload: Workload) -> None:
        self._nodes = nodes
        self._workload = workload
        #: The cached rankings, by strategy and need, the last used last.
        self.by_need: dict[tuple[str, Resources], _Ranking] = {}
        self._largest: Resources | None = None
        self._version = -1

    def touch(self, node_id: str) -> None:
        """Note that the node was changed, added or removed."""
        for ranking in self.by_need.values():
            ranking.changed.add(node_id)

    def rescale(self) -> None:
        """Note that the total of some node has changed."""
        self._largest = None

    def ranked(self, strategy: str, need: Resources) -> Iterator[Node]:
        """The nodes that are not cordoned and on which the need fits, best first, then by id."""
        ranking = self._find(strategy, need)
        if ranking.changed:
            self._refresh(ranking, strategy, need)
        for _, _, node_id in ranking.order:
            yield self._nodes[node_id]

    def _find(self, strategy: str, need: Resources) -> _Ranking:
        if self._largest is None or self._version != self._workload.version:
            self.by_need.clear()
            self._version = self._workload.version
        key = (strategy, need)
        ranking = self.by_need.pop(key, None) or _Ranking(set(self._nodes))
        self.by_need[key] = ranking
        if len(self.by_need) > KEPT:
            del self.by_need[next(iter(self.by_need))]
        return ranking

    def _refresh(self, ranking: _Ranking, strategy: str, need: Resources) -> None:
        """Score the changed nodes again."""
        score_of, scale = BUILT_IN[strategy], self._scale()
        for node_id in ranking.changed:
            old = ranking.keys.pop(node_id, None)
            if old is not None:
                ranking.order.remove(old)
            node = self._nodes.get(node_id)
            if node is not None and not node.cordoned and has_room(node, need):
                key = ranking.keys[node_id] = (*score_of(node, need, scale), node_id)
                ranking.order.add(key)
        ranking.changed.clear()

    def _scale(self) -> Scale:
        if self._largest is None:
            largest = NOTHING
            for node in self._nodes.values():
                largest = largest + node.total.beyond(largest)
            self._largest = largest
        return Scale(largest=self._largest, workload=self._workload)
