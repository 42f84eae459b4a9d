"""Reclaim: one owner that has lent all of its quota, and a thousand borrowers on a full cluster. And what the
end of a task costs in a large cohort.
"""

from __future__ import annotations

import random
import statistics
import time

from benchmarks.mesh import amounts, reported
from benchmarks.rows import Row, at_most, note, spread, timed_ms
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.cohort import CohortSpec
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Accepted
from schedulemesh.engine.transaction import Step

#: GPUs of each node and of each borrower.
GPUS, EACH = 8, 4
#: Pools that borrow, in cohorts of five.
BORROWERS = 30
MARK_MS = 5.0
#: Pools of a small and of a large cohort, and how much more the end of a task may cost in the large one.
FEW, MANY, MARK_RATIO = 100, 1_000, 12.0


def lending(
    nodes: int = 500, decisions: int = 101, few: int = FEW, many: int = MANY, ends: int = 41
) -> list[Row]:
    """Reclaim quota by dry runs of submissions of the owner, which change nothing."""
    lent = LentOut(nodes)
    number = nodes * GPUS // EACH
    first, _ = lent.reclaim(gpu=EACH)
    single = [lent.reclaim(gpu=EACH) for _ in range(decisions)]
    node = [lent.reclaim(gpu=GPUS) for _ in range(decisions)]
    changed = []
    for _ in range(decisions):
        lent.replace_one()
        changed.append(lent.reclaim(gpu=EACH)[0])
    borrowed = lent.refill()
    what = f"reclaim decision: 1 owner, {number:,} borrowers of {BORROWERS} pools on {nodes:,} full nodes"
    return [
        at_most(
            f"{what}, one borrower is enough, median",
            statistics.median(took for took, _ in single),
            MARK_MS,
            " ms",
            f"max {max(took for took, _ in single):.2g} ms; {single[0][1]} victim",
        ),
        at_most(
            "the same for a whole node",
            statistics.median(took for took, _ in node),
            MARK_MS,
            " ms",
            f"max {max(took for took, _ in node):.2g} ms; {node[0][1]} victims",
        ),
        at_most(
            "one borrower is enough, after one ended and another replaced it",
            statistics.median(changed),
            MARK_MS,
            " ms",
            f"max {max(changed):.2g} ms",
        ),
        note(
            "the very first decision, which computes the summary of every node", f"{first:,.0f} ms"
        ),
        note("admit a borrower, of 31 pools in one tree of cohorts", spread(borrowed)),
        _ends_of_tasks(few, many, ends),
    ]


def _ends_of_tasks(few: int, many: int, ends: int) -> Row:
    """The end of a task in a cohort each of whose pools runs a task, and has two that wait."""
    in_few, in_many = (statistics.median(FullCohort(count).ends(ends)) for count in (few, many))
    return at_most(
        f"the end of a task, {many:,} pools in one cohort, relative to {few} pools",
        in_many / in_few,
        MARK_RATIO,
        " ×",
        f"{in_many:.2g} ms",
    )


class FullCohort:
    """A cohort in which every pool uses its quota, and two tasks wait: one for quota, one for more."""

    def __init__(self, pools: int) -> None:
        self._engine = Engine()
        self._now = 0.0
        whole = amounts(cpu=8, gpu=GPUS)
        nodes = tuple(NodeReport(node_id=f"node-{i:04}", total=whole) for i in range(pools))
        self._handle(s.ClusterObserved(nodes=nodes))
        for i in range(pools):
            spec = PoolSpec(name=f"pool-{i}", resources=whole, cohort="company")
            self._handle(s.PoolRequested(spec=spec))
        self._starts = [self._submit(f"first-{i}", i, GPUS) for i in range(pools)]
        for i in range(pools):
            self._submit(f"next-{i}", i, GPUS)
            self._submit(f"large-{i}", i, GPUS + 1)

    def ends(self, count: int) -> list[float]:
        """The processor times in ms of steps in which the quota of a task becomes free."""
        took = []
        for i in range(count):
            self._handle(s.TaskFinished(task_id=f"first-{i}", end_agent=True))
            gone = s.AgentGone(agent_name=f"first-{i}", incarnation=self._starts[i])
            begun = time.process_time()
            self._handle(gone)
            took.append((time.process_time() - begun) * 1e3)
        return took

    def _submit(self, name: str, number: int, gpu: int) -> int:
        """Submit a task that may wait; the incarnation of its agent, 0 where it waits."""
        pool = f"pool-{number}"
        agent = AgentSpec(name=name, pool_name=pool, resources=amounts(cpu=1, gpu=gpu))
        task = TaskSpec(task_id=name, pool_name=pool)
        step = self._handle(s.TaskSubmitted(agent=agent, task=task, queue=True))
        if not step.instructions:
            return 0
        report = reported(self._engine, step)
        self._handle(report)
        return report.incarnation

    def _handle(self, stimulus: s.AnyStimulus) -> Step:
        self._now += 0.1
        return self._engine.handle(stimulus, self._now)


