"""Placement groups in the engine: the cost of a start and of a victim search among a thousand groups."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable

from benchmarks.mesh import amounts, finished, gone
from benchmarks.rows import Row, at_most, note, spread, timed_ms
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.instructions import (
    AnyInstruction,
    CreateGroup,
    EvictAgent,
    RemoveGroup,
    StartAgent,
    StopAgent,
)
from schedulemesh.engine.messages.outcomes import Accepted

POOL = "pool"
NEED = amounts(cpu=1, memory=100)
START_MS, SEARCH_MS = 0.05, 50.0


def groups(number: int = 1_000, rounds: int = 501, nodes: int = 100) -> list[Row]:
    """Start and end an agent without and with groups, alternately; then search for victims."""
    plain = SimulatedEngine(nodes, None)
    reserved = SimulatedEngine(nodes, _spec(reserved=number))
    reused = SimulatedEngine(nodes, _spec(dynamic=number))
    for task in [reused.start(5.0) for _ in range(number)][: number // 2]:
        reused.end(task)
    unshared = SimulatedEngine(nodes, _spec(dynamic=number, reuse=False))
    for _ in range(number - 1):
        unshared.start(5.0)
    kinds = {"reserved": reserved, "dynamic, half of them free": reused, "made anew": unshared}
    durations = [
        (plain.start_and_end(), {kind: one.start_and_end() for kind, one in kinds.items()})
        for _ in range(rounds)
    ]
    rows: list[Row] = []
    for kind in kinds:
        beyond = statistics.median(took[kind] - bare for bare, took in durations)
        ratio = statistics.median(took[kind] / bare for bare, took in durations)
        rows.append(
            at_most(
                f"start and end of an agent among {number:,} groups, {kind}: beyond that without any",
                beyond,
                START_MS,
                " ms",
                f"{ratio:.2f} × its {statistics.median(bare for bare, _ in durations):.2g} ms",
            )
        )
    return rows + _searches(number, nodes)


def _searches(number: int, nodes: int) -> list[Row]:
    """Search for victims on nodes that are filled with agents in groups, of several priorities."""
    each = number // nodes
    share = amounts(cpu=64 // each)
    full = SimulatedEngine(nodes, _spec(dynamic=2 * number))
    for i in range(number):
        full.start(float(i % 4), share)
    needs = {
        "the group of one of them": share,
        "room of several": share + share + share,
        "a whole node": amounts(cpu=64),
    }
    rows = []
    for what, need in needs.items():
        times = [full.search(need) for _ in range(21)]
        rows.append(
            at_most(
                f"victims among {number:,} agents in groups on {nodes:,} full nodes, for {what}",
                statistics.median(times),
                SEARCH_MS,
                " ms",
                f"max {max(times):.2g} ms",
            )
        )
    idle = SimulatedEngine(nodes, _spec(dynamic=number))
    for task in [idle.start(1.0) for _ in range(number)]:
        idle.end(task)
    ticks = [timed_ms(idle.tick) for _ in range(101)]
    return [*rows, note(f"a clock tick with {number:,} idle groups", spread(ticks))]


def _spec(*, reserved: int = 0, dynamic: int = 0, reuse: bool = True) -> GroupsSpec:
    shape = GroupShape(bundles=(NEED,))
    return GroupsSpec(reserved=(shape,) * reserved, max_dynamic=dynamic, reuse=reuse)


class SimulatedEngine:
    """An engine with one pool on nodes of 64 CPUs; instructions succeed immediately."""

    def __init__(self, nodes: int, spec: GroupsSpec | None) -> None:
        self.engine = Engine()
        total = amounts(cpu=64, memory=512_000)
        reports = tuple(NodeReport(node_id=f"node-{i:04}", total=total) for i in range(nodes))
        quota = amounts(cpu=64 * nodes, memory=512_000 * nodes)
        self._next, self._now = 0, 0.0
        self._do(s.ClusterObserved(nodes=reports))
        self._do(s.PoolRequested(spec=PoolSpec(name=POOL, resources=quota, groups=spec)))

    def start_and_end(self) -> float:
        """The time in ms of a start and an end, including the reports of their results."""
        self._now += 0.01
        return timed_ms(lambda: self.end(self.start(9.0)))

    def start(self, priority: float, need: Resources = NEED) -> int:
        """Start an agent."""
        self._next += 1
        self._do(self._submitted(self._next, priority, need))
        return self._next

    def end(self, number: int) -> None:
        """Complete the task and end its agent."""
        self._do(finished(number))

    def search(self, need: Resources, *, evicting: bool = True) -> float:
        """The time in ms of a dry run that finds victims, or makes a group with nobody evicted."""
        self._now += 1.0
        needs = self._submitted(0, 20.0, need, dry_run=True)
        took = timed_ms(lambda: self.engine.handle(needs, self._now))
        outcome = self.engine.handle(needs, self._now).outcome
        if not isinstance(outcome, Accepted) or bool(outcome.preempted) != evicting:
            raise AssertionError(f"victims were {'not ' if evicting else ''}found: {outcome}")
        return took

    def tick(self) -> None:
        """Handle a clock tick."""
        self._do(s.ClockTicked())

    def _submitted(
        self, number: int, priority: float, need: Resources, *, dry_run: bool = False
    ) -> s.TaskSubmitted:
        name = f"agent-{number}"
        return s.TaskSubmitted(
            agent=AgentSpec(name=name, pool_name=POOL, resources=need, class_key="class"),
            task=TaskSpec(task_id=f"task-{number}", pool_name=POOL, priority=priority),
            dry_run=dry_run,
        )

    def _do(self, stimulus: s.AnyStimulus) -> None:
        """Handle a stimulus, and report success for all instructions that follow."""
        instructions: deque[AnyInstruction] = deque(
            self.engine.handle(stimulus, self._now).instructions
        )
        while instructions:
            for result in self._results(instructions.popleft()):
                instructions += self.engine.handle(result, self._now).instructions

    def _results(self, instruction: AnyInstruction) -> Iterable[s.AnyStimulus]:
        if isinstance(instruction, CreateGroup):
            yield s.GroupCreated(group_id=instruction.group_id)
        elif isinstance(instruction, RemoveGroup):
            yield s.GroupGone(group_id=instruction.group_id)
        elif isinstance(instruction, StartAgent):
            yield s.AgentReported(
                agent_name=instruction.agent.name,
                incarnation=instruction.incarnation,
                node_id=instruction.node_id,
            )
        elif isinstance(instruction, StopAgent | EvictAgent):
            number = int(instruction.agent_name.removeprefix("agent-"))
            yield gone(number, instruction.incarnation)
