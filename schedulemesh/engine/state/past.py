"""What is remembered of agents and tasks that have ended: their results, what restores them, statistics, and
names that were used before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from schedulemesh.domain.arrays import members_named
from schedulemesh.domain.end_reasons import EndReason, TaskEndReason
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.domain.resources import UNIT
from schedulemesh.domain.sentences import Text
from schedulemesh.domain.task import FIRST_ATTEMPT, Attempts, EndState, TaskPhase, TaskSpec
from schedulemesh.domain.task_kinds import TaskKind
from schedulemesh.engine.messages.facts import AgentEnded, TaskEnded, TaskPreempted
from schedulemesh.engine.messages.queue_facts import ArrayEnded, TaskCancelled
from schedulemesh.engine.state.agents import Agent, LostAgent, Preempted
from schedulemesh.engine.state.arrays import Arrays, TaskArray
from schedulemesh.engine.state.dependents import Dependents
from schedulemesh.engine.state.estimates import Estimates
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.tasks import RunningTask

#: How many past preemptions, and how many lost agents, are kept.
RECENT = 1000
#: How many names of former agents are kept.
FORMER = 10_000
#: How many tasks that have ended are kept, with their results.
ENDED = 10_000

#: How a task ends that is left when its agent has ended, by the reason of the agent's end.
WITH_AGENT: dict[EndReason, tuple[EndState, TaskEndReason | None]] = {
    EndReason.COMPLETED: (EndState.COMPLETED, None),
    EndReason.DELETED: (EndState.CANCELLED, TaskEndReason.DELETED),
    EndReason.PREEMPTED: (EndState.CANCELLED, TaskEndReason.PREEMPTED),
    EndReason.RUN_FAILED: (EndState.FAILED, TaskEndReason.RUN_RAISED),
    EndReason.LOST: (EndState.LOST, TaskEndReason.LOST),
    EndReason.OUT_OF_MEMORY: (EndState.FAILED, TaskEndReason.OUT_OF_MEMORY),
    EndReason.START_FAILED: (EndState.FAILED, TaskEndReason.NOT_STARTED),
}

#: How a task ends that was evicted because it reached a limit in time.
_BY_LIMIT = {
    PreemptionReason.TIME_LIMIT: TaskEndReason.TIME_LIMIT,
    PreemptionReason.IDLE_LIMIT: TaskEndReason.IDLE_LIMIT,
}

#: Ends that ``max_retries`` is for.
_FAILURES = (TaskEndReason.RUN_RAISED, TaskEndReason.LOST, TaskEndReason.OUT_OF_MEMORY)


#: Why tasks in the queue are cancelled; for any other reason they have failed.
_CANCELLATIONS = (
    Reason.CANCELLED,
    Reason.DEPENDENCY_NOT_MET,
    Reason.IMPOSSIBLE,
    Reason.PARENT_ENDED,
    Reason.POOL_ENDING,
    Reason.WAIT_TIMEOUT,
)


class EndedTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A task that has ended, in whatever way, and does not exist again."""

    spec: TaskSpec
    #: The agent that it ran on last.
    agent_name: str
    #: What it was: "agent", "gang", "job" or "lease".
    kind: str = "agent"
    state: EndState
    #: When it ended, in seconds since 1970.
    at: float
    #: Why it was not completed: a code of Reason where it never ran, else of TaskEndReason; empty: it was.
    reason: str = ""
    #: One line for people; empty: it was completed, or the reason says all.
    error: Text = ""
    #: The key of the stored result or exception; None: there is none.
    result_key: str | None = None
    #: The key of its saved state where it could not be started from it; None: there is none.
    state_key: str | None = None
    #: Whether there was a result that is no longer kept.
    expired: bool = False
    #: How often it was evicted and failed, its end included.
    attempts: Attempts = FIRST_ATTEMPT


