"""Incoming agents that wait for others to end: they get what is freed, and start when it is complete.

Several may wait for the same end. They are served in the order in which they claimed what it frees, each
with no more than it lacks, and before anything else ends or anybody else is served. So each has all that it
counted on when the last one that it waits for has ended.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from typing_extensions import assert_never

from schedulemesh.domain.agent import Death
from schedulemesh.domain.end_reasons import EndReason, ReturnReason, TaskEndReason
from schedulemesh.domain.placement import InGroup, OnNode, Unplaced
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING
from schedulemesh.domain.sentences import Sentence, Text, say
from schedulemesh.engine.admission.admit import start_instruction
from schedulemesh.engine.admission.claims import gained, is_whole
from schedulemesh.engine.admission.decide import readmit, requeue_victim
from schedulemesh.engine.admission.groups import grow, leave, make, whole
from schedulemesh.engine.admission.preempted import all_preempted
from schedulemesh.engine.admission.refusals import loss_of
from schedulemesh.engine.admission.requeue import (
    ROOM_TAKEN,
    answer_not_run,
    grown_after,
    loses_too_many_starts,
    may_retry,
    requeue,
    requeue_failed,
    requeue_lost_start,
    requeue_not_started,
    requeue_without_room,
    return_of,
    task_not_started,
    task_to_retry,
    task_without_room,
    victims_to_requeue,
    was_lost_in_start,
)
from schedulemesh.engine.admission.revocations import WHY
from schedulemesh.engine.messages.demand_facts import RoomLost
from schedulemesh.engine.messages.facts import (
    AgentEnded,
    AgentReady,
    ClaimGrew,
    Devices,
    Returned,
    Share,
    merged,
)
from schedulemesh.engine.messages.outcomes import Refused, RequestOutcome
from schedulemesh.engine.state.agents import Agent, Ending, Submission, Waiting
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.quota import pass_on
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.engine.transaction import Transaction

#: Ends of agents after which a task with retries left is started again.
_FAILURES = (EndReason.RUN_FAILED, EndReason.LOST)


def hand_on(
    tx: Transaction, agent_names: Iterable[str], freed: tuple[Share, ...] = ()
) -> tuple[Share, ...]:
    """Let these waiting agents take what they lack of what has just become free, the first one first; what
    they leave of the quota.
    """
    for name in agent_names:
        agent = tx.state.agents.get(name)
        if agent is None or not isinstance(agent.phase, Waiting):
            continue
        paid = pass_on(freed, agent.phase.promised)
        _grow(tx, agent, agent.phase, paid)
        less = (Share(pool_name=s.pool_name, amount=NOTHING - s.amount) for s in paid)
        freed = merged((*freed, *less))
        tx.wake(name)
    return freed


def continue_start(tx: Transaction, agent: Agent) -> None:
    """Take the next step of a waiting agent that waits for nobody else any more: have its group created, or
    start it. Where what was freed is not enough, or is being drained, it is refused and its victims run
    again.
    """
    if not isinstance(agent.phase, Waiting) or not _waits_for_itself_alone(agent, agent.phase):
        return
    group = tx.state.groups.by_id.get(agent.group_id or "")
    if group is not None and group.phase is GroupPhase.CREATING:
        return
    if (drained := _drained(tx.state, agent)) is not None:
        _give_up(tx, agent, drained, ReturnReason.DRAINED)
        return
    if group is not None and group.phase is GroupPhase.PLANNED and whole(tx.state, group):
        make(tx, group)
        return
    if not _whole(tx.state, agent):
        _give_up(tx, agent, say("freed_too_little"), ReturnReason.ROOM_LOST)
        return
    tx.emit(AgentReady(agent_name=agent.spec.name, at=tx.now))
    tx.instruct(start_instruction(tx.state, agent.spec.name))


def _give_up(tx: Transaction, agent: Agent, error: Sentence, why: ReturnReason) -> None:
    """Undo a start for which what was freed is of no use."""
    reason = Reason.PREEMPTION_FAILED
    waits_again = task_without_room(tx.state, agent, reason) is not None
    next_step = say("waits_again" if waits_again else "submit_again")
    undo(tx, agent, reason, say("two_parts", first=error, second=next_step), why=why)


def _drained(state: MeshState, agent: Agent) -> Sentence | None:
    """Which pool or node of a waiting agent is being drained, so that nothing new starts there, or None."""
    if agent.spec.pool_name in state.drains.pools:
        return say("start_pool_drained", pool=agent.spec.pool_name)
    node_ids = (n for n in _nodes_of(state, agent) if n in state.drains.nodes)
    return next((say("start_node_drained", node=node_id) for node_id in node_ids), None)


def undo(
    tx: Transaction,
    agent: Agent,
    reason: Reason,
    error: Text,
    *,
    detail: str = "",
    restore_failed: bool = False,
    death: Death | None = None,
    room_lost: bool = False,
    why: ReturnReason = ReturnReason.ROOM_TAKEN,
) -> RequestOutcome | None:
    """Remove an incoming agent, and restart its victims where that is possible. Where external work may have
    got the room that they left, they join the queue, because a start could find none. ``restore_failed``:
    the state that its object was to be built from could not be restored. ``death``: how its process died.
    ``room_lost``: its node or its group is lost, as they are where a node is missing. ``why`` its task waits
    again, where it does.

    A group that is not kept is removed only after them, because it may be the one that they ran in.
    """
    submission = agent.submission
    if submission is None:
        raise ValueError(f"agent {agent.spec.name!r} has run, and its start cannot be undone")
    room_lost = room_lost or not tx.state.cluster.nodes.keys() >= set(_nodes_of(tx.state, agent))
    waits_again = task_without_room(tx.state, agent, reason, room_lost=room_lost)
    lost_start = waits_again if was_lost_in_start(agent, reason, room_lost=room_lost) else None
    failed = None
    if lost_start is not None and loses_too_many_starts(lost_start):
        waits_again = None
        error = say("two_parts", first=error, second=_lost_starts(lost_start))
        lost_start = lost_start if may_retry(tx.state, lost_start, agent) else None
    elif waits_again is None:
        failed = task_not_started(tx.state, agent, reason, restore_failed=restore_failed)
    again, forbidden = grown_after(tx.state, agent, death)
    if forbidden:
        failed, error = None, say("two_parts", first=error, second=forbidden)
    taken = reason in ROOM_TAKEN and bool(submission.evicting)
    if taken and submission.task_id is not None:
        node_ids = _nodes_of(tx.state, agent)
        tx.emit(RoomLost(task_id=submission.task_id, node_ids=node_ids, at=tx.now))
    if room_lost:
        why = ReturnReason.ROOM_LOST
    _terminate(tx, agent, EndReason.START_FAILED, error, death, return_of(waits_again, why))
    group = tx.state.groups.by_id.get(agent.group_id or "")
    if group is not None and group.phase is GroupPhase.PLANNED:
        leave(tx, agent)
    refused = Refused(reason=reason, error_text=error, detail=detail)
    refused = _with_victims(tx, agent, submission, refused, taken=taken)
    leave(tx, agent)
    if lost_start is not None:
        requeue_lost_start(tx, lost_start, agent)
    elif waits_again is not None:
        requeue_without_room(tx, waits_again, agent)
    if failed is not None:
        requeue_not_started(
            tx, failed, again, restore_failed=restore_failed, has_grown=again is not agent
        )
    return answer_not_run(tx, submission, refused)


def _lost_starts(task: RunningTask) -> Sentence:
    """How often the start of a task was lost, the last one included, as part of an error."""
    return say("starts_lost", times=task.attempts.lost_starts + 1)


def start_cancelled(tx: Transaction, agent: Agent, ending: Ending) -> None:
    """The process of an agent is gone whose start was cancelled for an owner of quota (``revocations``). Its
    task does not wait again where its deletion was requested meanwhile.
    """
    task, reason = None, EndReason.DELETED
    if not ending.deleted:
        task = task_without_room(tx.state, agent, Reason.PREEMPTION_FAILED)
        reason = EndReason.START_FAILED
    gives_way = return_of(task, ReturnReason.QUOTA_TAKEN_BACK)
    _terminate(tx, agent, reason, WHY, returns=gives_way)
    leave(tx, agent, ending.destroy_group)
    hand_on(tx, ending.waiters, agent.shares)
    put_back(tx, agent, task)


def finish_revocations(tx: Transaction) -> None:
    """Put back those whose claims were revoked in this step."""
    revoked, tx.revoked = tx.revoked, []
    for agent, task in revoked:
        put_back(tx, agent, task)


def put_back(tx: Transaction, agent: Agent, task: RunningTask | None) -> None:
    """After the end of an agent that was not to start: have its task wait again, and its victims run again
    where that is possible. ``task``: None: it did not come from the queue, or has ended.
    """
    submission = agent.submission
    if submission is None:
        raise ValueError(f"agent {agent.spec.name!r} has run, and its start cannot be undone")
    hint = "" if task is not None else say("gave_way_to_owner_hint")
    refused = Refused(reason=Reason.PREEMPTION_FAILED, error_text=WHY, hint_text=hint)
    refused = _with_victims(tx, agent, submission, refused, taken=False)
    if task is not None:
        requeue(tx, task, agent)
    answer_not_run(tx, submission, refused)


def _with_victims(
    tx: Transaction, agent: Agent, submission: Submission, refused: Refused, *, taken: bool
) -> Refused:
    """The refusal of an agent's start, after its victims run again, or wait, where that is possible."""
    victims = tuple(candidate.task_id for candidate in submission.evicting)
    made: set[str] = set()
    lost = tuple(t for t in victims if not _runs_again(tx, agent, t, made, taken=taken))
    queued = tuple(t for t in victims if t in tx.state.queue.by_id and t not in lost)
    return msgspec.structs.replace(
        refused,
        restarted=tuple(t for t in victims if t not in lost and t not in queued),
        requeued=queued,
        not_restarted=lost,
    )


