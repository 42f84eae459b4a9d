"""When a queued task can start at the earliest, if the tasks that run end when they are estimated to.

A task needs quota and room on a node. The quota of its pool has to be enough for the tasks that come before
it, too; a node for it alone. Tasks of other pools that wait are not considered, nor are evictions, so it may
start later than this, or earlier. Of the first task of a pool it is the start that is reserved for it.
"""

from __future__ import annotations

from heapq import merge
from itertools import islice

from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.admission.reservations import classes_by_pool, need_of, quota_free_at
from schedulemesh.engine.placement.group_choice import NoAssignment
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.devices import devices_for
from schedulemesh.engine.state.lending import could_ever_borrow
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.queue import QueuedTask

#: Running tasks whose ends are looked at for room on a node, those that end first.
_ENDS = 1_000

#: A time in seconds since 1970, and why it is not known, one of which is empty.
Estimate = tuple[float | None, str]


def earliest_start(state: MeshState, task: QueuedTask, request: Request, now: float) -> Estimate:
    """When the task can start at the earliest, or why that is not known."""
    if task.held:
        return None, "it is held"
    if isinstance(request.assignment, NoAssignment):
        return None, "when nodes have room for a placement group is not estimated"
    reserved = None if task.reservation is None else task.reservation.at
    at, why = (reserved, "") if reserved is not None else _estimated(state, task, request, now)
    return (None, why) if at is None else (max(at, now, task.not_before), "")


def _estimated(state: MeshState, task: QueuedTask, request: Request, now: float) -> Estimate:
    """When there is quota and room for a task whose start is not reserved."""
    asked = request.need + _asked_before(state, task)
    own = state.ledger.accounts[task.pool_name].spec.resources
    if asked == request.need and not request.payment.short:
        asked = NOTHING
    elif not asked.fits(own + could_ever_borrow(state.ledger, task.pool_name)):
        return None, "the tasks that come before it ask for more than its pool has at once"
    elif not asked.fits(own):
        return None, "when its cohort has idle quota to borrow is not estimated"
    classes = classes_by_pool(state)
    quota_at = quota_free_at(state, task.pool_name, asked, classes.get(task.pool_name, []), now)
    node_at = _node_free_at(state, request.need, now) if request.by_node else now
    if quota_at is None or node_at is None:
        return None, (
            "tasks that hold what is short have no estimated_duration, or run for longer already"
        )
    return max(quota_at, node_at), ""


def _asked_before(state: MeshState, task: QueuedTask) -> Resources:
    """What all tasks that come before it in its pool ask for."""
    queue, asked = state.queue, NOTHING
    entry = queue.entry(task)
    for queue_class in queue.pools[task.pool_name].classes.values():
        count = queue_class.entries.bisect_left(entry)
        if count:
            asked = asked + need_of(state, queue.by_id[queue_class.first[-1]]).times(count)
    return asked


def _node_free_at(state: MeshState, need: Resources, now: float) -> float | None:
    """When a node has the room, as the tasks that end first free it; None: not by the first ones."""
    nodes: dict[str, _FreedNode] = {}
    classes = (task_class for task_class in state.running.classes.values() if task_class.count)
    for ends_at, task_id in islice(merge(*(c.ending(now) for c in classes)), _ENDS):
        agent = _ends_with(state, task_id)
        node = None if agent is None else state.cluster.nodes.get(agent.node_id or "")
        if agent is None or node is None or node.cordoned or not need.fits(node.total):
            continue
        freed = nodes.get(node.node_id)
        if freed is None:
            freed = nodes[node.node_id] = _FreedNode(node)
        freed.release(agent.spec.name)
        if freed.has_room(need):
            return ends_at
    return None


def _ends_with(state: MeshState, task_id: str) -> Agent | None:
    """The agent that ends with a task; None: it runs other tasks too, or is not ours."""
    agent_name = state.running.by_id[task_id].agent_name
    return state.agents.get(agent_name) if len(state.running.on_agent(agent_name)) == 1 else None


class _FreedNode:
    """What is free on a node once some of its agents have ended."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._free = node.free
        self._devices = list(node.devices)

    def release(self, agent_name: str) -> None:
        """Count an agent as ended."""
        allocation = self._node.allocations.get(agent_name)
        if allocation is None:
            return
        gpu = 0
        for index, units in allocation.devices.units:
            self._devices[index] += units
            gpu += units
        self._free = self._free + allocation.held + Resources(gpu=gpu)

    def has_room(self, need: Resources) -> bool:
        """Whether the need fits."""
        return need.fits(self._free) and devices_for(self._devices, need.gpu) is not None