def end_in_queue(reason: Reason) -> EndState:
    """How a task ends that is removed from the queue for this reason."""
    return EndState.CANCELLED if reason in _CANCELLATIONS else EndState.FAILED


def _counted(attempts: Attempts, reason: TaskEndReason | None) -> Attempts:
    """The attempts of a task that has ended for this reason."""
    return msgspec.structs.replace(
        attempts,
        preemptions=attempts.preemptions + (reason is TaskEndReason.PREEMPTED),
        time_limits=attempts.time_limits + (reason in _BY_LIMIT.values()),
        failures=attempts.failures + (reason in _FAILURES),
    )


def attempts_of(
    task: RunningTask,
    agent: Agent | None,
    now: float,
    *,
    evicted: bool = False,
    failed: bool = False,
) -> Attempts:
    """What a task has behind it that ends now; ``agent`` None: it was created elsewhere."""
    before = task.attempts
    if agent is None:
        return before
    ran_s = max(0.0, now - task.started_at) if agent.committed else 0.0
    uncounted = task.is_drained or task.reached_limit
    return msgspec.structs.replace(
        before,
        arrived_at=agent.admitted_at if before.arrived_at is None else before.arrived_at,
        preemptions=before.preemptions + (evicted and not uncounted),
        failures=before.failures + failed,
        drains=before.drains + (evicted and task.is_drained),
        time_limits=before.time_limits + (evicted and task.reached_limit),
        ran_s=before.ran_s + ran_s,
        gpu_s=before.gpu_s + ran_s * agent.spec.resources.gpu / UNIT,
        has_saved=before.has_saved or task.saved_at is not None,
    )


def _like_members(array_id: str, task_ids: Iterable[str]) -> list[str]:
    """Those of these ids that name members of an array of this id."""
    begin = f"{array_id}["
    return [one for one in task_ids if one.startswith(begin) and members_named(one)]