def _runs_again(
    tx: Transaction, agent: Agent, task_id: str, made: set[str], *, taken: bool
) -> bool:
    """Have a victim of an agent run again, or join the queue where the room was ``taken`` or there is none;
    whether that could be done.

    ``made`` names the agents that were made again already.
    """
    if _returned(tx.state, task_id):
        return True
    past = tx.state.preempted.get(task_id)
    if past is None or past.is_final or not _ended_for(tx.state, agent, task_id):
        return False
    if taken:
        return requeue_victim(tx, past) or readmit(tx, past, made)
    return readmit(tx, past, made) or requeue_victim(tx, past)


def _ended_for(state: MeshState, agent: Agent, task_id: str) -> bool:
    """Whether a task has ended by its eviction for this start of an agent: it may have returned since, and
    have been cancelled, or evicted by a client or for somebody else.
    """
    ended_task, record = state.ended.get(task_id), state.evictions.of_task(task_id)
    if ended_task is None or ended_task.reason != TaskEndReason.PREEMPTED.value:
        return False
    if record is None or record.evictor is None or record.decided_at != agent.admitted_at:
        return False
    return record.evictor.agent_name == agent.spec.name


def _nodes_of(state: MeshState, agent: Agent) -> tuple[str, ...]:
    """The nodes on which an agent was to run."""
    group = state.groups.by_id.get(agent.group_id or "")
    if group is not None:
        return tuple(dict.fromkeys(group.node_ids))
    return () if agent.node_id is None else (agent.node_id,)


