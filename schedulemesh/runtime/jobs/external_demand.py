"""What external work waits for in Ray, and which of it has taken room of a node."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from schedulemesh.domain.demand import ExternalDemand, named_job
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.messages.stimuli import ClusterObserved
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.runtime.agents.placement_watch import no_room, seen_anew
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.backend import Backend, BackendError
from schedulemesh.runtime.cluster_usage import RayHolder
from schedulemesh.runtime.jobs.work import external_holders
from schedulemesh.runtime.reactor import Reactor

logger = logging.getLogger(__name__)

#: How many equal demands are told apart, and how many there are at most: more would fill any node.
_MOST_ALIKE, _MOST = 32, 200


class DemandWatch:
    """Looks for external work that waits in Ray, and for who took room that was to be an agent's."""

    def __init__(self, backend: Backend, agents: Agents, group_mark: str) -> None:
        self._backend, self._agents, self._group_mark = backend, agents, group_mark

    async def look(self, state: MeshState) -> tuple[ExternalDemand, ...] | None:
        """All that external work waits for; None: that is not known, or concerns nobody, because no task runs
        that could be evicted.
        """
        if not len(state.running) and not state.external_demands:
            return None
        try:
            waiting = await self._backend.demand()
        except BackendError as error:
            logger.warning("what others wait for is not known: %s", error)
            return None
        if not waiting.holders:
            return ()
        return demand_of(external_holders(waiting, state, self._agents, self._group_mark))

    async def who_has(
        self, reactor: Reactor, node_id: str, need: Resources, unused: Mapping[str, Resources]
    ) -> str:
        """Why Ray had no room for an actor on the node that was chosen for it, and who has it; updates the
        external usage. ``unused``: what of the claims of jobs is free in Ray, by node.
        """
        views = await self._backend.nodes()
        not_placed = need + unused.get(node_id, NOTHING)
        reports = seen_anew(reactor.state, views, node_id, not_placed)
        await reactor.report(ClusterObserved(nodes=reports))
        node = reactor.state.cluster.nodes.get(node_id)
        if node is None:
            return f"node {node_id} is gone"
        return no_room(node, need, await self.takers(reactor.state, node_id, need))

    async def takers(self, state: MeshState, node_id: str, need: Resources) -> list[str]:
        """The jobs that hold something of what is needed on a node, or are being started with it."""
        usage, waiting = await self._backend.usage(), await self._backend.demand()
        queued = {holder.ray_id for holder in waiting.holders}
        external = external_holders(usage, state, self._agents, self._group_mark)
        named = (
            named_job(holder.job_id, holder.namespace)
            for holder in external
            if any(amount.helps(need) for amount in _taken(holder, node_id, queued))
        )
        return list(dict.fromkeys(named))


def demand_of(holders: Iterable[RayHolder]) -> tuple[ExternalDemand, ...]:
    """What these holders wait for, in an order that does not depend on theirs."""
    counts = Counter(
        (holder.job_id, holder.namespace, amount) for holder in holders for amount in holder.waiting
    )
    demands = [
        ExternalDemand(amount=amount, job_id=job_id, namespace=namespace)
        for (job_id, namespace, amount), count in counts.items()
        for _ in range(min(count, _MOST_ALIKE))
    ]
    return tuple(sorted(demands, key=_order)[:_MOST])


def _order(demand: ExternalDemand) -> tuple[object, ...]:
    """The largest first."""
    need = demand.amount
    return (-need.gpu, -need.cpu, -need.memory, need.custom, demand.job_id, demand.namespace)


def _taken(holder: RayHolder, node_id: str, queued: set[str]) -> Iterator[Resources]:
    """What a holder has on a node; of one that is being started nobody can say where that is."""
    yield from (amount for at, amount in holder.held if at == node_id)
    if holder.ray_id not in queued:
        yield from holder.waiting
