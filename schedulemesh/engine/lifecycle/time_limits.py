"""Tasks that reach their limits in time: warned before, then evicted.

The time limit of an attempt counts from its start. When it has passed, the task is evicted as for any other
reason: notice, grace, saving, then its end; the reason is ``time_limit``. With ``on_time_limit="requeue"`` it
joins the queue again. An agent ends with the last of its tasks; before that, the task ends alone.

GPUs that were idle for ``idle_s`` (as measured; see ``measurements``) have the task's owner warned, and the
task ended (``idle_limit``) if they stay so for as long again. Only a measurement ends it: where none comes,
nobody knows whether they are idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.reasons import Change, PreemptionReason, Reason
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import TaskPhase, TaskSpec
from schedulemesh.engine.admission.admit import evict_instruction
from schedulemesh.engine.admission.arrays import SelectedMembers, selected, split
from schedulemesh.engine.admission.time_limits import beyond_pool, run_limit
from schedulemesh.engine.messages.facts import AgentEnding, AnyFact, EvictionStarted
from schedulemesh.engine.messages.instructions import EvictTask
from schedulemesh.engine.messages.limit_facts import (
    IdleLimitCleared,
    IdleLimitNear,
    TimeLimitChanged,
    TimeLimitNear,
)
from schedulemesh.engine.messages.outcomes import Done, Refused, RequestOutcome
from schedulemesh.engine.messages.stimuli import AgentsMeasured, TimeLimitRequested
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.gangs import extra_tasks
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.engine.transaction import Transaction


def advance_limits(tx: Transaction) -> None:
    """Warn the owners of tasks that reach their time limits soon, and evict those that have reached them."""
    running = tx.state.running
    while running.limits_due and running.limits_due[0][0] <= tx.now:
        task = running.by_id[running.limits_due[0][1]]
        limit_at = task.limit_at
        if limit_at is not None and tx.now < limit_at:
            tx.emit(TimeLimitNear(task_id=task.spec.task_id, at=tx.now, limit_at=limit_at))
        else:
            _end(tx, task, PreemptionReason.TIME_LIMIT)


def change_limit(tx: Transaction, stimulus: TimeLimitRequested) -> RequestOutcome:
    """Set how long a task may run that runs or waits. Who may only shorten it is refused more than it has."""
    selection = selected(tx.state, stimulus.task_id)
    if selection is None:
        return _change_one(tx, stimulus)
    return selection if isinstance(selection, Refused) else _change_members(tx, stimulus, selection)


def _change_members(
    tx: Transaction, stimulus: TimeLimitRequested, selection: SelectedMembers
) -> RequestOutcome:
    """Set how long members of an array may run; with all of them also those that are no tasks yet. The first
    refusal is the outcome.
    """
    array_id = selection.array.array_id
    if selection.indices is not None and (refused := split(tx, selection)) is not None:
        return refused
    entry_ids = [array_id] if selection.indices is None and array_id in tx.state.queue.by_id else []
    for task_id in (*entry_ids, *selection.waiting(), *selection.running()):
        outcome = _change_one(tx, msgspec.structs.replace(stimulus, task_id=task_id))
        if isinstance(outcome, Refused):
            return outcome
    return Done()


def _change_one(tx: Transaction, stimulus: TimeLimitRequested) -> RequestOutcome:
    state, task_id = tx.state, stimulus.task_id
    task = state.running.by_id.get(task_id) or state.queue.by_id.get(task_id)
    if task is None:
        error = say("no_task_lives", task=task_id)
        return Refused(reason=Reason.TASK_NOT_FOUND, error_text=error)
    agent = state.agents.get(task.agent_name) if isinstance(task, RunningTask) else None
    pool_name = task.spec.pool_name if agent is None else agent.spec.pool_name
    refused = beyond_pool(state, pool_name, stimulus.max_run_s)
    if refused is not None:
        return refused
    spec = _with_limit(task, stimulus.max_run_s)
    limit = run_limit(state, pool_name, spec)
    if isinstance(task, RunningTask):
        refused = _not_changeable(task, limit, may_lengthen=stimulus.may_lengthen)
        if refused is not None:
            return refused
    if spec == task.spec and (isinstance(task, QueuedTask) or limit == task.max_run_s):
        return Done(change=Change.UNCHANGED)
    tx.emit(
        TimeLimitChanged(
            task_id=task_id,
            at=tx.now,
            max_run_s=stimulus.max_run_s,
            of_attempt_s=limit if isinstance(task, RunningTask) else None,
        )
    )
    if isinstance(task, RunningTask):
        _limit_extras(tx, task.agent_name, limit)
    advance_limits(tx)
    return Done()


def _limit_extras(tx: Transaction, gang_name: str, limit: float | None) -> None:
    """Give the extra members of a gang the limit of its core, with which they end."""
    for task in tuple(extra_tasks(tx.state, gang_name)):
        runs = isinstance(task, RunningTask)
        tx.emit(
            TimeLimitChanged(
                task_id=task.spec.task_id,
                at=tx.now,
                max_run_s=limit,
                of_attempt_s=limit if runs else None,
            )
        )


def _with_limit(task: RunningTask | QueuedTask, max_run_s: float | None) -> TaskSpec:
    """The specification of a task with another limit, which later attempts have, too."""
    return msgspec.structs.replace(task.spec, max_run_s=max_run_s)


def _not_changeable(
    task: RunningTask, limit: float | None, *, may_lengthen: bool
) -> Refused | None:
    """Why the limit of a task that has an agent cannot be changed like this; None: it can."""
    task_id, present_limit_s = task.spec.task_id, task.max_run_s
    if task.phase not in (TaskPhase.RUNNING, TaskPhase.STARTING):
        return Refused(
            reason=Reason.ALREADY_BEING_PREEMPTED,
            error_text=say("limit_fixed", task=task_id, state=task.phase.value),
        )
    if present_limit_s is None or may_lengthen:
        return None
    if limit is not None and limit <= present_limit_s:
        return None
    return Refused(
        reason=Reason.NOT_ALLOWED,
        error_text=say("only_shorter", task=task_id, limit=present_limit_s),
    )


def idle_limits(state: MeshState, measured: AgentsMeasured, now: float) -> Iterator[AnyFact]:
    """Whose GPUs have been idle for as long as they may, and whose no longer are."""
    unused = dict(measured.unused)
    for task_id in tuple(state.running.idle_warned):
        task = state.running.by_id[task_id]
        if _unused_since(state, unused, task) is None or idle_limit(state, task) is None:
            yield IdleLimitCleared(task_id=task_id, at=now)
    for agent_name in unused:
        for task_id in state.running.on_agent(agent_name):
            task = state.running.by_id[task_id]
            idle_s, since = idle_limit(state, task), _unused_since(state, unused, task)
            if task.phase is not TaskPhase.RUNNING or task.idle_since is not None:
                continue
            if idle_s is None or since is None or now - max(since, task.started_at) < idle_s:
                continue
            begin = max(since, task.started_at)
            yield IdleLimitNear(task_id=task_id, at=now, since=begin, limit_at=now + idle_s)


def _unused_since(state: MeshState, unused: Mapping[str, float], task: RunningTask) -> float | None:
    """Since when the GPUs of all members of a task are idle; None: some are used, or it is an extra member's,
    which ends with its gang alone.
    """
    if task.spec.extra_of:
        return None
    agent = state.agents.get(task.agent_name)
    extras = () if agent is None else agent.spec.extra_names
    names = [task.agent_name]
    names += [extra for extra in extras if _runs_with_gpus(state.agents.get(extra))]
    return max(unused[name] for name in names) if unused.keys() >= set(names) else None


def _runs_with_gpus(agent: Agent | None) -> bool:
    return agent is not None and isinstance(agent.phase, Running) and agent.spec.resources.gpu > 0


def idle_limit(state: MeshState, task: RunningTask) -> float | None:
    """Seconds for which the GPUs of a task may be idle; None: it has none, or there is no limit. That of an
    extra member is its core's.
    """
    if task.spec.extra_of and task.resources.gpu:
        cores = state.running.on_agent(task.spec.extra_of)
        return next((idle_limit(state, state.running.by_id[core]) for core in cores), None)
    if not task.resources.gpu or task.spec.idle_s is not None:
        return task.spec.idle_s if task.resources.gpu else None
    agent = state.agents.get(task.agent_name)
    account = None if agent is None else state.ledger.accounts.get(agent.spec.pool_name)
    return None if account is None else account.spec.idle_s


def idle_too_long(state: MeshState, measured: AgentsMeasured, now: float) -> list[str]:
    """The tasks that were warned that their GPUs are idle, and whose GPUs still are when they are to end."""
    unused = dict(measured.unused)
    running = state.running
    warned = [running.by_id[task_id] for task_id in running.idle_warned]
    return [
        task.spec.task_id
        for task in warned
        if task.phase is TaskPhase.RUNNING
        and _unused_since(state, unused, task) is not None
        and task.idle_ends_at is not None
        and now >= task.idle_ends_at
    ]


def end_idle(tx: Transaction, measured: AgentsMeasured) -> None:
    """Evict the tasks whose GPUs were idle for too long."""
    for task_id in idle_too_long(tx.state, measured, tx.now):
        _end(tx, tx.state.running.by_id[task_id], PreemptionReason.IDLE_LIMIT)


def _end(tx: Transaction, task: RunningTask, reason: PreemptionReason) -> None:
    """Evict a task that has reached a limit: with its agent, unless other tasks run there."""
    task_id, agent = task.spec.task_id, tx.state.agents.get(task.agent_name)
    tx.emit(EvictionStarted(task_id=task_id, at=tx.now, reason=reason))
    running = tx.state.running
    on_agent = map(running.by_id.__getitem__, running.on_agent(task.agent_name))
    if agent is None or any(other.phase is TaskPhase.RUNNING for other in on_agent):
        tx.instruct(EvictTask(task_id=task_id))
        return
    name = agent.spec.name
    tx.emit(AgentEnding(agent_name=name, reason=EndReason.PREEMPTED, at=tx.now))
    tx.instruct(evict_instruction(tx.state, name))
