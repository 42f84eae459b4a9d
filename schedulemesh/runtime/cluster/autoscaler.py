"""Autoscaler requests: asks Ray for nodes on which queued tasks and unplaceable placement groups fit."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice

from schedulemesh.domain.node_labels import NodeLabels, all_of, selects
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.admission.needs import (
    bundles_of,
    groups_asked,
    need_of_submission,
    quota_need_of_submission,
)
from schedulemesh.engine.admission.refusals import unplaced
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.placement.group_choice import makes_groups
from schedulemesh.engine.placement.reserved_room import could_hold
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
    """The bundles of queued tasks that the nodes could not hold even if nothing ran, as far as their pool's
    quota covers them: as they prefer to run, where they may run in several ways.
    """
    if not state.nodes_known:
        return
    for name in sorted(state.queue.pools):
        account = state.ledger.accounts[name]
        free = account.free
        for queue_class in state.queue.pools[name].classes.values():
            submission = state.queue.by_id[queue_class.first[-1]].submission
            ways = ways_of(state.ledger, submission)
            if any(_could_ever(state, each) for each in ways):
                continue
            quota_need, bundles = quota_need_of_submission(state, ways[0]), _bundles(state, ways[0])
            for _ in queue_class.entries:
                if not quota_need.fits(free):
                    break
                free = free - quota_need
                yield from bundles


def _could_ever(state: MeshState, submission: TaskSubmitted) -> bool:
    """Whether the nodes could hold what a submission asks for, if nothing ran: a group whole, where one is
    made for it, and as close together as it asks; else each bundle by itself.
    """
    shape, agent = _group_of(state, submission), submission.agent
    if shape is not None:
        return could_hold(state, shape)
    bundles = bundles_of(state, agent, need_of_submission(state, submission))
    return all(state.cluster.could_ever(shape_on_node(agent, bundle)) for bundle in bundles)


def _bundles(state: MeshState, submission: TaskSubmitted) -> list[Bundle]:
    """What a submission asks of nodes, and where."""
    agent, shape = submission.agent, _group_of(state, submission)
    bundles = bundles_of(state, agent, need_of_submission(state, submission))
    labels = agent.node_labels if shape is None else _labels_in_a_domain(state, shape)
    return [(bundle, labels) for bundle in bundles]


def _group_of(state: MeshState, submission: TaskSubmitted) -> GroupShape | None:
    """The placement group that would be made for a submission; None: none would."""
    pool_name, need = submission.agent.pool_name, need_of_submission(state, submission)
    group_request = groups_asked(state, submission, pool_name, need)
    if group_request is None or not makes_groups(group_request.spec):
        return None
    return group_request.shape


def _labels_in_a_domain(state: MeshState, shape: GroupShape) -> NodeLabels:
    """The labels of the nodes for a group. Ray cannot be asked for nodes that have any label in common, so
    where the group must be in one domain, that of which the nodes have the most in all is named; as it grows,
    it stays the one. Where no node has the label of the level, none is named.
    """
    topology = shape.topology
    if topology is None or not topology.required:
        return shape.node_labels
    levels = topology.levels[: topology.limit + 1]
    totals: dict[NodeLabels, Resources] = {}
    for node in state.cluster.nodes.values():
        if topology.required in node.labels and selects(shape.node_labels, node.labels):
            domain = tuple((level, node.labels[level]) for level in levels if level in node.labels)
            totals[domain] = totals.get(domain, NOTHING) + node.total
    largest = max(sorted(totals), key=lambda domain: _size(totals[domain]), default=())
    named = {level for level, _ in largest}
    return all_of(largest, tuple(one for one in shape.node_labels if one[0] not in named))


def _size(amount: Resources) -> tuple[int, int, int]:
    return (amount.gpu, amount.cpu, amount.memory)


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
