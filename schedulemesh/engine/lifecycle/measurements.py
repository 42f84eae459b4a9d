"""What is measured of agents and tasks becomes a fact where it changes decisions.

Idle GPUs: an agent whose GPUs were used less than ``idle_gpu_percent`` for ``idle_gpu_s`` stands first among
the victims that the rules allow (``preemption/candidates``). Measured ends: the progress that a task reports
says when it ends, in place of its estimate; reservations, backfill, forecasts of waiting and the order of
victims use it (``RunningTask.ends_at``). An end is a fact only where it differs much from the one known, so
that the journal does not grow with every report.
"""

from __future__ import annotations

from collections.abc import Iterator

from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.lifecycle.time_limits import end_idle, idle_limits, idle_too_long
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import AnyFact
from schedulemesh.engine.messages.measurement_facts import EndMeasured, GpusBusy, GpusIdle
from schedulemesh.engine.state.agents import Running
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Transaction

#: An end counts as another one if it differs by so many seconds, and by this part of the time left.
_STEP_S, _PART = 10.0, 0.1
#: No end is further away, in seconds.
_FARTHEST_S = 1e10


def note_measurements(tx: Transaction, stimulus: s.AgentsMeasured) -> None:
    """Emit what differs from what is known, and end tasks whose GPUs were idle for too long."""
    for fact in _changes(tx.state, stimulus, tx.now):
        tx.emit(fact)
    end_idle(tx, stimulus)


def changes_anything(state: MeshState, measured: s.AgentsMeasured, now: float) -> bool:
    """Whether a measurement leads to any fact."""
    return bool(_changes(state, measured, now) or idle_too_long(state, measured, now))


def _changes(state: MeshState, measured: s.AgentsMeasured, now: float) -> list[AnyFact]:
    """The facts that a measurement leads to beside evictions; empty: it changes nothing."""
    idle, ends = _idle(state, measured, now), _ends(state, measured, now)
    return [*idle, *idle_limits(state, measured, now), *ends]


def forget_measurements(tx: Transaction) -> None:
    """Drop what the policy, which has just changed, does not ask for any more."""
    running, policy = tx.state.running, tx.state.policy
    if not policy.idle_gpu_percent:
        for name in tuple(running.idle):
            tx.emit(GpusBusy(agent_name=name, at=tx.now))
    if not policy.measured_progress:
        measured = [i for i, task in running.by_id.items() if task.measured_end is not None]
        for task_id in measured:
            tx.emit(EndMeasured(task_id=task_id, at=tx.now))


def _idle(state: MeshState, measured: s.AgentsMeasured, now: float) -> Iterator[AnyFact]:
    recorded_idle = state.running.idle
    idle = dict(measured.idle) if state.policy.idle_gpu_percent else {}
    for name in recorded_idle:
        if name not in idle:
            yield GpusBusy(agent_name=name, at=now)
    for name, since in idle.items():
        agent = state.agents.get(name)
        if name in recorded_idle or agent is None or not isinstance(agent.phase, Running):
            continue
        if agent.spec.resources.gpu:
            yield GpusIdle(agent_name=name, since=since, at=now)


def _ends(state: MeshState, measured: s.AgentsMeasured, now: float) -> Iterator[AnyFact]:
    if not state.policy.measured_progress:
        return
    for task_id, ends_at in measured.ends:
        task = state.running.by_id.get(task_id)
        if task is None or task.phase is not TaskPhase.RUNNING:
            continue
        if ends_at is None:
            if task.measured_end is not None:
                yield EndMeasured(task_id=task_id, at=now)
            continue
        if ends_at > now + _FARTHEST_S:
            continue
        if task.ends_at is None or _differs(ends_at, task.ends_at, now):
            yield EndMeasured(task_id=task_id, ends_at=ends_at, at=now)


def _differs(ends_at: float, known_end: float, now: float) -> bool:
    """Whether an end differs much from the one known; of two that have passed none does."""
    if ends_at <= now and known_end <= now:
        return False
    remaining_s = max(ends_at, known_end) - now
    return abs(ends_at - known_end) >= max(_STEP_S, _PART * remaining_s)
