"""The virtual world around an engine: a clock, and a backend that carries out every instruction.

Each instruction is answered later by the stimulus with which the runtime reports its result. Events of the
same time happen in the order of ``Rank``, then in the order in which they were planned; nothing is random.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from heapq import heappop, heappush

from typing_extensions import assert_never

from schedulemesh.domain.agent import MemberProcess
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import LIMITS
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.lifecycle.windows import window_times
from schedulemesh.engine.messages import instructions as i
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.queue_facts import (
    ArrayMembersCancelled,
    ReservationDropped,
    StartReserved,
    TaskCancelled,
)
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.transaction import Step
from schedulemesh.errors import ScheduleMeshError
from schedulemesh.sim.deadlines import next_deadline
from schedulemesh.sim.jobs import Job
from schedulemesh.sim.node_changes import NodeChange
from schedulemesh.sim.runs import Run
from schedulemesh.sim.submission import Submissions
from schedulemesh.sim.timing import Timing


class Rank(IntEnum):
    """The order of events of the same time."""

    #: What nodes and the backend report.
    REPORT = 0
    SUBMISSION = 1
    TICK = 2


_RESERVATIONS = (StartReserved, ReservationDropped)


class SimulationError(ScheduleMeshError):
    """The simulated work cannot go on."""


class World:
    """One engine, and everything outside of it."""

    def __init__(
        self,
        engine: Engine,
        runs: Mapping[str, Run],
        submissions: Submissions,
        timing: Timing,
        begin: float,
        cluster: Iterable[NodeReport] = (),
    ) -> None:
        #: ``cluster``: the nodes that there are at the start.
        self.engine = engine
        self.now = begin
        self.steps = 0
        self._runs = runs
        self._submissions = submissions
        self._timing = timing
        self._begin = begin
        self._events: list[tuple[float, int, int, Callable[[], None]]] = []
        self._number = 0
        #: When the next tick is planned; None: none is.
        self._tick_at: float | None = None
        #: Whether the last step that had facts did nothing but reserve starts.
        self._only_reserved = False
        #: Jobs that have neither ended nor been refused.
        self._left = len(runs)
        self._nodes = {node.node_id: node for node in cluster}
        #: By agent, the nodes on which its processes are.
        self._places: dict[str, tuple[str, ...]] = {}

    # time

    def at(self, time: float, event: Callable[[], None], rank: Rank = Rank.REPORT) -> None:
        """Have an event happen at a time."""
        self._number += 1
        heappush(self._events, (time, rank, self._number, event))

    def run(self) -> None:
        """Let time pass until every job has ended. Raises SimulationError where nothing happens any more."""
        events = self._events
        while self._left:
            if not events:
                self._stuck()
            self.now, _, _, event = heappop(events)
            event()

    def _stuck(self) -> None:
        jobs = "1 job has" if self._left == 1 else f"{self._left} jobs have"
        problem = f"{jobs} not ended, and nothing happens after {self.now - self._begin:,.0f} s of the trace"
        first = next(iter(self.engine.state.queue.by_id.values()), None)
        if first is not None:
            why = self.engine.explain(first.task_id, self.now)
            problem += (
                f". Job {first.task_id!r} needs {first.submission.agent.resources} and waits: {why.error}. "
                "Leave such jobs out of the trace, or simulate nodes and a policy with which they can start"
            )
        raise SimulationError(problem)

    def handle(self, stimulus: s.AnyStimulus) -> Step:
        """One step of the engine, whose instructions are carried out."""
        self.steps += 1
        step = self.engine.handle(stimulus, self.now)
        for instruction in step.instructions:
            self._carry_out(instruction)
        for fact in step.facts:
            if isinstance(fact, TaskCancelled):
                self._give_up([fact.task_id], fact.error)
            elif isinstance(fact, ArrayMembersCancelled):
                cancelled = [run.job.job_id for run in self._waiting_of(fact.array_id)]
                self._give_up(cancelled, fact.error)
        if step.facts:
            self._plan_tick(step)
        return step

    def _waiting_of(self, array_id: str) -> list[Run]:
        """The members of an array that wait and are no tasks."""
        queue = self.engine.state.queue.by_id
        runs = (run for run in self._runs.values() if run.array and run.array.job_id == array_id)
        return [run for run in runs if run.is_waiting and run.job.job_id not in queue]

    def _give_up(self, job_ids: Iterable[str], error: str) -> None:
        """Jobs were cancelled while they waited, because they can never start."""
        for run in map(self._runs.get, job_ids):
            if run is not None and run.is_waiting:
                run.given_up(self.now, error)
                self._left -= 1

    # ticks

    def _plan_tick(self, step: Step) -> None:
        """Something has changed: where tasks wait, the next tick may do something about it. Ticks that only
        reserve starts anew, one after the other, are those of a state in which nothing else happens.
        """
        only_reserved = all(isinstance(fact, _RESERVATIONS) for fact in step.facts)
        again, self._only_reserved = only_reserved and self._only_reserved, only_reserved
        state = self.engine.state
        if (state.queue.by_id or len(state.drains)) and not again:
            self._tick_by(self.now)
        due = [at for at, _ in state.running.limits_due[:1]]
        due += [state.budgets.due_at] if state.budgets.by_pool else []
        due += [at for at in window_times(state, self.now) if at > self.now]
        if due and min(due) < math.inf:
            self._tick_by(max(self.now, min(due)))

    def _tick_by(self, time: float) -> None:
        """Have the first tick after a time happen, unless an earlier one does."""
        period = self._timing.tick_s
        at = self._begin + ((time - self._begin) // period + 1) * period
        if self._tick_at is None or at < self._tick_at:
            self._tick_at = at
            self.at(at, lambda: self._tick(at), Rank.TICK)

    def _tick(self, at: float) -> None:
        if self._tick_at != at:
            return
        self._tick_at = None
        self.handle(s.ClockTicked())
        due = next_deadline(self.engine.state, self.now)
        if due is not None:
            self._tick_by(max(due, self.now))

    # jobs

    def submit(self, run: Run) -> None:
        """Submit a job."""
        run.submitted(self.now)
        outcome = self.handle(self._submissions.submission_of(run.job)).outcome
        if isinstance(outcome, Refused):
            run.refused(self.now, outcome.error)
            self._left -= 1

    def submit_array(self, array: Job, members: Sequence[Run]) -> None:
        """Submit an array, whose members these are."""
        for run in members:
            run.submitted(self.now)
        outcome = self.handle(self._submissions.submission_of(array)).outcome
        if isinstance(outcome, Refused):
            for run in members:
                run.refused(self.now, outcome.error)
            self._left -= len(members)

    # nodes

    def observe(self) -> None:
        """Report the nodes that there are."""
        self.handle(s.ClusterObserved(nodes=tuple(self._nodes.values())))

    def change_node(self, change: NodeChange, node: NodeReport) -> None:
        """Something happens to a node."""
        if change.event == "joined":
            self._nodes[change.node] = node
            self.observe()
        elif change.event == "lost":
            self._lose(change.node)
        else:
            is_drain = change.event == "drain"
            self.handle(s.DrainRequested(node_id=change.node, drained=is_drain))

    def _lose(self, node_id: str) -> None:
        """A node dies, and with it every process there, and of a gang all members."""
        del self._nodes[node_id]
        dead = [
            run
            for name, nodes in self._places.items()
            if node_id in nodes and (run := self._runs[name]).incarnation
        ]
        incarnations = [run.incarnation for run in dead]
        for run in dead:
            run.lost(self.now)
            self._free(run)
        # The engine may start them again as soon as it sees that the node is gone.
        self.observe()
        for run, incarnation in zip(dead, incarnations, strict=True):
            self._report_gone(run, incarnation)

    # the backend

    def _carry_out(self, instruction: i.AnyInstruction) -> None:
        now, timing = self.now, self._timing
        if isinstance(instruction, i.StartAgent):
            self._start(instruction)
        elif isinstance(instruction, i.RunTask):
            self._run_task(instruction)
        elif isinstance(instruction, i.EvictAgent):
            self._evict(instruction)
        elif isinstance(instruction, i.StopAgent):
            name, incarnation = instruction.agent_name, instruction.incarnation
            self.at(now + timing.end_s, lambda: self._gone(name, incarnation))
        elif isinstance(instruction, i.CreateGroup):
            group_id = instruction.group_id
            self.at(now, lambda: self._report(s.GroupCreated(group_id=group_id)))
        elif isinstance(instruction, i.RemoveGroup):
            removed = instruction.group_id
            self.at(now, lambda: self._report(s.GroupGone(group_id=removed)))
        elif isinstance(instruction, i.ProbeClass):
            probed = s.ClassProbed(class_key=instruction.class_key)
            self.at(now, lambda: self._report(probed))
        elif isinstance(instruction, i.EvictTask):
            raise SimulationError(
                f"task {instruction.task_id!r} was to be evicted without its agent"
            )
        elif not isinstance(instruction, i.AnswerRequest):
            assert_never(instruction)

    def _report(self, stimulus: s.AnyStimulus) -> None:
        self.handle(stimulus)

    def _start(self, order: i.StartAgent) -> None:
        name, incarnation = order.agent.name, order.incarnation
        run = self._runs[name]
        run.starting(self.now, incarnation)
        group = self.engine.state.groups.by_id.get(order.group_id or "")
        self._places[name] = (order.node_id or "",) if group is None else tuple(group.node_ids)
        seconds = self._timing.start_s
        if order.state_key is not None:
            seconds += self._timing.restore_of(run.job.gpus)
        self.at(self.now + seconds, lambda: self._report_started(order))

    def _report_started(self, order: i.StartAgent) -> None:
        run = self._runs[order.agent.name]
        if run.incarnation != order.incarnation:
            return
        members = self._members(order)
        node_id = order.node_id
        self.handle(
            s.AgentReported(
                agent_name=order.agent.name,
                incarnation=order.incarnation,
                node_id=node_id,
                gpu_ids=members[0].gpu_ids if members else self._gpus(node_id, order.agent.name),
                members=members,
                capabilities=("save_state",) if run.job.savable else (),
                state_restored=None if order.state_key is None else True,
            )
        )

    def _members(self, order: i.StartAgent) -> tuple[MemberProcess, ...]:
        """The members of a gang on the nodes of its group; none for a single process."""
        group = self.engine.state.groups.by_id.get(order.group_id or "")
        if group is None or not isinstance(order.agent.payload, GangPayload):
            return ()
        return tuple(
            MemberProcess(node_id=node_id, gpu_ids=self._gpus(node_id, group.key(rank)))
            for rank, node_id in enumerate(group.node_ids)
        )

    def _gpus(self, node_id: str | None, key: str) -> tuple[str, ...]:
        """The names of the devices that Ray would give: those that the state has allocated."""
        node: Node | None = self.engine.state.cluster.nodes.get(node_id or "")
        allocation = None if node is None else node.allocations.get(key)
        return () if allocation is None else tuple(str(d) for d, _ in allocation.devices.units)

    def _run_task(self, order: i.RunTask) -> None:
        run = self._runs[order.task_id]
        seconds, fails = run.running(self.now)
        self.at(self.now + seconds, lambda: self._run_ended(run, order.incarnation, fails))

    def _run_ended(self, run: Run, incarnation: int, fails: bool) -> None:
        if run.incarnation != incarnation or not run.is_running:
            return
        run.end(self.now, failed=fails)
        self._left -= not fails
        self.handle(
            s.RunEnded(
                task_id=run.job.job_id,
                agent_name=run.job.job_id,
                incarnation=incarnation,
                reason=TaskEndReason.RUN_RAISED if fails else None,
                error="it failed" if fails else "",
            )
        )

    def _evict(self, order: i.EvictAgent) -> None:
        """Save the state at the end of the notice, then end the agent. A run that ends before has ended."""
        name, incarnation = order.agent_name, order.incarnation
        self.at(self.now + order.grace_s, lambda: self._save(name, incarnation))

    def _save(self, name: str, incarnation: int) -> None:
        run = self._runs[name]
        if run.incarnation != incarnation:
            return
        savable = run.job.savable
        if not run.is_running:
            self._gone(name, incarnation)
            return
        by_limit = self.engine.state.running.by_id[name].reached_limit
        run.stopped(self.now, saved=savable, by_limit=by_limit)
        seconds = self._timing.save_s if savable else 0.0
        self.at(self.now + seconds, lambda: self._saved(name, incarnation))

    def _saved(self, name: str, incarnation: int) -> None:
        run = self._runs[name]
        if run.job.savable:
            run.saved()
            self.handle(s.StateStored(task_id=name, state_key=f"{name}#{incarnation}"))
        else:
            self.handle(s.StateNotSaved(task_id=name, error="it has no save_state"))
        end_s = self._timing.end_s
        self.at(self.now + end_s, lambda: self._gone(name, incarnation))

    def _gone(self, name: str, incarnation: int) -> None:
        run = self._runs[name]
        if run.incarnation != incarnation:
            return
        self._free(run)
        self._report_gone(run, incarnation)

    def _free(self, run: Run) -> None:
        """The processes of a job are gone."""
        run.gone(self.now)
        del self._places[run.job.job_id]

    def _report_gone(self, run: Run, incarnation: int) -> None:
        """Report the end of an agent. Its job may have ended with it, if it has no retries left, or has run
        for as long as it may.
        """
        name = run.job.job_id
        self.handle(s.AgentGone(agent_name=name, incarnation=incarnation))
        state = self.engine.state
        if run.is_waiting and name not in state.queue.by_id and name not in state.agents:
            ended = state.ended.get(name)
            if ended is not None and ended.reason in LIMITS:
                run.cut_short(self.now)
            else:
                run.given_up(self.now, "its process has died, and it has no retries left")
            self._left -= 1


def plan_submissions(world: World, runs: Iterable[Run], begin: float) -> None:
    """Have every job submitted at its time."""
    arrays: dict[str, tuple[Job, list[Run]]] = {}
    for run in runs:
        if run.array is not None:
            arrays.setdefault(run.array.job_id, (run.array, []))[1].append(run)
            continue
        world.at(begin + run.job.submit_s, lambda run=run: world.submit(run), Rank.SUBMISSION)  # type: ignore[misc]
    for array, members in arrays.values():
        submit = functools.partial(world.submit_array, array, members)
        world.at(begin + array.submit_s, submit, Rank.SUBMISSION)