def _returned(state: MeshState, task_id: str) -> bool:
    """Whether a victim waits in the queue again, or was started from there."""
    task = state.running.by_id.get(task_id)
    if task is None or isinstance(task.phase, Preempting):
        return task_id in state.queue.by_id
    return task.attempts.preemptions > 0  # not another task of the same id


def ended(
    tx: Transaction,
    agent: Agent,
    reason: EndReason,
    *,
    destroy_group: bool | None = None,
    death: Death | None = None,
    returns: Returned | None = None,
) -> tuple[str, ...]:
    """Remove an agent; its group is kept or removed. Returns the ids of its evicted tasks. ``returns``: its
    task, where the caller has that wait again without having run.
    """
    evicted = _terminate(tx, agent, reason, death=death, returns=returns)
    if agent.place.group_id is not None:
        leave(tx, agent, destroy_group)
    return evicted


def _terminate(
    tx: Transaction,
    agent: Agent,
    reason: EndReason,
    error: Text = "",
    death: Death | None = None,
    returns: Returned | None = None,
) -> tuple[str, ...]:
    """Answer the clients that asked for the eviction of one of its tasks, before the task is removed."""
    returning = victims_to_requeue(tx, agent) if reason is EndReason.PREEMPTED else []
    failed = task_to_retry(tx.state, agent) if reason in _FAILURES else None
    again = agent
    if reason is EndReason.LOST and agent.committed:
        error = error or loss_of(tx.state, agent, death, tx.hosts)
        again, forbidden = grown_after(tx.state, agent, death)
        if forbidden:
            reason, failed = EndReason.OUT_OF_MEMORY, None
            error = say("two_parts", first=error, second=forbidden)
    evicted = all_preempted(tx, agent)
    tx.emit(
        AgentEnded(
            agent_name=agent.spec.name,
            incarnation=agent.incarnation,
            at=tx.now,
            reason=reason,
            error=error,
            death=death,
            returned=returns,
        )
    )
    for task in returning:
        requeue(tx, task, agent, evicted=True)
    if failed is not None:
        requeue_failed(
            tx, failed, again, lost=reason is EndReason.LOST, has_grown=again is not agent
        )
    return evicted


