"""The virtual world of a rehearsal: a production engine, and a backend that takes as long as recorded.

What happened from outside (submissions, cancellations, nodes, definitions) happens at its recorded time. What
the runtime reported is reported as long after its cause as in the history; where the history has no such
action, after the median of those that it has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf

from schedulemesh.domain.agent import MemberProcess
from schedulemesh.domain.arrays import member_id
from schedulemesh.domain.end_reasons import ReturnReason
from schedulemesh.domain.reasons import LIMITS, Reason
from schedulemesh.domain.sentences import Text, say
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.admission.dependencies import with_known_dependencies
from schedulemesh.engine.admission.revocations import WHY
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import instructions as i
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import ProbeNeeded, Refused
from schedulemesh.engine.messages.queue_facts import ArrayMembersSplit, TaskQueued
from schedulemesh.engine.transaction import Step
from schedulemesh.sim.rehearsal.life import End, Life
from schedulemesh.sim.rehearsal.recording import RecordedSubmission, Recording
from schedulemesh.sim.rehearsal.reported import Reported
from schedulemesh.sim.rehearsal.restarts import AgentKey, Ordered, read_again, recovery_observed
from schedulemesh.sim.rehearsal.typical import Typical, Victims, typical
from schedulemesh.sim.submission import Submissions
from schedulemesh.sim.timing import Timing
from schedulemesh.sim.world import Rank, World
from schedulemesh.store.history.attempts import RETURNED, Attempt
from schedulemesh.store.history.fold import Fold

#: The numbers of events that the history does not have: they follow those of the same time that it has.
_UNRECORDED = 10**18
#: The numbers between those of two events of the history.
_PLACES = 10**9
#: Seconds that placement groups may take to be created or removed.
_GROUP_S = 60.0
#: Events that are decisions about who runs.
_DECISIONS = frozenset(("admitted", "preempting"))


class Ticks:
    """When the supervisor of a rehearsal observes the cluster, and looks for evictions for queued tasks.

    A history has the ticks that decided something (``recorded``: their times). As long as a rehearsal decides
    the same, it needs no others. Afterwards it ticks in between, too: every ``period_s``, counted from the
    nearest tick of the history.
    """

    def __init__(self, recorded: list[float], begin: float, period_s: float) -> None:
        self._recorded, self._begin, self._period_s = recorded, begin, period_s

    def after(self, time: float) -> float:
        """The first tick after a time."""
        next_one = bisect_right(self._recorded, time)
        neighbours = self._recorded[max(0, next_one - 1) : next_one + 1] or [self._begin]
        anchor = min(neighbours, key=lambda one: abs(one - time))
        period = self._period_s
        at = anchor + ((time - anchor) // period + 1) * period
        if next_one < len(self._recorded) and at > self._recorded[next_one] - period / 2:
            return self._recorded[next_one]
        return at


class RehearsedWorld(World):
    """One engine that decides, a history of what it decides, and everything outside of it."""

    def __init__(self, engine: Engine, recording: Recording, timing: Timing, begin: float) -> None:
        super().__init__(engine, {}, Submissions(()), timing, begin)
        self._number = _UNRECORDED
        self.fold = Fold(next_attempt=min(recording.attempts, default=1))
        self._lives: dict[str, Life] = {}
        attempts = recording.attempts.values()
        self._victims = Victims(attempts)
        self._typical: Typical = typical(attempts, self._victims, timing)
        ticks = [event.at for event in recording.events if event.kind == "ticked"]
        self._ticks = Ticks(ticks, begin, timing.tick_s)
        #: What was decided, in this order; None: something else has been decided since, or may be.
        self._expected: Iterator[tuple[str, int | None]] | None = iter(
            [(event.kind, event.attempt) for event in recording.events if event.kind in _DECISIONS]
        )
        #: Events of the fold that were compared with these.
        self._compared = 0
        self._reported = Reported(recording.events)
        #: The submissions that the engine makes by itself, by key.
        self._by_engine: dict[str, list[RecordedSubmission]] = {}
        #: Agents that were found dead after restarts of the supervisor, by the time of that.
        self._dead: dict[float, set[AgentKey]] = {}
        #: What was ordered before the restart that this step belongs to; None: it belongs to none.
        self._ordered: Ordered | None = None
        #: Submissions that were refused; which was the first, and why.
        self.refused = 0
        self.first_refusal: Text = ""
        #: Whether what there is when the recording begins is still being defined.
        self._is_defining = True

    # time

    def recorded_at(self, time: float, number: int | None, event: Callable[[], None]) -> None:
        """Have an event happen at a time, in the order of the numbers of recorded events."""
        if number is None:
            self.at(time, event)
        else:
            self._number += 1  # several may belong to one event
            place = number * _PLACES + self._number - _UNRECORDED
            heappush(self._events, (time, Rank.REPORT, place, event))

    def run_until(self, end: float) -> None:
        """Let time pass up to a moment."""
        events, self._is_defining = self._events, False
        while events and events[0][0] <= end:
            self.now, _, _, event = heappop(events)
            event()
        self.now = end

    def handle(self, stimulus: s.AnyStimulus) -> Step:
        """One step of the engine, whose facts are noted and whose instructions are carried out."""
        self.steps += 1
        step = self.engine.handle(stimulus, self.now)
        for fact in step.facts:
            self.fold.add(fact)
            self._follow(fact)
        for instruction in step.instructions:
            if self._ordered is None or not self._ordered.has(instruction):
                self._carry_out(instruction)
        self._compare()
        if step.facts:
            self._plan_tick(step)
        if self.engine.state.drains or self.engine.state.ledger.holds:
            self._tick_by(self.now)
        return step

    # ticks

    def tick(self) -> None:
        """A tick of the history."""
        self._tick_at = self.now
        self._tick(self.now)

    def deviate(self) -> None:
        """From now on another decision than that of the history may be made, also on ticks that it lacks."""
        if self._expected is not None:
            self._expected = None
            self._tick_by(self.now)

    def _compare(self) -> None:
        """Compare what was decided now with the history."""
        for event in self.fold.events[self._compared :]:
            if self._expected is None or event.kind not in _DECISIONS:
                continue
            if next(self._expected, None) != (event.kind, event.attempt):
                self.deviate()
        self._compared = len(self.fold.events)

    def _tick_by(self, time: float) -> None:
        if self._expected is not None:
            return
        at = self._ticks.after(time)
        if self._tick_at is None or at < self._tick_at:
            self._tick_at = at
            self.at(at, lambda: self._tick(at), Rank.TICK)

    # restarts of the supervisor

    def restart(self, began: s.SupervisorBegan) -> None:
        """A supervisor begins with the state that there is."""
        self.engine.state = read_again(self.engine.state)
        self.handle(began)

    def recover(self, number: int) -> None:
        """The supervisor finds what exists still, as it did in the step that ends with this event."""
        state, now = self.engine.state, self.now
        self._ordered = Ordered(state)
        gone = self._reported.found_gone(now, number)
        self.handle(recovery_observed(state, self._dead.pop(now, set()), gone))
        self._ordered = None

    def _gone_at(self, at: float, number: int | None, name: str, incarnation: int) -> None:
        """Have an agent be gone at a time; where a supervisor found that after a restart, have it find so."""
        if at in self._reported.recovered_at:
            self._dead.setdefault(at, set()).add((name, incarnation))
        else:
            self.recorded_at(at, number, lambda: self._ended(name, incarnation))

    # submissions

    def submit_recorded(self, stimulus: s.TaskSubmitted, submission: RecordedSubmission) -> None:
        """Submit what was submitted. What is known of its attempts follows it."""
        stimulus = with_known_dependencies(self.engine.state, stimulus)
        name, key = stimulus.agent.name, submission.key
        before = self._lives.get(name), self._lives.get(key)
        life = self._new_life(submission, stimulus.task, name)
        life.waits = True
        outcome = self.handle(stimulus).outcome
        if isinstance(outcome, ProbeNeeded):
            # A class is loaded before anybody is evicted for it, and its submission is repeated then.
            self.handle(s.ClassProbed(class_key=stimulus.agent.class_key or ""))
            outcome = self.handle(stimulus).outcome
        if life.attempt < 0:
            self.refused += 1
            if isinstance(outcome, Refused) and not self.first_refusal:
                self.first_refusal = say(
                    "refused_task", task=repr(submission.key), error=outcome.error_text
                )
            self._lives.update((k, one) for k, one in zip((name, key), before, strict=True) if one)

    def _new_life(self, submission: RecordedSubmission, task: TaskSpec | None, name: str) -> Life:
        life = Life(submission, task, name)
        self._lives[submission.key] = self._lives[name] = life
        return life

    def _follow(self, fact: f.AnyFact) -> None:
        """Which attempt of a submission is the present one."""
        if isinstance(fact, ArrayMembersSplit):
            array = self.engine.state.arrays.by_id[fact.array_id]
            for index in fact.indices:
                self._member_waits(array.member(index), member_id(array.agent_name, index))
            return
        if isinstance(fact, TaskQueued):
            task, name = fact.submission.task, fact.submission.agent.name
            if task is not None and task.extra_of and fact.attempts.arrived_at is None:
                key = task.task_id
                self._new_life(
                    self._next(key) or RecordedSubmission(key=key, attempts=[]), task, name
                )
            life = self._lives[name]
            life.waits = True
            life.attempt += 1
            life.admitted_at = 0.0
        elif isinstance(fact, f.AgentAdmitted):
            life = self._lives[fact.agent.name]
            if not life.waits:
                # A victim runs again, because what it was evicted for did not start.
                again = self._next(life.submission.key)
                life.attempt += 1
                life = life if again is None else self._new_life(again, fact.task, fact.agent.name)
            life.waits = False
            life.attempt = max(life.attempt, 0)
            life.admitted_at = self.now

    def _member_waits(self, task: TaskSpec, agent_name: str) -> None:
        """A member of an array is a task from now on."""
        submission = self._next(task.task_id) or RecordedSubmission(key=task.task_id, attempts=[])
        life = self._new_life(submission, task, agent_name)
        life.waits, life.attempt = True, 0

    def expect(self, submission: RecordedSubmission) -> None:
        """A submission that the engine makes by itself, in the order in which it does so for each key."""
        self._by_engine.setdefault(submission.key, []).append(submission)

    def _next(self, key: str) -> RecordedSubmission | None:
        """The next of these with a key; None: the history has no further ones."""
        submissions = self._by_engine.get(key)
        return submissions.pop(0) if submissions else None

    def late_s(self, task_id: str) -> float:
        """By how many seconds a task began to work later than in the history; 0: unknown."""
        life = self._lives.get(task_id)
        return 0.0 if life is None else life.late_s

    # the backend

    def _carry_out(self, instruction: i.AnyInstruction) -> None:
        if isinstance(instruction, i.StartAgent):
            self._start(instruction)
        elif isinstance(instruction, i.EvictAgent):
            self._evict(instruction)
        elif isinstance(instruction, i.StopAgent):
            self._stop(instruction)
        elif isinstance(instruction, i.CreateGroup):
            self._create_group(instruction.group_id)
        elif isinstance(instruction, i.RemoveGroup):
            removed = s.GroupGone(group_id=instruction.group_id)
            self._report_group("group_removed", instruction.group_id, removed)
        elif isinstance(instruction, i.ProbeClass):
            self._probe(instruction)
        elif isinstance(instruction, i.EvictTask):
            task_id = instruction.task_id
            self.at(self.now, lambda: self._cancelled(task_id))

    def _create_group(self, group_id: str) -> None:
        """Report that a group was placed; where it was removed before that, its removal is."""
        created = s.GroupCreated(group_id=group_id)
        at, _ = self._reported.groups.get(("group_removed", group_id), (-inf, None))
        stood = self._is_defining or ("group_created", group_id) in self._reported.groups
        if stood or not self.now <= at <= self.now + _GROUP_S:
            self._report_group("group_created", group_id, created)
        elif error := self._reported.not_placed.get(group_id):
            failed = s.GroupCreateFailed(group_id=group_id, error=error)
            self._report_group("group_removed", group_id, failed)

    def _report_group(self, kind: str, group_id: str, report: s.AnyStimulus) -> None:
        """Report what becomes of a group when the history does, or at once."""
        at, number = self._reported.groups.get((kind, group_id), (self.now, None))
        if not self.now <= at <= self.now + _GROUP_S:
            at, number = self.now, None
        self.recorded_at(at, number, lambda: self._report(report))

    def _cancelled(self, task_id: str) -> None:
        """A task was evicted whose agent stays."""
        life = self._lives[task_id]
        life.stops(self.now, saved=life.savable)
        if life.savable:
            self._report(s.StateStored(task_id=task_id, state_key=task_id))
        self._report(s.CancelAnswered(task_id=task_id, cancel_success=True))

    def _probe(self, order: i.ProbeClass) -> None:
        """A class is loaded when it was in the history, and at once where something else is decided."""
        if self._expected is None:
            probed = s.ClassProbed(class_key=order.class_key)
            self.at(self.now, lambda: self._report(probed))

    def _start(self, order: i.StartAgent) -> None:
        life = self._lives[order.agent.name]
        life.starts(order.incarnation, restored=order.state_key is not None)
        recorded = life.recorded
        number: int | None = None
        if recorded is not None and _did_not_start(recorded):
            failed_at = (recorded.ended_at or 0.0) + (
                life.admitted_at - (recorded.admitted_at or 0.0)
            )
            number = self._reported.numbers.get((recorded.id, recorded.state))
            self.recorded_at(
                max(self.now, failed_at), number, lambda: self._start_failed(order, life)
            )
            return
        due = self.now + self._typical.start_s
        if order.state_key is not None:
            due += self._typical.restore_s
        if (
            recorded is not None
            and recorded.started_at is None
            and recorded.admitted_at == life.admitted_at
        ):
            due = max(due, recorded.ended_at or inf)
        if (
            recorded is not None
            and recorded.started_at is not None
            and recorded.admitted_at is not None
        ):
            due = recorded.started_at + (life.admitted_at - recorded.admitted_at)
            if due == recorded.started_at:
                number = self._reported.numbers.get((recorded.id, "started"))
            if due < self.now:
                due = self.now + recorded.started_at - self._victims.ready_at(recorded)
                number = None
        self.recorded_at(due, number, lambda: self._began(order))

    def _start_failed(self, order: i.StartAgent, life: Life) -> None:
        """The start fails as in the history, whose next attempt shows what became of the task."""
        name, incarnation, recorded = order.agent.name, order.incarnation, life.recorded
        following = life.submission.following(life.attempt)
        if recorded is not None and recorded.reason == ReturnReason.ROOM_LOST.value:
            self._report(
                s.AgentStartFailed(
                    agent_name=name,
                    incarnation=incarnation,
                    reason=Reason.AGENT_START_FAILED,
                    error="its node was lost in the history",
                    room_lost=True,
                )
            )
            return
        if recorded is not None and following is not None and following.number > recorded.number:
            # It was tried again: the process died, which counts as a failure.
            self._report(s.AgentGone(agent_name=name, incarnation=incarnation))
            return
        lost = (life.submission.key, self.now) in self._reported.rooms_lost
        no_room = lost or following is not None
        self._report(
            s.AgentStartFailed(
                agent_name=name,
                incarnation=incarnation,
                reason=Reason.CLUSTER_OUT_OF_RESOURCES if no_room else Reason.AGENT_START_FAILED,
                error="it could not be started in the history",
            )
        )

    def _began(self, order: i.StartAgent) -> None:
        life, agent = self._lives[order.agent.name], self.engine.state.agents.get(order.agent.name)
        if agent is None or not life.incarnation == agent.incarnation == order.incarnation:
            return
        recorded = life.recorded
        started = None if recorded is None else self._reported.starts.get(recorded.id)
        if started is not None:
            life.capabilities = started.capabilities
        node_id, gpu_ids, members = self._where(order, started)
        self.handle(
            s.AgentReported(
                agent_name=order.agent.name,
                incarnation=order.incarnation,
                node_id=node_id,
                gpu_ids=gpu_ids,
                members=members,
                capabilities=life.capabilities,
                state_restored=None if order.state_key is None else True,
            )
        )
        self._plan_end(life)

    def _where(
        self, order: i.StartAgent, started: f.AgentStarted | None
    ) -> tuple[str | None, tuple[str, ...], tuple[MemberProcess, ...]]:
        """The node, GPUs and members that an agent reports: those of the history where it is in the same
        place, or where Ray chooses that.
        """
        members, node_id = self._members(order), order.node_id
        if started is not None:
            if members and [m.node_id for m in members] == [m.node_id for m in started.members]:
                members = started.members
            elif not members and node_id in (None, started.node_id):
                return started.node_id, started.gpu_ids, ()
        gpu_ids = members[0].gpu_ids if members else self._gpus(node_id, order.agent.name)
        return node_id, gpu_ids, members

    def _plan_end(self, life: Life) -> None:
        """Plan the end of the work that begins now. Where it ends when it did in the history, its end stands
        at the same place among the events of that time.
        """
        life.runs(self.now)
        end = life.end(self.now)
        if end is None:
            return
        attempt, incarnation = life.recorded, life.incarnation
        at, number, reported = end.at, None, self._reported
        if attempt is not None and attempt.ended_at == end.at:
            kind = "ending" if attempt.id in reported.failed_at else attempt.state
            number = reported.numbers.get((attempt.id, kind))
            at = reported.failed_at.get(attempt.id, end.at)
        if end.state == "lost" and at in reported.recovered_at:
            self._gone_at(at, number, life.agent_name, incarnation)
            return
        self.recorded_at(at, number, lambda: self._work_ended(life, incarnation, end))

    def _work_ended(self, life: Life, incarnation: int, end: End) -> None:
        if life.incarnation != incarnation or not life.is_running:
            return
        life.is_running = False
        if end.state in ("failed", "lost"):
            life.fails()
        self._report(life.end_report(end))

    def _stop(self, order: i.StopAgent) -> None:
        life = self._lives.get(order.agent_name)
        recorded = None if life is None else life.recorded
        due = self.now + self._typical.end_s
        ended_at = (
            None
            if recorded is None
            else self._reported.ending_at.get(recorded.id, recorded.ended_at)
        )
        if recorded is not None and ended_at is not None:
            if recorded.released_at is not None:
                # While it starts it may be told to stop without that being an event: its end is one.
                starts = recorded.started_at is None and self._expected is not None
                late_s = 0.0 if starts else self.now - ended_at
                due = max(self.now, recorded.released_at + late_s)
            elif recorded.open and ended_at == self.now:
                due = inf
        elif recorded is not None and recorded.open and self._expected is not None:
            due = inf  # what the history does not end, ends after it
        name, incarnation = order.agent_name, order.incarnation
        number = None
        if recorded is not None and due == recorded.released_at == recorded.ended_at:
            number = self._reported.numbers.get((recorded.id, recorded.state))
        self._gone_at(due, number, name, incarnation)

    def _ended(self, name: str, incarnation: int) -> None:
        life = self._lives.get(name)
        if life is not None and life.incarnation == incarnation:
            life.is_running = False
        self._report(s.AgentGone(agent_name=name, incarnation=incarnation))

    def _evict(self, order: i.EvictAgent) -> None:
        """Save the state and end the agent: as in the history where it has this eviction at this time, else
        within the medians.
        """
        life, now = self._lives[order.agent_name], self.now
        incarnation, recorded = order.incarnation, life.recorded
        evicted_at = (
            None
            if recorded is None
            else recorded.evicted_at or self._reported.evicted_at.get(recorded.id)
        )
        if recorded is not None and evicted_at == now and (recorded.open or recorded.released_at):
            if recorded.state in ("preempting", "preempted", "cancelled"):
                self._evict_as_recorded(life, recorded)
            name = order.agent_name
            limited = recorded.reason in LIMITS
            kind = f"{recorded.reason}_reached" if limited else "preempted"
            number = self._reported.numbers.get((recorded.id, kind))
            # What the history does not end, ends after it.
            released_at = recorded.released_at or inf
            self._gone_at(released_at, number, name, incarnation)
            return
        saved_at = now + max(order.grace_s, self._typical.save_s)
        self.at(now + order.grace_s, lambda: self._stopped(life, incarnation, saved_at))

    def _evict_as_recorded(self, life: Life, recorded: Attempt) -> None:
        """Have the state saved, or not, when the history had."""
        life.stops_as_recorded()
        if life.task is None:
            return
        task_id, evicted_at, saved_at = (
            life.task.task_id,
            recorded.evicted_at or 0.0,
            recorded.saved_at,
        )
        if saved_at is not None and saved_at >= evicted_at:
            key = f"{task_id}#{life.incarnation}"
            stored = s.StateStored(task_id=task_id, state_key=key)
            number = self._reported.numbers.get((recorded.id, "saved"))
            self.recorded_at(saved_at, number, lambda: self._report(stored))
        failed = s.StateNotSaved(task_id=task_id, error=recorded.save_error)
        for at, number in self._reported.not_saved.get(recorded.id, ()):
            self.recorded_at(at, number, lambda: self._report(failed))

    def _stopped(self, life: Life, incarnation: int, saved_at: float) -> None:
        """The notice is over."""
        name = life.agent_name
        if life.incarnation != incarnation:
            return
        if not life.is_running:
            self._ended(name, incarnation)
            return
        life.stops(self.now, saved=life.savable)
        at = saved_at if life.savable else self.now
        self.at(at, lambda: self._save_ended(life, name, incarnation))

    def _save_ended(self, life: Life, name: str, incarnation: int) -> None:
        """The state is stored, or there is none."""
        task = life.task
        if task is not None and life.savable:
            self._report(s.StateStored(task_id=task.task_id, state_key=f"{name}#{incarnation}"))
        elif task is not None:
            self._report(s.StateNotSaved(task_id=task.task_id, error="it has no save_state"))
        self.at(self.now + self._typical.end_s, lambda: self._ended(name, incarnation))


def _did_not_start(attempt: Attempt) -> bool:
    """Whether a start failed or found no room. One that was cancelled for an owner might have been made."""
    ended_so = attempt.state in ("failed", RETURNED) and attempt.started_at is None
    return ended_so and attempt.error != str(WHY)
