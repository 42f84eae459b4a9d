"""Handles reports about agents and tasks after admission: started, failed, completed, ended."""

from __future__ import annotations

import msgspec
from typing_extensions import assert_never

from schedulemesh.config.settings import CLIENT_HOLD_S, POOL_HOLD_S
from schedulemesh.domain.agent import Death
from schedulemesh.domain.end_reasons import EndReason, ReturnReason
from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.placement import InGroup
from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.resources import sum_of
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import FIRST_ATTEMPT, TaskPhase
from schedulemesh.engine.admission.arrays import member_taken
from schedulemesh.engine.admission.groups import is_placed
from schedulemesh.engine.admission.pending import ended, hand_on, start_cancelled, undo
from schedulemesh.engine.admission.registration import (
    refused_for_parent,
    register,
    with_known_parent,
)
from schedulemesh.engine.admission.requeue import (
    answer_not_run,
    keep_quota,
    requeue_without_room,
    return_of,
    task_without_room,
)
from schedulemesh.engine.lifecycle.eviction import saves_by_itself, task_cancelled, task_in
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import (
    AgentEnding,
    AgentStarted,
    EndingAgentDeleted,
    QuotaHeld,
    Share,
    TaskEnded,
    merged,
)
from schedulemesh.engine.messages.instructions import RunTask, StopAgent
from schedulemesh.engine.messages.outcomes import (
    Accepted,
    AgentEvicted,
    Candidate,
    Done,
    Pending,
    Refused,
    RequestOutcome,
)
from schedulemesh.engine.state.agents import Agent, Ending, Running, Starting, Submission, Waiting
from schedulemesh.engine.state.lending import caps_of, promise
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.past import FORMER
from schedulemesh.engine.state.quota import Payment
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.engine.transaction import Transaction


def current(state: MeshState, agent_name: str, incarnation: int) -> Agent | None:
    """The agent if this incarnation of it exists; late reports about a previous one are dropped here."""
    agent = state.agents.get(agent_name)
    return agent if agent is not None and agent.incarnation == incarnation else None


def register_task(tx: Transaction, stimulus: s.TaskAnnounced) -> RequestOutcome:
    """Register a task that runs on an agent, which ScheduleMesh need not have started."""
    state = tx.state
    task = with_known_parent(state, stimulus.task)
    registered = state.running.by_id.get(task.task_id)
    if registered is not None and (registered.spec.as_asked(), registered.agent_name) == (
        task,
        stimulus.agent_name,
    ):
        return Done(change=Change.ALREADY_REGISTERED)
    agent = state.agents.get(stimulus.agent_name)
    if registered is None and agent is not None and isinstance(agent.phase, Ending):
        return Refused(
            reason=Reason.AGENT_ENDING,
            error_text=say("agent_ends", agent=stimulus.agent_name, why=str(agent.phase.reason)),
        )
    refusal = refused_for_parent(state, task) or member_taken(state, task.task_id)
    return refusal or register(tx, task, stimulus.agent_name) or Done()


def delete_agent(tx: Transaction, stimulus: s.AgentDeletionRequested) -> RequestOutcome:
    """End an agent; one that is gone already is no error, one that never was is refused."""
    agent = tx.state.agents.get(stimulus.agent_name)
    if agent is None:
        return _forget(tx, stimulus.agent_name)
    if isinstance(agent.phase, Ending):
        name, destroy = stimulus.agent_name, stimulus.destroy_group
        if destroy is not None or not agent.phase.deleted:
            tx.emit(EndingAgentDeleted(agent_name=name, destroy_group=destroy))
        # A repetition must not end another agent that has the name by then.
        tx.answer(stimulus.request_id, Done())
        return Pending(agent_name=stimulus.agent_name)
    return end_agent(
        tx,
        agent,
        EndReason.DELETED,
        destroy_group=stimulus.destroy_group,
        request_id=stimulus.request_id,
    )


def _forget(tx: Transaction, agent_name: str) -> RequestOutcome:
    """What is registered as running on an agent that is not ours ends; one that was ours is gone."""
    state = tx.state
    tasks = state.running.on_agent(agent_name)
    for task_id in tasks:
        if not isinstance(state.running.by_id[task_id].phase, Preempting):
            tx.emit(TaskEnded(task_id=task_id, at=tx.now))
    if tasks:
        return Done()
    if (gang := state.gang_with(agent_name)) is not None:
        error = say("member_of_gang", agent=agent_name, gang=gang.spec.name)
        return Refused(reason=Reason.AGENT_NOT_FOUND, error_text=error)
    if agent_name in state.former:
        return Done(change=Change.ALREADY_GONE)
    error = say("no_agent_on_record", agent=agent_name, count=FORMER)
    return Refused(reason=Reason.AGENT_NOT_FOUND, error_text=error)


