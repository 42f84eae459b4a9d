"""The calls of SimpleScheduler that drain nodes and pools."""

from __future__ import annotations

from schedulemesh.core.client import results
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.drain_results import DrainStatus
from schedulemesh.core.client.scheduler import RayScheduler


@public_calls
class SimpleDrainCalls:
    """Drains nodes and pools."""

    #: The RayScheduler that carries out the calls.
    scheduler: RayScheduler

    def drain_node(self, node_id: str, deadline: float | None = None) -> results.Result:
        """Start nothing new on a node, and save and move what runs there; see RayScheduler.drain_node."""
        return self.scheduler.drain_node(node_id, deadline)

    def drain_pool(self, pool_name: str, deadline: float | None = None) -> results.Result:
        """Start nothing new in a pool, and evict what runs there; see RayScheduler.drain_pool."""
        return self.scheduler.drain_pool(pool_name, deadline)

    def undrain_node(self, node_id: str) -> results.Result:
        """End the drain of a node."""
        return self.scheduler.undrain_node(node_id)

    def undrain_pool(self, pool_name: str) -> results.Result:
        """End the drain of a pool."""
        return self.scheduler.undrain_pool(pool_name)

    def drain_status(self) -> DrainStatus:
        """Return ``drains``: those in progress, with what has not ended yet."""
        return self.scheduler.drain_status()
