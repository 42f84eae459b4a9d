"""Where a task may start for the sake of maintenance windows.

A decision about a task is made as if the nodes were cordoned whose windows it would reach into. Until when it
runs is certain by its time limit, or known from the duration that it declares, or, where estimates count,
from the upper quartile of earlier runs; what its end takes then is added. One whose end is not known may
start until the notice before a window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.sentences import Sentence, say
from schedulemesh.domain.task import TaskSpec
from schedulemesh.domain.task_kinds import TaskKind
from schedulemesh.domain.windows import MaintenanceWindow, Occurrence
from schedulemesh.engine.admission.needs import need_of_submission
from schedulemesh.engine.admission.time_limits import leaving_s, run_limit
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.group_choice import GroupRequest
from schedulemesh.engine.state.device_guarantees import has_room
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import Reservation

#: After so many windows no start between two of them is sought.
_LOOKED_AT = 100
#: How many nodes a sentence names.
_NAMED = 3


def known_run_s(state: MeshState, submission: TaskSubmitted) -> float:
    """Seconds after which a task that starts now is over, its end included; infinite: nobody knows."""
    task, agent = submission.task, submission.agent
    if task is None:
        return inf
    times = (run_limit(state, agent.pool_name, task), _duration(state, submission, task))
    shortest = min((time for time in times if time is not None), default=inf)
    return shortest + leaving_s(state, agent)


def _duration(state: MeshState, submission: TaskSubmitted, task: TaskSpec) -> float | None:
    """Seconds that a task runs, as declared or estimated; None: nobody knows."""
    if task.estimated_duration is not None or not state.queue.policy.estimates:
        return task.estimated_duration
    if submission.agent.pool_name not in state.ledger.accounts:
        return None
    need = need_of_submission(state, submission)
    estimate = state.past.estimates.estimate(TaskKind.of(task, need))
    return None if estimate is None else estimate.high_s


def windows_ahead(
    state: MeshState, submission: TaskSubmitted, now: float
) -> list[MaintenanceWindow]:
    """The windows on whose nodes a task may not start now."""
    if not state.windows.by_name:
        return []
    closed = state.windows.closed_to(now, known_run_s(state, submission))
    return [window for window in closed if not admits(window, submission)]


def admits(window: MaintenanceWindow, submission: TaskSubmitted) -> bool:
    """Whether a window reserves its nodes for this task, or for an agent without one."""
    agent, task = submission.agent, submission.task
    if task is None:
        return window.admits(agent.pool_name, "", agent.labels)
    return window.admits(agent.pool_name, task.owner, task.labels)


def closed_to_groups(state: MeshState, pool_name: str, now: float) -> frozenset[str]:
    """The nodes on which no placement group is created in advance for a pool: windows are too near."""
    windows = state.windows
    closed = [one for one in windows.closed_to(now, inf) if not one.admits(pool_name, "", {})]
    return frozenset[str]().union(*map(windows.node_ids, closed))


@contextmanager
def outside_windows(
    state: MeshState, submission: TaskSubmitted, now: float
) -> Iterator[list[MaintenanceWindow]]:
    """While a task is decided about, have those nodes count as cordoned on which it may not start; gives the
    windows because of which.
    """
    ahead = windows_ahead(state, submission, now)
    if not ahead and not state.cluster.set_aside:
        yield ahead
        return
    node_ids = frozenset[str]().union(*map(state.windows.node_ids, ahead))
    with state.cluster.without(node_ids):
        yield ahead


def outside(
    state: MeshState,
    start: Reservation,
    group_request: GroupRequest | None,
    shape: GroupShape,
    submission: TaskSubmitted,
    now: float,
) -> Reservation:
    """The start that was found for a task on nodes that no window closes to it now, or another one so that it
    reaches into none: it may have to wait until windows there are over, or start earlier where others are.
    Until then no room is kept for it on nodes that are reserved for others before.
    """
    if not state.windows.by_name:
        return start
    start = _postponed(state, start, submission)
    may_create = group_request is None or _makes_groups(group_request)
    if group_request is not None:
        shape = group_request.shape
    after = _after_windows(state, shape, now, submission) if may_create else None
    if after is not None and (start.at is None or start.at > (after.at or 0.0)):
        start = after
    if _is_reserved_before(state, start, submission, now):
        return msgspec.structs.replace(start, node_ids=(), group_id=None)
    return start


def _makes_groups(group_request: GroupRequest) -> bool:
    """Whether a group may be created for a task."""
    return group_request.spec.dynamic and group_request.spec.max_dynamic >= 1


def _nodes_of(state: MeshState, start: Reservation) -> tuple[str, ...]:
    """The nodes on which a start is reserved."""
    group = state.groups.by_id.get(start.group_id or "")
    return start.node_ids if group is None else group.node_ids


def _is_reserved_before(
    state: MeshState, start: Reservation, submission: TaskSubmitted, now: float
) -> bool:
    """Whether one of its nodes is reserved for others before a start."""
    return start.at is not None and any(
        window.is_reservation and occurrence.start < start.at and not admits(window, submission)
        for node_id in _nodes_of(state, start)
        for occurrence, window in state.windows.of_node(node_id, now)
    )


def _postponed(state: MeshState, start: Reservation, submission: TaskSubmitted) -> Reservation:
    """A start on these nodes at which the task reaches into no window of theirs."""
    node_ids = _nodes_of(state, start)
    if start.at is None or not node_ids:
        return start
    return msgspec.structs.replace(start, at=_first_between(state, node_ids, start.at, submission))


def _after_windows(
    state: MeshState, shape: GroupShape, now: float, submission: TaskSubmitted
) -> Reservation | None:
    """The start on nodes that windows close to the task now, which are empty when these are over; None: they
    have too little in all.
    """
    able: list[str] = []
    for end, node_ids in _by_end(state, now):
        able += node_ids
        placement = Room(state.cluster, total=True).placement(shape, able)
        if placement is not None:
            at = _first_between(state, placement.node_ids, end, submission)
            return None if at is None else Reservation(at=at, node_ids=placement.node_ids)
    return None


def _by_end(state: MeshState, now: float) -> list[tuple[float, list[str]]]:
    """The nodes that only windows close to the task that is decided about, by when these end."""
    closed_by_window = (
        node_id for node_id, drain in state.drains.nodes.items() if drain.window and drain.opens
    )
    by_end: dict[float, list[str]] = {}
    for node_id in sorted({*state.cluster.set_aside, *closed_by_window}):
        for occurrence, _ in state.windows.of_node(node_id, now)[:1]:
            by_end.setdefault(occurrence.end, []).append(node_id)
    return sorted(by_end.items())


def is_emptied(state: MeshState, node_id: str, now: float, until: float) -> bool:
    """Whether a maintenance window ends everything on a node that starts now before a later time."""
    return any(
        occurrence.end <= until and not window.is_reservation
        for occurrence, window in state.windows.of_node(node_id, now)
    )


def _first_between(
    state: MeshState, node_ids: Iterable[str], at: float, submission: TaskSubmitted
) -> float | None:
    """The first time from then on at which a task that runs for so long reaches into no window of these
    nodes; None: there is none among the next ones.
    """
    node_ids, run_s = tuple(dict.fromkeys(node_ids)), known_run_s(state, submission)
    for _ in range(_LOOKED_AT):
        conflict = _conflict(state, node_ids, at, run_s, submission)
        if conflict is None:
            return at
        at = conflict.end
    return None


def _conflict(
    state: MeshState,
    node_ids: Iterable[str],
    at: float,
    run_s: float,
    submission: TaskSubmitted,
) -> Occurrence | None:
    """The occurrence of a window into which a task would reach that starts then on these nodes."""
    for node_id in node_ids:
        for occurrence, window in state.windows.of_node(node_id, at):
            if window.is_closed_to(occurrence, at, run_s) and not admits(window, submission):
                return occurrence
    return None


def closed_by_window(
    state: MeshState, submission: TaskSubmitted, shape: GroupShape, need: Resources, now: float
) -> Refused | None:
    """That nodes with the shape's labels would have room for this, and the window because of which the task
    may not start there; None: there are none. Asked while the task is decided about.
    """
    drains, aside = state.drains.nodes, state.cluster.set_aside
    closed = sorted(
        node.node_id
        for node in state.cluster.with_labels(shape)
        if node.cordoned
        and (node.node_id in aside or (node.node_id in drains and drains[node.node_id].window))
        and has_room(node, need)
    )
    run_s = known_run_s(state, submission)
    windows = state.windows.of_node(closed[0], now) if closed else []
    for occurrence, window in windows:
        if window.is_closed_to(occurrence, now, run_s) and not admits(window, submission):
            nodes = say("names", names=closed[:_NAMED])
            if len(closed) > _NAMED:
                nodes = say("names_and_more", names=nodes, more=len(closed) - _NAMED)
            return _refusal(window, occurrence, nodes, need, now, run_s)
    return None


def _refusal(
    window: MaintenanceWindow,
    occurrence: Occurrence,
    nodes: Sentence,
    need: Resources,
    now: float,
    run_s: float,
) -> Refused:
    """That a window is open on these nodes, or opens before a task would be over there."""
    what = _named(window)
    if occurrence.start <= now:
        error = say("in_window", nodes=nodes, need=need, window=what, left=occurrence.end - now)
        hint = say("in_window_hint")
    else:
        error = say(
            "before_window",
            nodes=nodes,
            need=need,
            window=what,
            wait=occurrence.start - now,
            why=say("end_not_known") if run_s == inf else say("over_after", run=run_s),
        )
        hint = say("before_window_hint", wait=occurrence.end - now)
    reserved = window.is_reservation
    reason = Reason.NODE_RESERVED if reserved else Reason.MAINTENANCE_WINDOW
    return Refused(reason=reason, error_text=error, hint_text=hint)


def _named(window: MaintenanceWindow) -> Sentence:
    """What a window is, as the subject of a sentence."""
    if not window.is_reservation:
        return say("maintenance_named", name=window.name)
    whom = [
        *(say("tasks_of_pool", pool=pool_name) for pool_name in window.pools),
        *(say("tasks_of_owner", owner=owner) for owner in window.owners),
        *(say("tasks_with_label", label=key, value=value) for key, value in window.labels.items()),
    ]
    return say("reservation_named", name=window.name, whom=say("names", names=whom))