class Past:
    """Ended and preempted tasks, lost agents and the names of former agents."""

    def __init__(self, dependents: Dependents, arrays: Arrays) -> None:
        #: What the members of arrays do.
        self._arrays = arrays
        #: Tasks that wait for others to end.
        self._dependents = dependents
        #: The last preemptions by task, oldest first.
        self.preempted: dict[str, Preempted] = {}
        #: Agents that were lost and not created again, by name, oldest first.
        self.lost: dict[str, LostAgent] = {}
        #: Which lost agent a task ran on, by task.
        self._lost_with: dict[str, str] = {}
        #: Names of agents that have ended, oldest first.
        self.former: OrderedDict[str, None] = OrderedDict()
        #: Tasks that have ended, by id, oldest first.
        self.ended: dict[str, EndedTask] = {}
        #: Preemptions so far, by the pool of the evicted task and the reason.
        self.preemptions: dict[tuple[str, PreemptionReason], int] = {}
        #: How long completed tasks ran.
        self.estimates = Estimates()

    @property
    def preemption_counts(self) -> dict[PreemptionReason, int]:
        """Preemptions so far, by reason."""
        counts: dict[PreemptionReason, int] = {}
        for (_, reason), count in self.preemptions.items():
            counts[reason] = counts.get(reason, 0) + count
        return counts

    def note_preempted(self, task: RunningTask, fact: TaskPreempted, kind: str) -> None:
        """Remember a preemption; only those that count are in the statistics. The task has ended unless it
        joins the queue again. ``kind``: what its agent is.
        """
        if fact.counted:
            key = (fact.task.pool_name, fact.reason)
            self.preemptions[key] = self.preemptions.get(key, 0) + 1
        reason = _BY_LIMIT.get(fact.reason, TaskEndReason.PREEMPTED)
        self.note_ended(
            EndedTask(
                spec=fact.task,
                agent_name=fact.agent_name,
                kind=kind,
                state=EndState.CANCELLED,
                at=fact.at,
                reason=reason.value,
                attempts=_counted(task.attempts, reason),
            )
        )
        self.preempted.pop(fact.task.task_id, None)
        self.preempted[fact.task.task_id] = Preempted(fact=fact, state_key=task.state_key)
        if len(self.preempted) > RECENT:
            del self.preempted[next(iter(self.preempted))]

    def note_ended(self, ended: EndedTask) -> None:
        """Remember a task that has ended."""
        self.ended[ended.spec.task_id] = ended
        if self._dependents.by_task:
            self._dependents.note_end(ended.spec.task_id, ended.state)
        if ended.spec.array_id:
            self._arrays.note_end(ended.spec, ended.state)
        if len(self.ended) > ENDED:
            oldest = self.ended.pop(next(iter(self.ended)))
            if oldest.spec.array:
                self._arrays.forget(oldest.spec.task_id)

    def note_task_ended(self, task: RunningTask, fact: TaskEnded, kind: str) -> None:
        """Remember a task that has ended while its agent, which is of this kind, existed."""
        self._learn(task, fact.state, fact.at)
        reason, attempts = fact.reason, task.attempts
        self.note_ended(
            EndedTask(
                spec=task.spec,
                agent_name=task.agent_name,
                kind=kind,
                state=fact.state,
                at=fact.at,
                reason="" if reason is None else reason.value,
                error=fact.error,
                result_key=fact.result_key,
                attempts=attempts if reason is None else _counted(attempts, reason),
            )
        )

    def note_cancelled(self, task: QueuedTask, fact: TaskCancelled) -> None:
        """Remember a task that ended in the queue."""
        self.note_ended(
            EndedTask(
                spec=task.spec,
                agent_name=task.submission.agent.name,
                kind=task.submission.agent.kind,
                state=end_in_queue(fact.reason),
                at=fact.at,
                reason=fact.reason.value,
                error=fact.error,
                attempts=task.attempts,
            )
        )

    def note_array_ended(self, array: TaskArray, fact: ArrayEnded) -> None:
        """Remember an array of which all members have ended."""
        completed = fact.state is EndState.COMPLETED
        self.note_ended(
            EndedTask(
                spec=array.spec,
                agent_name=array.agent_name,
                kind=array.kind,
                state=fact.state,
                at=fact.at,
                reason="" if completed else TaskEndReason.MEMBERS_NOT_COMPLETED.value,
                error=fact.error,
            )
        )

    def note_ended_with_agent(self, task: RunningTask, fact: AgentEnded, kind: str) -> None:
        """Remember a task that was left when its agent, which was of this kind, ended."""
        state, reason = WITH_AGENT[fact.reason]
        self._learn(task, state, fact.at)
        self.note_ended(
            EndedTask(
                spec=task.spec,
                agent_name=fact.agent_name,
                kind=kind,
                state=state,
                at=fact.at,
                reason="" if reason is None else reason.value,
                error=fact.error,
                state_key=task.state_key if fact.reason is EndReason.START_FAILED else None,
                attempts=_counted(task.attempts, reason),
            )
        )

    def _learn(self, task: RunningTask, state: EndState, at: float) -> None:
        """Learn how long a completed task ran, in all attempts; an extra member ends with its gang."""
        if (
            state is not EndState.COMPLETED
            or task.phase is TaskPhase.STARTING
            or task.spec.extra_of
        ):
            return
        ran_s = task.attempts.ran_s + max(0.0, at - task.started_at)
        self.estimates.learn(TaskKind.of(task.spec, task.resources), ran_s)

    def failed_since(self, at: float) -> int:
        """How many tasks have failed after this time, of those that are still on record."""
        count = 0
        for ended in reversed(self.ended.values()):
            if ended.at <= at:
                break
            count += ended.state is EndState.FAILED
        return count

    def forget_ended(self, task_id: str) -> None:
        """A task of this id exists again."""
        if self._arrays.by_id:
            self._arrays.note_alive(task_id)
        past = self.ended.pop(task_id, None)
        if past is not None and past.spec.array:
            self._arrays.forget(task_id)
        self._dependents.ended.pop(task_id, None)

    def forget_members(self, array_id: str) -> None:
        """An array of this id waits: former tasks with ids such as its members have are not its own."""
        for task_id in _like_members(array_id, self.ended):
            self.forget_ended(task_id)
        for task_id in _like_members(array_id, self.preempted):
            self.note_running(task_id)
        for task_id in _like_members(array_id, self._lost_with):
            self._forget_lost_task(task_id)

    def note_queued(self, task_id: str) -> None:
        """A task of this id waits in the queue, so it is not rebuilt with an agent that was lost."""
        self.forget_ended(task_id)
        self._forget_lost_task(task_id)

    def note_final(self, ended_id: str) -> None:
        """A task goes by the end of this task or array: an eviction that was the end of it, or of a member,
        stays one, even where it was in vain.
        """
        members = _like_members(ended_id, self.preempted) if ended_id in self._arrays.by_id else ()
        for task_id in (ended_id, *members):
            past = self.preempted.get(task_id)
            if past is not None:
                self.preempted[task_id] = msgspec.structs.replace(past, is_final=True)

    def note_lost(self, lost: LostAgent) -> None:
        """Remember a lost agent. A task that was lost with another one before belongs to this one now."""
        self._forget_lost(lost.spec.name)
        for task, _ in lost.tasks:
            self._forget_lost_task(task.task_id)
        self.lost[lost.spec.name] = lost
        for task, _ in lost.tasks:
            self._lost_with[task.task_id] = lost.spec.name
        if len(self.lost) > RECENT:
            self._forget_lost(next(iter(self.lost)))

    def note_former(self, agent_name: str) -> None:
        """Remember the name of an agent that has ended."""
        self.former[agent_name] = None
        self.former.move_to_end(agent_name)
        if len(self.former) > FORMER:
            self.former.popitem(last=False)

    def note_running(self, task_id: str) -> None:
        """The task runs again: what was kept to restore it is no longer needed."""
        past = self.preempted.get(task_id)
        if past is not None and not past.ran_again:
            self.preempted[task_id] = msgspec.structs.replace(past, ran_again=True)
        if task_id in self._lost_with:
            self._forget_lost_task(task_id)

    def forget_agent(self, agent_name: str) -> None:
        """An agent of this name exists again."""
        if agent_name in self.lost:
            self._forget_lost(agent_name)
        self.former.pop(agent_name, None)

    def forget_states(self, state_keys: frozenset[str]) -> None:
        """These saved states and results are no longer kept; the tasks stay on record without."""
        for task_id, past in self.preempted.items():
            if past.state_key in state_keys:
                self.preempted[task_id] = msgspec.structs.replace(past, state_key=None)
        for name, lost in self.lost.items():
            tasks = tuple((task, None if key in state_keys else key) for task, key in lost.tasks)
            self.lost[name] = msgspec.structs.replace(lost, tasks=tasks)
        for task_id, ended in self.ended.items():
            if ended.result_key in state_keys:
                self.ended[task_id] = msgspec.structs.replace(ended, result_key=None, expired=True)
            elif ended.state_key in state_keys:
                self.ended[task_id] = msgspec.structs.replace(ended, state_key=None)

    def _forget_lost(self, agent_name: str) -> None:
        lost = self.lost.pop(agent_name, None)
        for task, _ in () if lost is None else lost.tasks:
            if self._lost_with.get(task.task_id) == agent_name:
                del self._lost_with[task.task_id]

    def _forget_lost_task(self, task_id: str) -> None:
        agent_name = self._lost_with.pop(task_id, None)
        if agent_name is not None:
            lost = self.lost[agent_name]
            remaining_tasks = tuple(entry for entry in lost.tasks if entry[0].task_id != task_id)
            if remaining_tasks:
                self.lost[agent_name] = msgspec.structs.replace(lost, tasks=remaining_tasks)
            else:
                del self.lost[agent_name]
