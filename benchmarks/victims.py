"""The victim search on a cluster that is full to the last GPU."""

from __future__ import annotations

import random
import statistics

from benchmarks.mesh import amounts, finish, mesh, start, submitted
from benchmarks.rows import Row, at_most, note, spread, timed_ms
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Accepted, Refused

#: Every node: 4 tasks with a whole GPU and 16 with a quarter.
WHOLE, EACH = 4, 20
MARK_MS = 20.0


def victims(nodes: int = 1_000, searches: int = 51, churn: int = 10) -> list[Row]:
    """Search for victims by dry runs of a submission, which change nothing."""
    full = FullCluster(nodes)
    cold, _ = full.search(gpu=8)
    warm = [full.search(gpu=8, check=True) for _ in range(searches)]
    churned = []
    for _ in range(searches):
        full.churn(churn)
        churned.append(full.search(gpu=8, check=True))
    smaller = {gpu: [full.search(gpu=gpu) for _ in range(searches)] for gpu in (4, 1)}
    full.protect_one_on_each()
    unsuccessful = [full.unsuccessful_search() for _ in range(min(searches, 11))]
    what = f"victims for a task that needs a whole node, {nodes:,} full nodes × 8 GPUs, {EACH} tasks each"
    return [
        at_most(
            f"{what}, median",
            statistics.median(t for t, _ in warm),
            MARK_MS,
            " ms",
            f"max {max(t for t, _ in warm):.2g} ms; {warm[0][1]} victims",
        ),
        at_most(
            f"the same after {churn} tasks ended and {churn} others replaced them",
            statistics.median(t for t, _ in churned),
            MARK_MS,
            " ms",
            f"max {max(t for t, _ in churned):.2g} ms",
        ),
        note("the very first search, which computes the summary of every node", f"{cold:,.0f} ms"),
        *(
            note(
                f"victims for a task that needs {gpu} GPU{'s' if gpu > 1 else ''}",
                f"{spread([t for t, _ in found])}; {found[0][1]} victims",
            )
            for gpu, found in smaller.items()
        ),
        note(
            "a whole node where each node has one task that may not be evicted: refused",
            spread(unsuccessful),
        ),
    ]


class FullCluster:
    """A cluster without a free GPU, and incoming tasks that are all different."""

    def __init__(self, nodes: int) -> None:
        self.engine = mesh(nodes)
        self._rng = random.Random(1)
        self._now = 0.0
        self._incarnations: dict[int, int] = {}
        for number in range(nodes * EACH):
            self._place(number, whole=number % EACH < WHOLE)
        self._next = nodes * EACH
        for node in self.engine.state.cluster.nodes.values():
            if node.free.gpu or len(node.allocations) != EACH:
                raise AssertionError(f"{node.node_id} is not full: {node.free}")

    def search(self, *, gpu: int, check: bool = False) -> tuple[float, int]:
        """The time in ms of one search, and the number of victims."""
        submission = self._incoming(gpu)
        step = None

        def search_once() -> None:
            nonlocal step
            step = self.engine.handle(submission, 10_000.0 + self._now)

        took = timed_ms(search_once)
        outcome = step.outcome
        if not isinstance(outcome, Accepted) or not outcome.preempted:
            raise AssertionError(f"no victims were found: {outcome}")
        if check and outcome.node_id != self._expected_node():
            raise AssertionError(f"{outcome.node_id} is not the node that loses least")
        return took, len(outcome.preempted)

    def unsuccessful_search(self) -> float:
        """The time in ms of a search that finds no victims."""
        submission = self._incoming(8)
        took = timed_ms(lambda: self.engine.handle(submission, 10_000.0 + self._now))
        outcome = self.engine.handle(submission, 10_000.0 + self._now).outcome
        assert isinstance(outcome, Refused), (
            f"victims were found where none may be evicted: {outcome}"
        )
        return took

    def churn(self, tasks: int) -> None:
        """End this number of random tasks, and start others of the same size in their place."""
        self._now += 1.0
        ended = self._rng.sample(sorted(self._incarnations), tasks)
        sizes = [self._size(number) for number in ended]
        for number in ended:
            finish(self.engine, number, self._incarnations.pop(number), self._now)
        for whole in sorted(sizes, reverse=True):
            self._place(self._next, whole=whole)
            self._next += 1

    def protect_one_on_each(self) -> None:
        """Replace one task on each node by one with a higher priority than every incoming task."""
        for node in self.engine.state.cluster.nodes.values():
            number = int(next(iter(node.allocations)).removeprefix("agent-"))
            whole = self._size(number)
            finish(self.engine, number, self._incarnations.pop(number), self._now)
            self._place(self._next, whole=whole, priority=1_000.0)
            self._next += 1

    def _incoming(self, gpu: int) -> s.TaskSubmitted:
        self._now += 1.0
        priority = 50.0 + self._rng.random()
        agent = AgentSpec(name="incoming", pool_name="pool-0", resources=amounts(cpu=gpu, gpu=gpu))
        task = TaskSpec(task_id="incoming", pool_name="pool-0", priority=priority)
        return s.TaskSubmitted(agent=agent, task=task, dry_run=True)

    def _place(self, number: int, *, whole: bool, priority: float | None = None) -> None:
        self._now += 1e-3
        submission = submitted(
            number,
            amounts(cpu=1, gpu=1 if whole else 0.25),
            float(self._rng.randrange(4)) if priority is None else priority,
            self._rng.choice((None, 3600.0, 36_000.0)),
        )
        self._incarnations[number] = start(self.engine, submission, self._now)

    def _size(self, number: int) -> bool:
        """Whether the agent has a whole GPU."""
        state = self.engine.state
        return state.agents[f"agent-{number}"].spec.resources == amounts(cpu=1, gpu=1)

    def _expected_node(self) -> str:
        """The expected node if all tasks must be evicted: lowest top priority, least lost work, node id."""
        running = self.engine.state.running
        now = 10_000.0 + self._now

        def cost(node) -> tuple[float, float, str]:
            tasks = [running.by_id[t] for name in node.allocations for t in running.on_agent(name)]
            lost = sum(now - task.started_at for task in tasks)
            return (max(task.spec.priority for task in tasks), lost, node.node_id)

        return min(self.engine.state.cluster.nodes.values(), key=cost).node_id
