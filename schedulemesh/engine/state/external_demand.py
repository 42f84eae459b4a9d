"""What external work waits for in Ray, and which tasks lost to it the room that was freed for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from schedulemesh.domain.demand import ExternalDemand
from schedulemesh.engine.messages.demand_facts import ExternalDemandSeen, RoomLost
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.state.nodes import Node

#: The most tasks that are remembered of each node.
_REMEMBERED = 1000


class ExternalDemands:
    """The demand of external work, as it was seen last."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self.waiting: tuple[ExternalDemand, ...] = ()
        #: By node, the tasks for which nobody is evicted there again before the demand has ended.
        self.lost: dict[str, dict[str, None]] = {}

    def __bool__(self) -> bool:
        """Whether any of it concerns evictions."""
        return bool(self.waiting or self.lost)

    @property
    def updates(self) -> Mapping[type[Fact], Callable[..., None]]:
        """How each of these facts changes it."""
        return {ExternalDemandSeen: self._seen, RoomLost: self._room_lost}

    def changed_by(self, demand: tuple[ExternalDemand, ...]) -> bool:
        """Whether seeing this demand changes anything."""
        ended = any(not self._concerns(demand, node_id) for node_id in self.lost)
        return demand != self.waiting or ended

    def restore(self, waiting: Iterable[ExternalDemand], lost: Iterable[tuple[str, str]]) -> None:
        """Add what a part of a snapshot contains: (node id, task id) of each room that was lost."""
        self.waiting = (*self.waiting, *waiting)
        for node_id, task_id in lost:
            self.lost.setdefault(node_id, {})[task_id] = None

    def _seen(self, fact: ExternalDemandSeen) -> None:
        self.waiting = fact.demand
        self.lost = {n: tasks for n, tasks in self.lost.items() if self._concerns(fact.demand, n)}

    def _room_lost(self, fact: RoomLost) -> None:
        for node_id in fact.node_ids:
            tasks = self.lost.setdefault(node_id, {})
            tasks[fact.task_id] = None
            if len(tasks) > _REMEMBERED:
                del tasks[next(iter(tasks))]

    def _concerns(self, demand: Iterable[ExternalDemand], node_id: str) -> bool:
        """Whether any of the demand could be met on a node."""
        node = self._nodes.get(node_id)
        return node is not None and any(each.amount.fits(node.total) for each in demand)
