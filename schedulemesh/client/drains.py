"""The calls that drain nodes and pools."""

from __future__ import annotations

from schedulemesh.api.nodes import Drain, GetDrainStatus
from schedulemesh.api.results import Result
from schedulemesh.api.values import client_name
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import done, listed
from schedulemesh.client.listings import DrainStatus
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_timeout


@public_calls
class DrainCalls(SchedulerObject):
    """A scheduler object that drains nodes and pools."""

    def drain_node(self, node_id: str, deadline: float | None = None) -> Result:
        """Start nothing new on a node, and save and move what runs there; returns at once.

        Tasks that can be started again join the queue, unless they say ``on_preempted="drop"``. ``deadline``
        is in seconds from now: tasks that are expected to end in time may finish. Refused with
        ``node_not_found``.
        """
        return self._drain(node_id=parse_name(node_id, "node_id"), deadline=deadline)

    def drain_pool(self, pool: str, deadline: float | None = None) -> Result:
        """Start nothing new in a pool, and evict what runs there; the tasks wait in its queue.

        ``deadline`` as for ``drain_node``. Refused with ``pool_not_found``.
        """
        return self._drain(pool_name=parse_name(pool, "the pool's name"), deadline=deadline)

    def undrain_node(self, node_id: str) -> Result:
        """End the drain of a node. Refused with ``drained_by_ray`` where Ray drains it."""
        return self._drain(node_id=parse_name(node_id, "node_id"), drained=False)

    def undrain_pool(self, pool: str) -> Result:
        """End the drain of a pool: its queue is served again."""
        return self._drain(pool_name=parse_name(pool, "the pool's name"), drained=False)

    def drain_status(self) -> DrainStatus:
        """Return ``drains``: those in progress, with the agents and tasks that have not ended yet."""
        return listed(self._connection, GetDrainStatus(), "drains", DrainStatus)

    def _drain(
        self,
        *,
        node_id: str | None = None,
        pool_name: str | None = None,
        drained: bool = True,
        deadline: float | None = None,
    ) -> Result:
        request = Drain(
            node_id=node_id,
            pool_name=pool_name,
            drained=drained,
            deadline_s=None if deadline is None else parse_timeout(deadline, "deadline"),
            client=client_name(),
        )
        return done(self._connection, request)
