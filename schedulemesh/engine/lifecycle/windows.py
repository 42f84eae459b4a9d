"""Maintenance windows: created, deleted, opened when their time comes, and closed again.

Before a window opens, what runs on its nodes is evicted as by a drain, each agent when the time that its
notice, saving and cancelling may take is all that is left. While the window is open its nodes are drained. A
node that somebody has drained or cordoned beside that stays so.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.sentences import did_you_mean, say
from schedulemesh.domain.windows import MAX_WINDOWS, MaintenanceWindow, Occurrence
from schedulemesh.engine.admission.groups import end_group
from schedulemesh.engine.admission.refusals import pool_not_found
from schedulemesh.engine.admission.time_limits import leaving_s
from schedulemesh.engine.lifecycle.drain import (
    advance_drains,
    agents_on_node,
    evict_drained,
    finish_drain,
    start_drain,
)
from schedulemesh.engine.lifecycle.window_nodes import choose_nodes, may_stay
from schedulemesh.engine.messages.outcomes import Done, Refused, RequestOutcome
from schedulemesh.engine.messages.stimuli import WindowDeletionRequested, WindowRequested
from schedulemesh.engine.messages.window_facts import WindowCreated, WindowEnded
from schedulemesh.engine.state.agents import Running
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Transaction


def create_window(tx: Transaction, stimulus: WindowRequested) -> RequestOutcome:
    """Add a window, which may be open already; or put it in the place of another one of its name."""
    window, by_name = stimulus.window, tx.state.windows.by_name
    present = by_name.get(window.name)
    if present == window:
        return Done(change=Change.UNCHANGED)
    if present is not None and not stimulus.replace:
        error = say("window_differs", window=window.name)
        return Refused(reason=Reason.WINDOW_EXISTS, error_text=error)
    unknown_pool = next((n for n in window.pools if n not in tx.state.ledger.accounts), None)
    if unknown_pool is not None:
        return pool_not_found(tx.state, unknown_pool)
    if window.occurrence(tx.now) is None:
        error = say("window_is_over", window=window.name)
        return Refused(reason=Reason.WINDOW_OVER, error_text=error)
    if present is None and len(by_name) >= MAX_WINDOWS:
        error = say("windows_at_limit", most=MAX_WINDOWS)
        return Refused(reason=Reason.TOO_MANY_WINDOWS, error_text=error)
    if present is not None:
        tx.emit(WindowEnded(name=window.name, at=tx.now, client=stimulus.client))
    tx.emit(WindowCreated(window=window, at=tx.now, client=stimulus.client))
    advance_windows(tx)
    advance_drains(tx)
    return Done(change=Change.CREATED if present is None else Change.CHANGED)


def delete_window(tx: Transaction, stimulus: WindowDeletionRequested) -> RequestOutcome:
    """Remove a window; nodes that it closes now open again."""
    by_name = tx.state.windows.by_name
    if stimulus.name not in by_name:
        near = did_you_mean(stimulus.name, by_name)
        error = say("no_window", window=stimulus.name, near=near)
        return Refused(reason=Reason.WINDOW_NOT_FOUND, error_text=error)
    tx.emit(WindowEnded(name=stimulus.name, at=tx.now, client=stimulus.client))
    advance_windows(tx)
    return Done(change=Change.DELETED)


def advance_windows(tx: Transaction) -> None:
    """Open and close windows, and evict what has to leave by now. A window that is over and does not come
    again ends.
    """
    choose_nodes(tx)
    _open_nodes(tx)
    for window in tuple(tx.state.windows.by_name.values()):
        occurrence = window.occurrence(tx.now)
        if occurrence is None:
            tx.emit(WindowEnded(name=window.name, at=tx.now))
            continue
        for node_id in sorted(tx.state.windows.node_ids(window)):
            if node_id in tx.state.drains.nodes:
                continue
            if occurrence.start <= tx.now and not window.is_reservation:
                client = client_of(window)
                start_drain(tx, None, node_id, None, occurrence.start, client, window.name)
            else:
                _evict_in_time(tx, window, occurrence, node_id)
        if window.is_reservation and occurrence.start <= tx.now:
            _remove_groups(tx, window)


def client_of(window: MaintenanceWindow) -> str:
    """Who is said to drain the nodes of a window."""
    return f"window {window.name}"


def _open_nodes(tx: Transaction) -> None:
    """End the drains of windows that are over."""
    windows = tx.state.windows
    for node_id, drain in tuple(tx.state.drains.nodes.items()):
        if not drain.window:
            continue
        open_windows = {
            window.name: occurrence
            for occurrence, window in windows.of_node(node_id, tx.now)
            if occurrence.start <= tx.now and not window.is_reservation
        }
        if not open_windows:
            finish_drain(tx, drain)
        elif drain.window not in open_windows:
            # Another one goes on.
            name, occurrence = next(iter(open_windows.items()))
            client = client_of(windows.by_name[name])
            start_drain(tx, drain, node_id, None, occurrence.start, client, name)


def _evict_in_time(
    tx: Transaction, window: MaintenanceWindow, occurrence: Occurrence, node_id: str
) -> None:
    """Evict the agents on a node for which no more time is left than their eviction may take."""
    for name in agents_on_node(tx.state, node_id):
        agent = tx.state.agents[name]
        if not isinstance(agent.phase, Running) or may_stay(tx.state, window, agent):
            continue
        if tx.now >= occurrence.start - leaving_s(tx.state, agent.spec):
            evict_drained(tx, agent, client_of(window), for_window=True)


def _remove_groups(tx: Transaction, window: MaintenanceWindow) -> None:
    """Remove the groups on reserved nodes that nobody uses and that are none of the pools for which."""
    node_ids = tx.state.windows.node_ids(window)
    for group in tuple(tx.state.groups.by_id.values()):
        is_unused = group.phase is GroupPhase.READY and group.agent is None
        if not is_unused or group.promised_to is not None or node_ids.isdisjoint(group.node_ids):
            continue
        if not window.admits(group.pool_name, "", {}):
            end_group(tx, group)


def window_times(state: MeshState, now: float) -> Iterator[float]:
    """The times after now at which windows open or close, or agents have to leave for them; the earliest of
    each window at least.
    """
    for window in state.windows.by_name.values():
        occurrence = window.occurrence(now)
        if occurrence is None:
            yield now
            continue
        if occurrence.start <= now:
            yield occurrence.end
            continue
        agents = (
            state.agents[name]
            for node_id in state.windows.node_ids(window)
            for name in agents_on_node(state, node_id)
        )
        longest = max((leaving_s(state, agent.spec) for agent in agents), default=0.0)
        times = (occurrence.start - window.notice_s, occurrence.start - longest, occurrence.start)
        yield min((time for time in times if time > now), default=inf)