class LentOut:
    """A cluster all of whose GPUs belong to one pool, and are used by others."""

    def __init__(self, nodes: int) -> None:
        self.engine = Engine()
        self._rng = random.Random(1)
        self._now = 0.0
        self._incarnations: dict[int, int] = {}
        whole = amounts(cpu=64, gpu=GPUS)
        reports = tuple(NodeReport(node_id=f"node-{i:04}", total=whole) for i in range(nodes))
        self._handle(s.ClusterObserved(nodes=reports))
        quota = amounts(cpu=64 * nodes, gpu=GPUS * nodes)
        for spec in (
            PoolSpec(name="owner", resources=quota, cohort="company"),
            *(PoolSpec(name=f"pool-{i}", cohort=f"team-{i // 5}") for i in range(BORROWERS)),
        ):
            self._handle(s.PoolRequested(spec=spec))
        for team in range(BORROWERS // 5):
            spec = CohortSpec(name=f"team-{team}", parent="company")
            self._handle(s.CohortRequested(spec=spec))
        self._next = 0
        for _ in range(nodes * GPUS // EACH):
            self._borrow()

    def reclaim(self, *, gpu: int) -> tuple[float, int]:
        """The time in ms of one decision, and the number of victims."""
        self._now += 1.0
        agent = AgentSpec(name="own", pool_name="owner", resources=amounts(cpu=1, gpu=gpu))
        task = TaskSpec(task_id="own", pool_name="owner", priority=-self._now)
        submission = s.TaskSubmitted(agent=agent, task=task, dry_run=True)
        step = None

        def decide() -> None:
            nonlocal step
            step = self._handle(submission)

        took = timed_ms(decide)
        outcome = step.outcome
        if not isinstance(outcome, Accepted) or not outcome.preempted:
            raise AssertionError(f"nothing was reclaimed: {outcome}")
        return took, len(outcome.preempted)

    def replace_one(self) -> None:
        """End a random borrower, and let another borrow what it held."""
        number = self._rng.choice(sorted(self._incarnations))
        self._end(number)
        self._borrow()

    def refill(self, rounds: int = 50) -> list[float]:
        """The times in ms of admissions on borrowed quota."""
        took = []
        for _ in range(min(rounds, len(self._incarnations))):
            self._end(self._rng.choice(sorted(self._incarnations)))
            took.append(timed_ms(self._borrow))
        return took

    def _borrow(self) -> None:
        number = self._next
        self._next += 1
        self._now += 0.1
        pool = f"pool-{self._rng.randrange(BORROWERS)}"
        need = amounts(cpu=1, gpu=EACH)
        agent = AgentSpec(name=f"agent-{number}", pool_name=pool, resources=need, class_key="class")
        task = TaskSpec(
            task_id=f"task-{number}", pool_name=pool, priority=float(self._rng.randrange(10))
        )
        report = reported(self.engine, self._handle(s.TaskSubmitted(agent=agent, task=task)))
        self._handle(report)
        self._incarnations[number] = report.incarnation

    def _end(self, number: int) -> None:
        self._handle(s.TaskFinished(task_id=f"task-{number}", end_agent=True))
        gone = s.AgentGone(agent_name=f"agent-{number}", incarnation=self._incarnations.pop(number))
        self._handle(gone)

    def _handle(self, stimulus: s.AnyStimulus) -> Step:
        return self.engine.handle(stimulus, self._now)
