"""Derives the history from facts: attempts, events and the use of resources.

What it remembers of earlier facts are the attempts that are still open, and the nodes; both are in the
tables, so it continues after a restart where the tables are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from schedulemesh.domain.arrays import member_id
from schedulemesh.domain.end_reasons import EndReason, ReturnReason, TaskEndReason
from schedulemesh.domain.reasons import LIMITS, Reason
from schedulemesh.domain.task import EndState
from schedulemesh.engine.codec import encode_facts
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import limit_facts as limits
from schedulemesh.engine.messages import queue_facts as q
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.job_facts import JobClaimMoved
from schedulemesh.store.history.attempts import (
    PREEMPTING,
    QUEUED,
    RETURNED,
    RUNNING,
    STARTING,
    WITH_AGENT,
    Attempt,
    text_of,
)
from schedulemesh.store.history.cluster_events import ClusterEvents
from schedulemesh.store.history.events import Event, SeenNode
from schedulemesh.store.history.usage import Booking

#: Reasons for which a task that waits is removed from the queue other than by a failure.
_CANCELLED = frozenset(
    (
        Reason.CANCELLED,
        Reason.DEPENDENCY_NOT_MET,
        Reason.IMPOSSIBLE,
        Reason.POOL_ENDING,
        Reason.WAIT_TIMEOUT,
    )
)
#: Why an agent is being ended. A start is ended only for an owner of quota; others fail by themselves.
_ENDING = {reason: text for reason, (_, text) in WITH_AGENT.items()} | {
    EndReason.START_FAILED: ReturnReason.QUOTA_TAKEN_BACK.value
}


class Fold:
    """The open attempts, and what has changed since ``saved``. ``add`` takes facts in their order."""

    def __init__(
        self,
        attempts: Iterable[Attempt] = (),
        nodes: dict[str, SeenNode] | None = None,
        *,
        next_attempt: int = 1,
        next_event: int = 1,
        at: float = 0.0,
    ) -> None:
        self.next_attempt, self.next_event = next_attempt, next_event
        #: By node id.
        self.nodes = {} if nodes is None else nodes
        #: The attempt of each task that has not ended, by task.
        self.tasks: dict[str, Attempt] = {}
        #: The attempts on each agent that have not ended, and the one that its use of resources is counted
        #: for, by agent.
        self.on_agent: dict[str, list[Attempt]] = {}
        self.charged: dict[str, Attempt] = {}
        #: The time of the last fact that has one.
        self.at = at
        #: What is to be written: attempts by id, those of them that are new, events, steps that
        #: are no events, nodes and sums.
        self.changed: dict[int, Attempt] = {}
        self.new: set[int] = set()
        self.events: list[Event] = []
        self.steps: list[Event] = []
        self.changed_nodes: set[str] = set()
        self.booking = Booking()
        for attempt in attempts:
            self._adopt(attempt)
        self._apply: dict[type[Fact], Callable[[Any], None]] = {
            q.TaskQueued: self._task_queued,
            q.QueuePlaceChanged: self._queue_place_changed,
            q.PriorityChanged: self._priority_changed,
            q.DependencyEnded: self._dependency_ended,
            q.ArrayMembersSplit: self._members_split,
            q.ArrayMembersCancelled: self._members_cancelled,
            q.ArrayEnded: self._array_ended,
            q.TaskCancelled: self._task_cancelled,
            f.AgentAdmitted: self._agent_admitted,
            f.AgentStarted: self._agent_started,
            f.AgentProcessRestarted: self._agent_restarted,
            JobClaimMoved: self._claim_moved,
            f.AgentEnding: self._agent_ending,
            f.AgentEnded: self._agent_ended,
            f.TaskRegistered: self._task_registered,
            f.TaskEnded: self._task_ended,
            f.EvictionStarted: self._eviction_started,
            f.StateSaved: self._state_saved,
            f.WorkSaved: self._state_saved,
            f.SavingFailed: self._saving_failed,
            f.TaskPreempted: self._task_preempted,
            f.EvictionFailed: self._eviction_failed,
            limits.TimeLimitNear: self._time_limit_near,
            limits.TimeLimitChanged: self._time_limit_changed,
            limits.IdleLimitNear: self._idle_limit_near,
            limits.IdleLimitCleared: self._idle_limit_cleared,
            **ClusterEvents(self).updates,
        }

    def add(self, fact: f.AnyFact) -> None:
        """Note what a fact changes."""
        if not isinstance(fact, q.StartReserved):  # its time is that of a future start
            self.at = getattr(fact, "at", None) or self.at
        apply = self._apply.get(type(fact))
        if apply is not None:
            apply(fact)

    def saved(self) -> None:
        """Everything noted so far is in the tables."""
        self.changed, self.new, self.events, self.steps = {}, set(), [], []
        self.changed_nodes, self.booking = set(), Booking()

    def event(
        self,
        kind: str,
        attempt: Attempt | None,
        subject: str = "",
        fact: f.AnyFact | None = None,
        **detail: object,
    ) -> None:
        """Note an event now. Empty details are left out. ``fact``: what a rehearsal needs of it."""
        details = {name: value for name, value in detail.items() if value not in (None, "", ())}
        self.events.append(
            self._numbered(
                kind=kind,
                attempt=None if attempt is None else attempt.id,
                subject=subject,
                detail=text_of(details),
                fact="" if fact is None else encode_facts((fact,)).decode(),
            )
        )

    def step(self, kind: str, **fields: str) -> None:
        """Note a step now that is no event; it has a number in the sequence of events."""
        self.steps.append(self._numbered(kind=kind, **fields))

    def _numbered(self, **fields: Any) -> Event:
        self.next_event += 1
        return Event(number=self.next_event - 1, at=self.at, **fields)

    def rename_pool(self, name: str, new_name: str) -> None:
        """Have the open attempts of a pool be of its new name."""
        waiting, running = self.tasks.values(), self.charged.values()
        on_agents = (one for attempts in self.on_agent.values() for one in attempts)
        for attempt in (*waiting, *running, *on_agents):
            if attempt.pool_name == name:
                attempt.pool_name = new_name
                self.touch(attempt)

    def begin(self, **fields: Any) -> Attempt:
        """A new attempt."""
        attempt = Attempt(id=self.next_attempt, **fields)
        self.next_attempt += 1
        self.new.add(attempt.id)
        self.touch(attempt)
        return attempt

    def touch(self, attempt: Attempt) -> None:
        """Have an attempt written."""
        self.changed[attempt.id] = attempt

    def end(
        self,
        attempt: Attempt,
        state: str,
        reason: str = "",
        error: str = "",
        *,
        kind: str = "",
        counts: bool = True,
    ) -> None:
        """A task has ended now. ``kind``: of the event; empty: that of the state. ``counts``: whether usage
        counts it, as it does the members of an array in place of that.
        """
        if attempt.has_ended:
            return
        attempt.state, attempt.reason, attempt.error = state, reason, error
        attempt.ended_at = self.at
        if self.tasks.get(attempt.task_id) is attempt:
            del self.tasks[attempt.task_id]
        self._leave(attempt)
        if attempt.task_id and counts:
            self.booking.end(attempt)
        self.event(kind or state, attempt, reason=reason, error=error)
        self._close_if_over(attempt)

    def release(self, attempt: Attempt) -> None:
        """What an attempt held is free, or counted for another one from now on."""
        self.charged.pop(attempt.agent_name, None)
        attempt.charged, attempt.released_at = False, self.at
        self.booking.release(attempt)
        self._close_if_over(attempt)

    def place(self, attempt: Attempt, agent_name: str) -> None:
        """An attempt is on an agent from now on."""
        attempt.agent_name = agent_name
        self.on_agent.setdefault(agent_name, []).append(attempt)

    def charge(self, attempt: Attempt) -> None:
        """The use of its agent's resources is counted for this attempt from now on."""
        attempt.charged = True
        self.charged[attempt.agent_name] = attempt

    def _leave(self, attempt: Attempt) -> None:
        """An attempt is on its agent no longer."""
        others = self.on_agent.get(attempt.agent_name, [])
        if attempt in others:
            others.remove(attempt)
            if not others:
                del self.on_agent[attempt.agent_name]

    def _adopt(self, attempt: Attempt) -> None:
        """An attempt that the tables have."""
        if attempt.task_id and not attempt.has_ended:
            self.tasks[attempt.task_id] = attempt
        if attempt.admitted_at is not None and not attempt.has_ended:
            self.on_agent.setdefault(attempt.agent_name, []).append(attempt)
        if attempt.charged:
            self.charged[attempt.agent_name] = attempt

    def _close_if_over(self, attempt: Attempt) -> None:
        if attempt.has_ended and not attempt.charged:
            attempt.open = False
        self.touch(attempt)

    # -- the queue ----------------------------------------------------------------------------------------

    def _task_queued(self, fact: q.TaskQueued) -> None:
        submission, attempts = fact.submission, fact.attempts
        arrived = attempts.arrived_at
        attempt = self.begin(
            number=attempts.number,
            client=submission.client or "",
            submitted_at=fact.at if arrived is None else arrived,
            queued_at=fact.at,
        )
        attempt.describe(submission.task, submission.agent)
        self.tasks[attempt.task_id] = attempt
        if arrived is None:
            self.event("queued", attempt, fact=fact)
        else:
            self.event("requeued", attempt)

    def _queue_place_changed(self, fact: q.QueuePlaceChanged) -> None:
        attempt = self.tasks.get(fact.task_id)
        if attempt is None:
            return
        before, attempt.priority = attempt.priority, fact.priority
        self.touch(attempt)
        was_held = attempt.reason == Reason.HELD_BY_USER.value
        if fact.held != was_held:
            attempt.reason = Reason.HELD_BY_USER.value if fact.held else ""
            self.event("held" if fact.held else "released", attempt, fact=fact)
        elif fact.priority != before:
            self.event(
                "priority_changed", attempt, fact=fact, before=before, priority=fact.priority
            )
        else:
            self.event("moved_to_front", attempt, fact=fact)

    def _priority_changed(self, fact: q.PriorityChanged) -> None:
        attempt = self.tasks.get(fact.task_id)
        if attempt is None:
            return
        before, attempt.priority = attempt.priority, fact.priority
        self.touch(attempt)
        self.event("priority_changed", attempt, fact=fact, before=before, priority=fact.priority)

    def _dependency_ended(self, fact: q.DependencyEnded) -> None:
        """Tasks come in the queue as if they were submitted now, and have waited for others until now."""
        for task_id in fact.ready:
            attempt = self.tasks.get(task_id)
            if attempt is not None:
                attempt.queued_at = fact.at
                self.touch(attempt)
                self.event("dependencies_met", attempt, after=fact.task_id)

    def _members_split(self, fact: q.ArrayMembersSplit) -> None:
        """Members of an array are tasks from now on, which have waited with it."""
        array = self.tasks.get(fact.array_id)
        for index in fact.indices if array is not None else ():
            if array is not None:
                member = self.begin(**array.as_member(member_id(fact.array_id, index)))
                self.tasks[member.task_id] = member
                self.event("split", member, array=fact.array_id)

    def _members_cancelled(self, fact: q.ArrayMembersCancelled) -> None:
        """Members of an array that were no tasks never start."""
        array = self.tasks.get(fact.array_id)
        if array is not None:
            detail = {"indices": fact.indices, "reason": fact.reason.value}
            self.event("members_cancelled", array, fact=fact, **detail)

    def _array_ended(self, fact: q.ArrayEnded) -> None:
        array = self.tasks.get(fact.array_id)
        if array is not None:
            completed = fact.state is EndState.COMPLETED
            reason = "" if completed else TaskEndReason.MEMBERS_NOT_COMPLETED.value
            self.end(array, fact.state.value, reason, fact.error, counts=False)

    def _task_cancelled(self, fact: q.TaskCancelled) -> None:
        attempt = self.tasks.get(fact.task_id)
        if attempt is not None:
            state = "cancelled" if fact.reason in _CANCELLED else "failed"
            self.end(attempt, state, fact.reason.value, fact.error)

    def waits(self, attempt: Attempt, reason: str) -> None:
        """Why a task waits now; an event only where that is another reason than before."""
        if attempt.state == QUEUED and attempt.reason != reason:
            attempt.reason = reason
            self.touch(attempt)
            self.event("waiting", attempt, reason=reason)

    # -- agents --------------------------------------------------------------------------------------------

    def _agent_admitted(self, fact: f.AgentAdmitted) -> None:
        spec, task = fact.agent, fact.task
        attempt = None if task is None else self.tasks.get(task.task_id)
        waited = attempt is not None
        if attempt is None:
            arrived_at = fact.attempts.arrived_at
            attempt = self.begin(
                number=fact.attempts.number,
                submitted_at=fact.at if arrived_at is None else arrived_at,
                queued_at=fact.at,
            )
            if task is not None:
                self.tasks[task.task_id] = attempt
        attempt.describe(task, spec)
        attempt.alternative, attempt.flavor = spec.taken, spec.taken_flavor
        attempt.admitted_at, attempt.state, attempt.reason = fact.at, STARTING, ""
        self.touch(attempt)
        self.place(attempt, spec.name)
        self.charge(attempt)
        victims = [victim.task_id for victim in fact.evicting]
        noted_fact = None if waited else fact
        self.event("admitted", attempt, fact=noted_fact, evicting=victims or None)

    def _agent_started(self, fact: f.AgentStarted) -> None:
        members = [m.node_id for m in fact.members] or [fact.node_id]
        node_ids = [node_id for node_id in dict.fromkeys(members) if node_id]
        for attempt in self.on_agent.get(fact.agent_name, ()):
            if attempt.state != STARTING:
                continue
            attempt.state, attempt.started_at = RUNNING, fact.at
            attempt.restored = fact.state_restored
            attempt.nodes = text_of([self.node(node_id).id for node_id in node_ids])
            self.touch(attempt)
            if attempt.task_id:
                self.booking.start(attempt)
            self.event("started", attempt, fact=fact, restored=fact.state_restored)

    def _agent_restarted(self, fact: f.AgentProcessRestarted) -> None:
        for attempt in self.on_agent.get(fact.agent_name, ()):
            self.event("restarted", attempt)

    def _claim_moved(self, fact: JobClaimMoved) -> None:
        attempt = self.charged.get(fact.agent_name)
        if attempt is not None:
            self.event("claim_moved", attempt, fact=fact, nodes=[node for node, _ in fact.parts])

    def _agent_ending(self, fact: f.AgentEnding) -> None:
        """The agent is terminated before its tasks have ended; that of evictions is an event already."""
        for attempt in self.on_agent.get(fact.agent_name, ()):
            if attempt.state != PREEMPTING and fact.reason is not EndReason.PREEMPTED:
                self.event("ending", attempt, reason=_ENDING[fact.reason])

    def _agent_ended(self, fact: f.AgentEnded) -> None:
        state, reason = WITH_AGENT[fact.reason]
        returned = fact.returned
        for attempt in self.on_agent.pop(fact.agent_name, ()):
            if returned is not None and returned.task_id == attempt.task_id:
                self.end(attempt, RETURNED, returned.reason.value, str(fact.error))
            else:
                self.end(attempt, state, reason, str(fact.error))
        holder = self.charged.get(fact.agent_name)
        if holder is not None:
            self.release(holder)

    # -- tasks ---------------------------------------------------------------------------------------------

    def _task_registered(self, fact: f.TaskRegistered) -> None:
        runs = self._registered_on(fact)
        attempt = self.begin(
            submitted_at=fact.at,
            queued_at=fact.at,
            admitted_at=fact.at,
            started_at=fact.at if runs else None,
            state=RUNNING if runs else STARTING,
        )
        attempt.describe(fact.task, None)
        self.tasks[attempt.task_id] = attempt
        holder = self.charged.get(fact.agent_name)
        self.place(attempt, fact.agent_name)
        if holder is not None:
            attempt.nodes = holder.nodes
            if not holder.task_id:
                self._take_over(holder, attempt)
        if runs:
            self.booking.start(attempt)
        self.event("registered", attempt, agent_name=fact.agent_name)

    def _registered_on(self, fact: f.TaskRegistered) -> bool:
        """Whether the agent runs; one that is not known is taken to."""
        holder = self.charged.get(fact.agent_name)
        return holder is None or holder.started_at is not None

    def _take_over(self, holder: Attempt, attempt: Attempt) -> None:
        """The first task that is registered on an agent without one is charged for it from now on."""
        attempt.cpu, attempt.memory, attempt.gpu = holder.cpu, holder.memory, holder.gpu
        attempt.custom = holder.custom
        attempt.pool_name = attempt.pool_name or holder.pool_name
        holder.state, holder.ended_at = "completed", self.at
        self._leave(holder)
        self.release(holder)
        self.charge(attempt)

    def _task_ended(self, fact: f.TaskEnded) -> None:
        attempt = self.tasks.get(fact.task_id)
        if attempt is not None:
            attempt.forget_eviction()
            reason = "" if fact.reason is None else fact.reason.value
            self.end(attempt, fact.state.value, reason, fact.error)

    def _eviction_started(self, fact: f.EvictionStarted) -> None:
        attempt = self.tasks.get(fact.task_id)
        if attempt is None:
            return
        attempt.state, attempt.evicted_at = PREEMPTING, fact.at
        attempt.rule, attempt.by_client = fact.reason.value, fact.client
        attempt.save_error = ""
        by = self.charged.get(fact.for_agent or "")
        if by is not None:
            attempt.by_task, attempt.by_agent = by.task_id, by.agent_name
            attempt.by_pool, attempt.by_owner = by.pool_name, by.owner
        self.touch(attempt)
        self.event(
            "preempting",
            attempt,
            rule=attempt.rule,
            by_task=attempt.by_task,
            by_pool=attempt.by_pool,
            by_owner=attempt.by_owner,
            by_client=attempt.by_client,
            score=fact.preempt_score,
        )

    def _state_saved(self, fact: f.StateSaved | f.WorkSaved) -> None:
        attempt, saved_at = self.tasks.get(fact.task_id), fact.work_saved_at
        if attempt is None or saved_at is None:
            return
        attempt.saved_at = saved_at
        self.touch(attempt)
        if attempt.state == PREEMPTING and saved_at >= (attempt.evicted_at or 0.0):
            self.event("saved", attempt)

    def _saving_failed(self, fact: f.SavingFailed) -> None:
        attempt = self.tasks.get(fact.task_id)
        if attempt is not None:
            attempt.save_error = fact.error
            self.touch(attempt)
            self.event("not_saved", attempt, error=fact.error)

    def _task_preempted(self, fact: f.TaskPreempted) -> None:
        attempt = self.tasks.get(fact.task.task_id)
        if attempt is None:
            return
        attempt.save_error = fact.save_error
        if fact.reason in LIMITS:
            reason = fact.reason.value
            self.end(attempt, "cancelled", reason, kind=f"{reason}_reached")
            return
        attempt.lost_s = attempt.lost_by_eviction()
        self.end(attempt, "preempted" if fact.counted else "cancelled", fact.reason.value)

    def _eviction_failed(self, fact: f.EvictionFailed) -> None:
        attempt = self.tasks.get(fact.task_id)
        if attempt is not None:
            attempt.state = RUNNING
            attempt.forget_eviction()
            self.touch(attempt)
            self.event("eviction_failed", attempt)

    # -- limits in time ------------------------------------------------------------------------------------

    def _time_limit_near(self, fact: limits.TimeLimitNear) -> None:
        attempt = self.tasks.get(fact.task_id)
        if attempt is not None:
            self.event("time_limit_soon", attempt, limit_at=fact.limit_at)

    def _time_limit_changed(self, fact: limits.TimeLimitChanged) -> None:
        attempt = self.tasks.get(fact.task_id)
        if attempt is not None:
            attempt.max_run_s = fact.max_run_s
            self.touch(attempt)
            self.event("time_limit_changed", attempt, fact=fact, max_run_s=fact.max_run_s)

    def _idle_limit_near(self, fact: limits.IdleLimitNear) -> None:
        attempt = self.tasks.get(fact.task_id)
        if attempt is not None:
            self.event("idle_limit_soon", attempt, since=fact.since, limit_at=fact.limit_at)

    def _idle_limit_cleared(self, fact: limits.IdleLimitCleared) -> None:
        attempt = self.tasks.get(fact.task_id)
        if attempt is not None:
            self.event("idle_limit_cleared", attempt)

    # -- the cluster ----------------------------------------------------------------------------------------

    def node(self, node_id: str) -> SeenNode:
        """A node, by which attempts refer to it."""
        node = self.nodes.get(node_id)
        if node is None:
            node = self.nodes[node_id] = SeenNode(id=len(self.nodes) + 1, present=False)
            self.changed_nodes.add(node_id)
        return node
