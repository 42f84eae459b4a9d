"""Reclaim: one owner that has lent all of its quota, and a thousand borrowers on a full cluster."""

from __future__ import annotations

import random
import statistics

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


def lending(nodes: int = 500, decisions: int = 101) -> list[Row]:
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
    ]


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
