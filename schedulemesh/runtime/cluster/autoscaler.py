"""Autoscaler requests: asks Ray for nodes on which queued tasks and unplaceable placement groups fit."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.admission.needs import (
    bundles_of,
    need_of_submission,
    quota_need_of_submission,
)
from schedulemesh.engine.admission.refusals import unplaced
from schedulemesh.engine.state.groups import shape_on_node
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.ways import ways_of
from schedulemesh.runtime.backend import Backend, BackendError

logger = logging.getLogger(__name__)

#: The most bundles that are asked for on behalf of queued tasks: more are asked for when these have nodes.
MOST_FOR_QUEUE = 100


#: A bundle, and the labels of the nodes that it may be on.
Bundle = tuple[Resources, NodeLabels]


def queued_needs(state: MeshState) -> Iterator[Bundle]:
    """The bundles of queued tasks that fit on no node, even if it were empty, as far as their pool's quota
    covers them: as they prefer to run, where they may run in several ways.
    """
    if not state.nodes_known:
        return
    for name in sorted(state.queue.pools):
        account = state.ledger.accounts[name]
        free = account.free
        for queue_class in state.queue.pools[name].classes.values():
            submission = state.queue.by_id[queue_class.first[-1]].submission
            ways = ways_of(state.ledger, submission)
            agent, need = ways[0].agent, need_of_submission(state, ways[0])
            quota_need = quota_need_of_submission(state, ways[0])
            bundles = bundles_of(state, agent, need)
            if any(_could_ever(state, each.agent, need) for each in ways):
                continue
            for _ in queue_class.entries:
                if not quota_need.fits(free):
                    break
                free = free - quota_need
                yield from ((bundle, agent.node_labels) for bundle in bundles)


def _could_ever(state: MeshState, agent: AgentSpec, default_need: Resources) -> bool:
    """Whether each bundle of an agent fits on some node, if it were empty."""
    need = agent.resources or default_need
    bundles = bundles_of(state, agent, need)
    return all(state.cluster.could_ever(shape_on_node(agent, bundle)) for bundle in bundles)


class AutoscalerRequest:
    """Keeps Ray's one global slot for requests up to date: with the groups of pools that say
    ``request_resources``, and with what queued tasks need and no node has.

    Ray Train and Ray Data write the same slot, and the last writer wins: only one of them may be used.
    """

    def __init__(self, backend: Backend, still_writes: Callable[[], Awaitable[bool]]) -> None:
        self._backend = backend
        #: Whether this supervisor has no successor, whose request it would overwrite.
        self._still_writes = still_writes
        #: What was asked for last; None: nothing yet, though a former supervisor may have.
        self._asked: list[Bundle] | None = None

    async def notify(self, state: MeshState) -> None:
        """Ask for what is wanted now, where that is something new; withdraw it when nothing is."""
        asking = [
            account.spec.name
            for account in state.ledger.accounts.values()
            if account.spec.groups is not None and account.spec.groups.autoscale
        ]
        for_queue = list(islice(queued_needs(state), MOST_FOR_QUEUE))
        if not asking and not for_queue and not self._asked:
            return
        bundles = [
            (bundle, shape.node_labels)
            for name in asking
            for shape, _ in unplaced(state, name)
            for bundle in shape.bundles
        ]
        bundles += for_queue
        if bundles != self._asked and await self._still_writes():
            await self._ask(bundles)

    async def withdraw(self) -> None:
        """Ask for nothing any more."""
        if self._asked:
            await self._ask([])

    async def _ask(self, bundles: list[Bundle]) -> None:
        try:
            await self._backend.request_capacity(
                [need for need, _ in bundles], [labels for _, labels in bundles]
            )
        except BackendError as error:
            logger.warning("the autoscaler cannot be asked: %s", error)
            return
        self._asked = bundles