def _waits_for_itself_alone(agent: Agent, waiting: Waiting) -> bool:
    """Whether nothing is left to wait for but the group that is created for it."""
    return not waiting.for_agents and waiting.for_groups <= {agent.group_id}


def _grow(tx: Transaction, agent: Agent, waiting: Waiting, paid: tuple[Share, ...]) -> None:
    """Take this quota, and what is free now of what the agent, or the group that is created for it, lacks."""
    name, place, need = agent.spec.name, agent.place, agent.spec.resources
    taken, devices = NOTHING, Devices()
    node = tx.state.cluster.nodes.get(place.node_id) if isinstance(place, OnNode) else None
    if node is not None:
        waits = bool(waiting.for_agents or waiting.for_groups)
        taken, devices = gained(node, name, need, waits=waits)
    if paid or taken or devices.units:
        tx.emit(ClaimGrew(agent_name=name, at=tx.now, shares=paid, held=taken, devices=devices))
    group = tx.state.groups.by_id.get(agent.group_id or "")
    if group is not None and group.phase is GroupPhase.PLANNED:
        grow(tx, group, waits=not _waits_for_itself_alone(agent, waiting))


def _whole(state: MeshState, agent: Agent) -> bool:
    """Whether quota and room are complete."""
    name, place, need = agent.spec.name, agent.place, agent.spec.resources
    if agent.paid != agent.spec.quota:
        return False
    if isinstance(place, InGroup):
        group = state.groups.by_id.get(place.group_id)
        return group is not None and group.phase is GroupPhase.READY and group.agent == name
    if isinstance(place, OnNode):
        node = state.cluster.nodes.get(place.node_id)
        return node is not None and is_whole(node, name, need)
    if isinstance(place, Unplaced):
        return True
    assert_never(place)
