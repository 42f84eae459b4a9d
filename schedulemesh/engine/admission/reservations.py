"""Reserved starts: what keeps later tasks from delaying the first task of a queue for ever.

The first task of a pool that does not fit gets a reservation: the time at which it can start if the running
tasks end as estimated, and the node on which it can. A task that comes after it may start before it
(backfill, as in the EASY scheduler of Lifka, 1995) if it ends before that time, or if what is left then is
enough for both. Where nothing is known about the time, later tasks may pass it for
``QueuePolicy.passing_limit_s``; after that, what the first task needs is kept free until it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge

import msgspec

from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.messages.queue_facts import ReservationDropped, StartReserved
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.queue import Entry, QueuedTask
from schedulemesh.engine.state.tasks import TaskClass
from schedulemesh.engine.transaction import Transaction

_INFINITY = float("inf")
#: Nodes that are looked at for one reservation, those with the most free resources.
_NODES = 64
#: Running tasks of a pool that are looked at, those that end first.
_ENDS = 10_000


def reserve_starts(tx: Transaction, heads: Iterable[QueuedTask]) -> None:
    """Reserve a start for each of these tasks, and drop the reservations of all others."""
    queue = tx.state.queue
    keep = {task.task_id: task for task in heads}
    for task_id in sorted(queue.reserved.keys() - keep.keys()):
        tx.emit(ReservationDropped(task_id=task_id))
    classes = classes_by_pool(tx.state) if keep else {}
    for task_id, task in keep.items():
        at, node_id = _earliest(tx.state, task, classes.get(task.pool_name, []), tx.now)
        known = task.reservation
        if known is None or (known.at, known.node_id) != (at, node_id):
            tx.emit(StartReserved(task_id=task_id, at=at, node_id=node_id))


def need_of(state: MeshState, task: QueuedTask) -> Resources:
    """What a queued task asks for."""
    submission = task.submission
    if submission.default_resources:
        return state.ledger.accounts[task.pool_name].spec.default_agent()
    return submission.agent.resources


def permitted(tx: Transaction, request: Request, entry: Entry) -> Request | None:
    """The request, if need be on another node, where it delays no reserved start of a task that comes before
    it; None: there is no such node. ``entry``: its own place in the order.
    """
    state = tx.state
    before = [
        head
        for head in map(state.queue.by_id.__getitem__, state.queue.reserved)
        if state.queue.entry(head) < entry
    ]
    if not before:
        return request
    delayed = [head for head in before if not _ends_before(tx, request, head)]
    if any(_takes_quota(tx, request, head) for head in delayed):
        return None
    if request.node is None or not _takes_node(tx, request, request.node, delayed):
        return request
    for node in state.cluster.with_room(request.need, tx.strategies.node):
        if not _takes_node(tx, request, node, delayed):
            return msgspec.structs.replace(request, node=node)
    return None


def _ends_before(tx: Transaction, request: Request, head: QueuedTask) -> bool:
    """Whether the request is over, or may pass, before the start that is reserved for this task."""
    reservation, task = head.reservation, request.stimulus.task
    if reservation is None:
        return True
    if reservation.at is None:
        return tx.now - head.queued_at < tx.state.queue.policy.passing_limit_s
    duration = None if task is None else task.estimated_duration
    return duration is not None and tx.now + duration <= reservation.at


def _takes_quota(tx: Transaction, request: Request, head: QueuedTask) -> bool:
    """Whether the quota that is left at the reserved start would not be enough for its task."""
    if request.pool_name != head.pool_name:
        return False
    state, pool_name = tx.state, head.pool_name
    both = need_of(state, head) + request.need
    classes = classes_by_pool(state).get(pool_name, [])
    at = quota_free_at(state, pool_name, both, classes, tx.now)
    return at is None or at > _at(head, tx.now)


def _takes_node(tx: Transaction, request: Request, node: Node, heads: Iterable[QueuedTask]) -> bool:
    """Whether what is left on the node at a reserved start would not be enough for its task."""
    for head in heads:
        if head.reservation is None or head.reservation.node_id != node.node_id:
            continue
        until = _at(head, tx.now)
        free = node.free
        for end, freed in _ends_on(tx.state, node, tx.now):
            if end <= until:
                free = free + freed
        if not need_of(tx.state, head).fits(free - request.need):
            return True
    return False


def _at(head: QueuedTask, now: float) -> float:
    """The reserved time; now where it is not known."""
    reserved = head.reservation
    return now if reserved is None or reserved.at is None else reserved.at


def quota_free_at(
    state: MeshState, pool_name: str, need: Resources, classes: list[TaskClass], now: float
) -> float | None:
    """When so much of a pool's quota is free if estimates hold; None: nobody knows. ``classes``: those of the
    pool's running tasks.
    """
    free = state.ledger.accounts[pool_name].free
    return _first_fit(need, free, _ends_of(classes, now), now)


def _earliest(
    state: MeshState, task: QueuedTask, classes: list[TaskClass], now: float
) -> tuple[float | None, str | None]:
    """When the task can start if estimates hold (None: nobody knows), and on which node (None: any)."""
    account = state.ledger.accounts[task.pool_name]
    quota_at = quota_free_at(state, task.pool_name, need_of(state, task), classes, now)
    if not task.submission.choose_node or task.submission.agent.bundles:
        return quota_at, None
    if account.spec.groups is not None:
        return quota_at, None
    node_at, node_id = _first_node(state, need_of(state, task), task, now)
    if quota_at is None or node_at is None:
        return None, node_id
    return max(quota_at, node_at), node_id


def _first_node(
    state: MeshState, need: Resources, task: QueuedTask, now: float
) -> tuple[float | None, str | None]:
    """The node with room for the need first, and when; where no time is known, the one that lacks least."""
    best: tuple[float, str] | None = None
    least: tuple[float, bool, str] | None = None
    reserved = None if task.reservation is None else task.reservation.node_id
    for node in state.cluster.emptiest(_NODES):
        if not need.fits(node.total):
            continue
        at = _first_fit(need, node.free, sorted(_ends_on(state, node, now), key=_end_of), now)
        if at is not None:
            found = (at, node.node_id)
            best = found if best is None else min(best, found)
        lacks = (_shortage(need, node), node.node_id != reserved, node.node_id)
        least = lacks if least is None else min(least, lacks)
    if best is not None:
        return best
    return None, None if least is None else least[2]


def _shortage(need: Resources, node: Node) -> float:
    """The largest part of the CPU, memory or GPU needed that the node has not free: 0.0 to 1.0."""
    short = need.beyond(node.free)
    pairs = ((short.cpu, need.cpu), (short.memory, need.memory), (short.gpu, need.gpu))
    return max((lacks / asked for lacks, asked in pairs if asked), default=0.0)


def _first_fit(
    need: Resources, free: Resources, ends: Iterable[tuple[float, Resources]], now: float
) -> float | None:
    """When the need fits first as tasks end in this order; None: not by these."""
    if need.fits(free):
        return now
    for end, freed in ends:
        free = free + freed
        if need.fits(free):
            return end
    return None


def _end_of(entry: tuple[float, Resources]) -> float:
    return entry[0]


def _ends_on(state: MeshState, node: Node, now: float) -> Iterator[tuple[float, Resources]]:
    """When the agents on a node end by the estimates of their tasks, and what that frees; those without an
    estimate, or beyond it, are left out.
    """
    for name, allocation in node.allocations.items():
        ends = [state.running.by_id[task_id].ends_at for task_id in state.running.on_agent(name)]
        known = [end for end in ends if end is not None and end > now]
        if known and len(known) == len(ends):
            gpu = sum(units for _, units in allocation.devices.units)
            yield max(known), allocation.held + Resources(gpu=gpu)


def classes_by_pool(state: MeshState) -> dict[str, list[TaskClass]]:
    """The classes of running tasks of each pool."""
    found: dict[str, list[TaskClass]] = {}
    for task_class in state.running.classes.values():
        if task_class.count and task_class.resources != NOTHING:
            found.setdefault(task_class.pool_name, []).append(task_class)
    return found


def _ends_of(classes: list[TaskClass], now: float) -> Iterator[tuple[float, Resources]]:
    """When the tasks of these classes end by their estimates, the first first, and what each frees."""
    streams = [_ends_in(task_class, now) for task_class in classes]
    for number, entry in enumerate(merge(*streams, key=_end_of)):
        if number >= _ENDS:
            return
        yield entry


def _ends_in(task_class: TaskClass, now: float) -> Iterator[tuple[float, Resources]]:
    return ((end, task_class.resources) for end, _ in task_class.ending(now))