def end_agent(
    tx: Transaction,
    agent: Agent,
    reason: EndReason,
    *,
    destroy_group: bool | None = None,
    request_id: str | None = None,
) -> RequestOutcome:
    """Stop the actor and wait for its process; an agent that waits has none and ends at once."""
    name = agent.spec.name
    if isinstance(agent.phase, Waiting):
        ended(tx, agent, reason, destroy_group=destroy_group)
        error = f"agent {name!r} was deleted before it started"
        return _answer_deleted(tx, agent.phase.submission, error)
    tx.emit(
        AgentEnding(
            agent_name=name,
            reason=reason,
            at=tx.now,
            destroy_group=destroy_group,
            request_id=request_id,
        )
    )
    tx.instruct(StopAgent(agent_name=name, incarnation=agent.incarnation))
    return Pending(agent_name=name)


def cancel_answered(tx: Transaction, stimulus: s.CancelAnswered) -> RequestOutcome | None:
    """Finish the eviction of a task alone. Its agent is ended only where ``cancel()`` did not return, and
    where it is a job's runner, which can do nothing else.
    """
    task = task_in(tx.state, stimulus.task_id, stimulus.attempt)
    agent = None if task is None else tx.state.agents.get(task.agent_name)
    outcome = task_cancelled(tx, stimulus)
    if agent is None or not isinstance(agent.phase, Running):
        return outcome
    if stimulus.timed_out or isinstance(agent.spec.payload, JobPayload):
        end_agent(tx, agent, EndReason.DELETED)
    return outcome


def agent_reported(tx: Transaction, stimulus: s.AgentReported) -> RequestOutcome | None:
    """The agent runs where it says; its submission is accepted."""
    agent = current(tx.state, stimulus.agent_name, stimulus.incarnation)
    if agent is None or not isinstance(agent.phase, Starting):
        return None
    submission = agent.phase.submission
    restored, group_id = stimulus.state_restored, agent.place.group_id
    task_ids = tx.state.running.on_agent(stimulus.agent_name)
    if restored is None:
        restored = _begins_from_saved(tx.state, agent, task_ids)
    if group_id is not None and not is_placed(tx.state, group_id):
        return None  # its group was lost while it started, and it is being stopped
    tx.emit(
        AgentStarted(
            agent_name=stimulus.agent_name,
            incarnation=stimulus.incarnation,
            at=tx.now,
            node_id=stimulus.node_id,
            gpu_ids=stimulus.gpu_ids,
            pid=stimulus.pid,
            capabilities=stimulus.capabilities,
            actor_name=stimulus.actor_name,
            actor_namespace=stimulus.actor_namespace,
            state_restored=restored,
            members=stimulus.members,
            room=stimulus.room,
        )
    )
    _order_runs(tx, agent, task_ids)
    spec, place = agent.spec, agent.place
    quota = tx.state.ledger.accounts[spec.pool_name].spec.resources
    accepted = Accepted(
        agent_name=stimulus.agent_name,
        incarnation=stimulus.incarnation,
        pool_name=spec.pool_name,
        resources=spec.resources,
        labels=spec.labels,
        task_id=submission.task_id,
        preempted=_as_evicted(tx, submission.evicting) if submission.evicting else (),
        node_id=place.node_id,
        restartable=spec.restartable,
        state_restored=restored,
        group_id=place.group_id,
        group_path=place.path if isinstance(place, InGroup) else "",
        whole_pool=spec.resources == quota or (spec.flavor is not None and spec.quota == quota),
    )
    return tx.answer(submission.request_id, accepted)


def _begins_from_saved(state: MeshState, agent: Agent, task_ids: tuple[str, ...]) -> bool | None:
    """Whether what an agent is started for begins from what it saved in an earlier attempt, where no state
    was given to it: a job or a lease does if it has saved anything. None: it had no earlier attempt.
    """
    has_saved: bool | None = None
    for task_id in task_ids:
        attempts = state.running.by_id[task_id].attempts
        if attempts is not FIRST_ATTEMPT and attempts.number > 1:
            has_saved = bool(has_saved) or attempts.has_saved
    return has_saved and saves_by_itself(agent)


def order_runs(tx: Transaction, agent: Agent) -> None:
    """Have an agent run those of its tasks that run by themselves. It runs each once, however often this is
    ordered, so it is ordered again whenever the order may have been lost.
    """
    _order_runs(tx, agent, tx.state.running.on_agent(agent.spec.name))


def _order_runs(tx: Transaction, agent: Agent, task_ids: tuple[str, ...]) -> None:
    for task in map(tx.state.running.by_id.__getitem__, task_ids):
        if task.spec.run and task.phase is TaskPhase.RUNNING:
            for order in runs_of(agent, task):
                tx.instruct(order)


def runs_of(agent: Agent, *tasks: RunningTask) -> tuple[RunTask, ...]:
    """The orders to run those of these tasks of an agent that run by themselves."""
    return tuple(
        RunTask(
            task_id=task.spec.task_id,
            agent_name=agent.spec.name,
            incarnation=agent.incarnation,
            method=task.spec.run,
            arguments_key=task.spec.run_key,
        )
        for task in tasks
        if task.spec.run
    )


