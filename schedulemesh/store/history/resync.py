"""Compares open attempts with a state, where the history did not see all facts that led to it.

That is so where the history begins after the journal, where the journal dropped commits that the history
could not take, and where a backup of the journal was restored.
"""

from __future__ import annotations

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.placement import OnNode
from schedulemesh.domain.task import TaskPhase, TaskSpec
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.store.history.attempts import (
    PREEMPTING,
    QUEUED,
    RUNNING,
    STARTING,
    Attempt,
    text_of,
)
from schedulemesh.store.history.fold import Fold


def resync(fold: Fold, state: MeshState, at: float, *, gap: bool) -> None:
    """End what the state does not contain, and begin what the fold does not; ``gap``: note that facts are
    missing before this.
    """
    fold.at = max(fold.at, at)
    if gap:
        fold.event("gap", None)
    for attempt in list(fold.tasks.values()):
        if not _exists(state, attempt):
            fold.end(attempt, "unknown")
    for name, holder in list(fold.charged.items()):
        if name not in state.agents:
            if not holder.has_ended:
                fold.end(holder, "unknown")
            fold.release(holder)
    for agent in state.agents.values():
        _begin_agent(fold, state, agent)
    for task in state.running.by_id.values():
        if task.spec.task_id not in fold.tasks:
            _begin_task(fold, task, None, at)
    for queued in state.queue.by_id.values():
        if queued.task_id not in fold.tasks:
            _begin_queued(fold, queued)


def _exists(state: MeshState, attempt: Attempt) -> bool:
    """Whether this attempt is one of the state's tasks, and not an earlier one of the same task."""
    if attempt.state == QUEUED:
        queued = state.queue.by_id.get(attempt.task_id)
        return queued is not None and queued.queued_at == attempt.queued_at
    task = state.running.by_id.get(attempt.task_id)
    return task is not None and task.agent_name == attempt.agent_name


def _begin_agent(fold: Fold, state: MeshState, agent: Agent) -> None:
    """The attempt that an agent is charged for: that of its first task, if it has one."""
    if agent.spec.name in fold.charged:
        return
    on_it = state.running.on_agent(agent.spec.name)
    task = state.running.by_id[on_it[0]] if on_it else None
    attempt = None if task is None else fold.tasks.get(task.spec.task_id)
    if attempt is not None:
        fold.charge(attempt)
    elif task is not None:
        _begin_task(fold, task, agent, agent.admitted_at)
    else:
        started = agent.phase.started_at if isinstance(agent.phase, Running) else None
        begun = _begun(fold, None, agent.spec, agent.admitted_at, started)
        begun.nodes = _nodes_of(fold, agent)
        fold.charge(begun)


def _begin_task(fold: Fold, task: RunningTask, agent: Agent | None, admitted_at: float) -> None:
    runs = task.phase is not TaskPhase.STARTING
    spec = None if agent is None else agent.spec
    attempt = _begun(fold, task.spec, spec, admitted_at, task.started_at if runs else None)
    attempt.number = task.attempts.number
    attempt.submitted_at = task.attempts.arrived_at or attempt.submitted_at
    attempt.saved_at = task.saved_at
    if isinstance(task.phase, Preempting):
        attempt.state, attempt.rule = PREEMPTING, task.phase.reason.value
    fold.tasks[attempt.task_id] = attempt
    if agent is not None:
        attempt.nodes = _nodes_of(fold, agent)
        fold.charge(attempt)
    elif attempt.agent_name != task.agent_name:
        fold.place(attempt, task.agent_name)


def _begun(
    fold: Fold,
    task: TaskSpec | None,
    agent: AgentSpec | None,
    at: float,
    started_at: float | None,
) -> Attempt:
    attempt = fold.begin(submitted_at=at, queued_at=at, admitted_at=at, started_at=started_at)
    attempt.state = STARTING if started_at is None else RUNNING
    attempt.describe(task, agent)
    if agent is not None:
        attempt.alternative, attempt.flavor = agent.taken, agent.taken_flavor
        fold.place(attempt, agent.name)
    fold.event("found", attempt)
    return attempt


def _begin_queued(fold: Fold, queued: QueuedTask) -> None:
    attempts = queued.attempts
    attempt = fold.begin(
        number=attempts.number,
        client=queued.submission.client or "",
        submitted_at=queued.arrived_at,
        queued_at=queued.queued_at,
    )
    attempt.describe(queued.spec, queued.submission.agent)
    fold.tasks[attempt.task_id] = attempt
    fold.event("found", attempt)


def _nodes_of(fold: Fold, agent: Agent) -> str:
    place = agent.place
    return text_of([fold.node(place.node_id).id]) if isinstance(place, OnNode) else ""
