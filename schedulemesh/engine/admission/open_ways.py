"""In which of its ways a task that waits may have room on the nodes, or in a placement group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.admission.needs import groups_asked, need_of_submission
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.placement.group_choice import GroupRequest
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queue_classes import QueueClass
from schedulemesh.engine.transaction import Transaction


def open_ways(
    tx: Transaction, queue_class: QueueClass, ways: Sequence[TaskSubmitted], *, is_noted: bool
) -> Iterator[TaskSubmitted]:
    """Those of several ways in which the tasks of a class may have room. ``is_noted``: what has none now has
    none for others either.
    """
    state, places = tx.state, queue_class.on_nodes
    if not places or state.ledger.accounts[queue_class.pool_name].spec.groups is not None:
        yield from (way for way in ways if may_have_room(state, way))
        return
    searches = is_noted and state.nodes_known and not tx.strategies.plugins
    for number in state.queue.no_room.open_in(places):
        if not (searches and _finds_no_room(tx, *places[number])):
            yield ways[number]


def _finds_no_room(tx: Transaction, node_labels: NodeLabels, need: Resources) -> bool:
    """Whether no node has room for this, which is noted. That costs less than to find out all that a request
    is.
    """
    shape = GroupShape(bundles=(need,), node_labels=node_labels)
    if tx.strategies.choose_node(tx.state.cluster, shape, None) is not None:
        return False
    tx.state.queue.no_room.add(node_labels, need)
    return True


def may_have_room(state: MeshState, submission: TaskSubmitted) -> bool:
    """False: no node has room for a task in this one of its alternatives, or there is no group."""
    need = need_of_submission(state, submission)
    group_request = groups_asked(state, submission, submission.agent.pool_name, need)
    if group_request is not None:
        return group_request.spare is not None or kind_of(group_request) not in state.queue.no_group
    if not submission.choose_node:
        return True
    return not state.queue.no_room.includes(submission.agent.node_labels, need)


def kind_of(group_request: GroupRequest) -> tuple[str, GroupShape, GroupShape | None]:
    """See ``Queue.no_group``."""
    return (group_request.pool_name, group_request.shape, group_request.reserved)