def _as_evicted(tx: Transaction, victims: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """These victims, and of each whether its state was saved."""
    return tuple(_with_record(tx, victim) for victim in victims)


def _with_record(tx: Transaction, victim: Candidate) -> Candidate:
    record = tx.state.evictions.of_task(victim.task_id)
    if record is None or record.evicted_at is None:
        return victim
    return msgspec.structs.replace(
        victim, state_saved=record.state_saved, save_error=record.save_error
    )


def start_failed(tx: Transaction, stimulus: s.AgentStartFailed) -> RequestOutcome | None:
    """Everything back as it was: the claim is released and victims run again from their saved states."""
    agent = current(tx.state, stimulus.agent_name, stimulus.incarnation)
    if agent is None:
        return None
    if isinstance(agent.phase, (Running, Ending)):
        return process_gone(tx, agent, stimulus.death)
    return undo(
        tx,
        agent,
        stimulus.reason,
        stimulus.error,
        detail=stimulus.detail,
        restore_failed=stimulus.restore_failed,
        death=stimulus.death,
        room_lost=stimulus.room_lost,
    )


def agent_gone(tx: Transaction, stimulus: s.AgentGone) -> RequestOutcome | None:
    """The process of this incarnation is gone; a report of a former one changes nothing."""
    agent = current(tx.state, stimulus.agent_name, stimulus.incarnation)
    tx.hosts = stimulus.hosts
    return None if agent is None else process_gone(tx, agent, stimulus.death)


def process_gone(
    tx: Transaction, agent: Agent, death: Death | None = None
) -> RequestOutcome | None:
    """Release the claim of an agent whose process is gone, or that waited and will not get one. ``death``:
    how the process died, where that is known.
    """
    phase = agent.phase
    if isinstance(phase, Waiting):
        waits_again = task_without_room(tx.state, agent, Reason.PREEMPTION_FAILED)
        returns = return_of(waits_again, ReturnReason.ROOM_LOST)
        ended(tx, agent, EndReason.LOST, returns=returns)
        if waits_again is not None:
            requeue_without_room(tx, waits_again, agent)
        return _answer_deleted(tx, phase.submission, "the agent was deleted before it started")
    if isinstance(phase, Starting):
        how = say("died") if death is None else death.how
        error = say("process_of_start_died", how=how)
        return undo(tx, agent, Reason.AGENT_START_FAILED, error, death=death)
    if isinstance(phase, Running):
        ended(tx, agent, EndReason.LOST, death=death)
        return Done()
    if isinstance(phase, Ending):
        return _has_ended(tx, agent, phase)
    assert_never(phase)


def _shares_held(
    state: MeshState, agent: Agent, ending: Ending, rest: tuple[Share, ...]
) -> tuple[Share, ...]:
    """What of its quota is held for a pool or a client once it is gone, of what those leave that waited for
    it: nothing that is above the quota of a pool that was made smaller, and for a pool no more than that may
    borrow and others lend.
    """
    accounts = state.ledger.accounts
    rest = merged(
        Share(pool_name=s.pool_name, amount=s.amount.within(accounts[s.pool_name].free))
        for s in rest
    )
    if ending.hold_for is None:
        return rest
    if ending.hold_for not in state.ledger.accounts:
        return ()
    freed, pool_name = [(agent.spec.pool_name, rest)], ending.hold_for
    caps = caps_of(state.ledger, pool_name, Payment(shares=()))
    return promise(freed, pool_name, sum_of(share.amount for share in rest), caps)


def _has_ended(tx: Transaction, agent: Agent, ending: Ending) -> RequestOutcome:
    """Release the claim, to whoever the agent was evicted for, and answer who asked for its end."""
    if ending.reason is EndReason.START_FAILED:
        start_cancelled(tx, agent, ending)
        return Done()
    name, waiters, rest = agent.spec.name, ending.waiters, agent.shares
    evicted = ended(tx, agent, ending.reason, destroy_group=ending.destroy_group)
    if waiters:
        rest = hand_on(tx, waiters, rest)
    held_shares: tuple[Share, ...] = ()
    if ending.hold_for is not None or ending.hold_for_client:
        held_shares = _shares_held(tx.state, agent, ending, rest)
    if held_shares:
        tx.emit(
            QuotaHeld(
                hold_id=f"{name}#{agent.incarnation}",
                for_pool=ending.hold_for,
                for_client=ending.hold_for_client,
                shares=held_shares,
                at=tx.now,
                until=tx.now + (CLIENT_HOLD_S if ending.hold_for is None else POOL_HOLD_S),
            )
        )
    elif tx.state.queue.by_id:
        keep_quota(tx, agent, rest)
    was_evicted = ending.reason not in (EndReason.COMPLETED, EndReason.DELETED)
    tx.answer(
        ending.request_id,
        AgentEvicted(agent_name=name, task_ids=evicted) if was_evicted else Done(),
    )
    if agent.submission is not None:
        _answer_deleted(tx, agent.submission, "the agent was deleted before it started")
    return Done()


def _answer_deleted(tx: Transaction, submission: Submission, error: str) -> Done:
    """Answer the submission of an agent that ended before it ran."""
    answer_not_run(tx, submission, Refused(reason=Reason.AGENT_DELETED, error_text=error))
    return Done()
