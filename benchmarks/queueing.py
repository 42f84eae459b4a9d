"""The queue: admissions per second, passes where nothing fits, verdicts, memory, cancellation."""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import psutil

from benchmarks.mesh import POOLS, amounts, finished, gone, mesh, start, submitted
from benchmarks.rows import Row, at_least, at_most, note, spread, timed_ms
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.instructions import AnyInstruction, StartAgent
from schedulemesh.engine.messages.outcomes import Queued, Refused, RequestOutcome
from schedulemesh.store.sql import SqlJournal
from schedulemesh.store.writer import GroupWriter

#: The sizes of Kueue's published load test, and how many of 500 tasks have each, in a pool of 20 CPUs.
SIZES = ((amounts(cpu=1), 350), (amounts(cpu=5), 100), (amounts(cpu=20), 50))
PER_POOL = sum(count for _, count in SIZES)
#: How many requests are under way at once.
IN_FLIGHT = 64
#: So many tasks are admitted between two ticks: what the target rate admits in a second.
PER_TICK = 5_000


def queueing(
    tasks: int = 15_000,
    waiting: int = 100_000,
    classes: int = 1_000,
    nodes: int = 1_000,
    rounds: int = 5,
) -> list[Row]:
    """The marks of the queue that need no Ray."""
    measured = [drained(_opening(), _submissions(tasks), tasks) for _ in range(rounds)]
    journalled = [_journalled(tasks) for _ in range(rounds)]
    what = f"{tasks:,} queued tasks in {POOLS} pools and {len(SIZES)} sizes, drained as they fit"
    return [
        _rate(f"{what}, engine alone", measured, 5_000),
        _rate(f"{what}, through the SQLite journal", [rate for rate, _ in journalled], 1_500),
        *_passes(waiting, classes),
        *_verdicts(nodes),
        _memory(waiting),
        at_most(
            f"cancel {tasks:,} queued tasks, one by one, through the journal",
            statistics.median(took for _, took in journalled),
            3.0,
            " s",
        ),
    ]


def _rate(what: str, rates: list[float], target: float) -> Row:
    return at_least(what, statistics.median(rates), target, " /s", spread(rates, ""))


class Drain:
    """The life of queued tasks as the supervisor sees it: what starts reports at once; where nothing starts,
    the task that runs longest ends.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._starts: deque[StartAgent] = deque()
        self._running: deque[StartAgent] = deque()
        self.admitted = 0
        self.now = 2.0

    def take(self, instructions: Iterable[AnyInstruction]) -> None:
        """What a step asks for."""
        for order in instructions:
            if isinstance(order, StartAgent):
                self._starts.append(order)
                self.admitted += 1
                if self.admitted % PER_TICK == 0:
                    self.now += 1.0

    def stimuli(self) -> Iterator[s.AnyStimulus]:
        """What happens next, given what was taken; until nothing runs any more."""
        ticked = self.now
        while self._starts or self._running:
            if self.now != ticked:
                ticked = self.now
                yield s.ClockTicked()
            elif self._starts:
                order = self._starts.popleft()
                self._running.append(order)
                yield _report(order)
            else:
                order = self._running.popleft()
                number = int(order.agent.name.rpartition("-")[2])
                yield finished(number)
                yield gone(number, order.incarnation)


def drained(
    opening: Iterable[s.AnyStimulus],
    submissions: Iterable[s.AnyStimulus],
    tasks: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Admissions per second: all tasks are queued before the clock starts, but those that fit at once."""
    engine = Engine()
    drain = Drain(engine)
    for stimulus in itertools.chain(opening, submissions):
        drain.take(engine.handle(stimulus, 1.0).instructions)
    gc.collect()
    began = clock()
    for stimulus in drain.stimuli():
        drain.take(engine.handle(stimulus, drain.now).instructions)
    took = clock() - began
    _check_drained(engine, drain, tasks)
    return tasks / took


def in_each_way(
    ways: Iterable[str], rounds: int, drained_in: Callable[[str], float]
) -> tuple[float, dict[str, list[float]]]:
    """The median of admissions per second in the first way, and the ratios to it in each of the others, by
    rounds in which all ways take turns.
    """
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, measured in rates.items():
            measured.append(drained_in(way))
    (_, plain), *others = rates.items()
    ratios = {
        way: [one / base for one, base in zip(measured, plain, strict=True)]
        for way, measured in others
    }
    return statistics.median(plain), ratios


def _check_drained(engine: Engine, drain: Drain, tasks: int) -> None:
    if drain.admitted != tasks or engine.state.queue.by_id or engine.state.agents:
        raise AssertionError(f"{drain.admitted} of {tasks} tasks were admitted and ended")


def _opening() -> Iterator[s.AnyStimulus]:
    """30 pools of 20 CPUs, and nodes with room for all of them."""
    whole = amounts(cpu=64, memory=512_000, gpu=8)
    reports = tuple(NodeReport(node_id=f"node-{i:04}", total=whole) for i in range(POOLS))
    yield s.ClusterObserved(nodes=reports)
    for i in range(POOLS):
        yield s.PoolRequested(spec=PoolSpec(name=f"pool-{i}", resources=amounts(cpu=20)))


def _submissions(tasks: int) -> Iterator[s.TaskSubmitted]:
    """The sizes are mixed evenly over each pool's tasks."""
    sizes = [size for size, count in SIZES for _ in range(count)]
    for number in range(tasks):
        yield _queued(number, sizes[number // POOLS * 7 % PER_POOL])


def _queued(
    number: int, need: Resources, priority: float = 5.0, pool: int | None = None
) -> s.TaskSubmitted:
    """The submission of task ``number``, which may wait."""
    name = f"pool-{number % POOLS if pool is None else pool}"
    agent = AgentSpec(name=f"agent-{number}", pool_name=name, resources=need, class_key="class")
    task = TaskSpec(task_id=f"task-{number}", pool_name=name, priority=priority)
    return s.TaskSubmitted(agent=agent, task=task, queue=True)


def _journalled(tasks: int) -> tuple[float, float]:
    """Admissions per second with each step durable before the next of its task, and the time to cancel."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_through_journal(Path(folder) / "journal.sqlite", tasks))


async def _through_journal(path: Path, tasks: int) -> tuple[float, float]:
    journal = SqlJournal(path)
    journal.begin()
    lives = Lives(Engine(), GroupWriter(journal, journal.load()))
    await lives.do(_opening())
    await lives.do(_submissions(tasks))
    began = time.perf_counter()
    await lives.run()
    rate = tasks / (time.perf_counter() - began)
    if lives.ended != tasks or lives.engine.state.queue.by_id:
        raise AssertionError(f"{lives.ended} of {tasks} tasks have ended")
    await lives.do(_submissions(tasks))
    lives.starts.clear()
    waiting = list(lives.engine.state.queue.by_id)
    began = time.perf_counter()
    await lives.do(s.TaskCancellationRequested(task_id=task_id) for task_id in waiting)
    took = (time.perf_counter() - began) * tasks / len(waiting)
    if journal.load().fold().queue.by_id:
        raise AssertionError("cancelled tasks wait in the journal")
    await lives.close()
    journal.close()
    return rate, took


class Lives:
    """Runs what is admitted from start to end, each step durable before the next one of the same task."""

    def __init__(self, engine: Engine, writer: GroupWriter) -> None:
        self.engine = engine
        self.starts: list[StartAgent] = []
        self.ended = 0
        self._writer = writer
        self._began = time.perf_counter()

    async def do(self, stimuli: Iterable[s.AnyStimulus]) -> None:
        """Handle these, many at once."""
        each = iter(stimuli)

        async def worker() -> None:
            for stimulus in each:
                await self._step(stimulus)

        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))

    async def run(self) -> None:
        """Run what was admitted, and what is admitted then, with a tick per second."""
        ticked = time.perf_counter()
        running: set[asyncio.Task[None]] = set()
        while self.starts or running:
            running |= {asyncio.ensure_future(self._run_one(order)) for order in self.starts}
            self.starts.clear()
            _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if time.perf_counter() - ticked > 1.0:
                ticked = time.perf_counter()
                await self._step(s.ClockTicked())

    async def close(self) -> None:
        """Close the writer."""
        await self._writer.close()

    async def _run_one(self, order: StartAgent) -> None:
        number = int(order.agent.name.rpartition("-")[2])
        await self._step(_report(order))
        await self._step(finished(number))
        await self._step(gone(number, order.incarnation))
        self.ended += 1

    async def _step(self, stimulus: s.AnyStimulus) -> None:
        step = self.engine.handle(stimulus, 2.0 + time.perf_counter() - self._began)
        await self._writer.append(step.facts)
        self.starts += [order for order in step.instructions if isinstance(order, StartAgent)]


def _report(order: StartAgent) -> s.AgentReported:
    return s.AgentReported(
        agent_name=order.agent.name, incarnation=order.incarnation, node_id=order.node_id
    )


def _passes(waiting: int, classes: int) -> list[Row]:
    """Passes over a queue in which nothing fits, with this many tasks and with twice as many, alternately."""
    single, double = _crowded(waiting, classes), _crowded(2 * waiting, classes)
    times = [(_pass_ms(single), _pass_ms(double)) for _ in range(51)]
    ticks = [timed_ms(lambda: single.handle(s.ClockTicked(), 3.0)) for _ in range(21)]
    ratio = statistics.median(two / one for one, two in times)
    what = f"a pass with {waiting:,} tasks queued in {classes:,} classes, nothing fits"
    once = [one for one, _ in times]
    return [
        at_most(what, statistics.median(once), 5.0, " ms", spread(once)),
        at_most(f"{what}, growth per doubling of the tasks", ratio, 1.2, " ×"),
        note(
            f"{what}, with searches for evictions and reserved starts, once per second",
            spread(ticks),
        ),
    ]


def _crowded(waiting: int, classes: int) -> Engine:
    """Full pools with this many tasks in their queues; a class is a pool, a priority and a size."""
    engine = Engine()
    for stimulus in _opening():
        engine.handle(stimulus, 1.0)
    for number in range(POOLS):
        step = engine.handle(_queued(number, amounts(cpu=20), 9.0), 1.0)
        for order in step.instructions:
            if isinstance(order, StartAgent):
                engine.handle(_report(order), 1.0)
    for number in range(POOLS, POOLS + waiting):
        kind = number % classes
        need = amounts(cpu=1 + kind // POOLS % 10)
        engine.handle(_queued(number, need, kind // POOLS // 10 * 0.5, kind % POOLS), 1.0)
    found = sum(len(pool.classes) for pool in engine.state.queue.pools.values())
    if len(engine.state.queue.by_id) != waiting or found != classes:
        raise AssertionError(f"{len(engine.state.queue.by_id)} tasks wait in {found} classes")
    return engine


def _pass_ms(engine: Engine) -> float:
    """One pass, caused by a change that makes no room."""
    cordon = s.CordonRequested(node_id="node-0000", cordoned=True)
    engine.handle(cordon, 2.0)
    queued = len(engine.state.queue.by_id)
    took = timed_ms(lambda: engine.handle(msgspec.structs.replace(cordon, cordoned=False), 2.0))
    if len(engine.state.queue.by_id) != queued:
        raise AssertionError("a task was started")
    return took


def _verdicts(nodes: int) -> list[Row]:
    """What a submission is answered where all nodes are full."""
    engine = mesh(nodes)
    whole = amounts(cpu=64, gpu=8)
    for number in range(nodes):
        start(engine, submitted(number, whole, 9.0), 1.0)
    rows: list[Row] = []
    numbers = itertools.count(nodes)
    for what, need, expected in (
        ("it can never fit its pool", amounts(cpu=64 * nodes + 1), Reason.EXCEEDS_POOL_CAPACITY),
        ("it fits on no node, even an idle one", amounts(cpu=65), None),
        ("it does not fit now", amounts(cpu=1, gpu=1), None),
    ):
        times = []
        for _ in range(101):
            submission = _queued(next(numbers), need)
            began = time.perf_counter()
            outcome = engine.handle(submission, 2.0).outcome
            times.append((time.perf_counter() - began) * 1e3)
            if _verdict(outcome) is not expected:
                raise AssertionError(outcome)
        title = f"submit(queue=True) among {nodes:,} full nodes: {what}"
        rows.append(at_most(title, statistics.median(times), 1.0, " ms", spread(times)))
    return rows


def _verdict(outcome: RequestOutcome | None) -> Reason | None:
    """The reason of a refusal; None: the task waits."""
    if isinstance(outcome, Queued) and outcome.position:
        return None
    if isinstance(outcome, Refused):
        return outcome.reason
    raise AssertionError(f"it was started: {outcome}")


def _memory(waiting: int) -> Row:
    """The resident memory of queued tasks."""
    engine = Engine()
    for stimulus in _opening():
        engine.handle(stimulus, 1.0)
    gc.collect()
    before = psutil.Process().memory_info().rss
    for number in range(waiting):
        engine.handle(_queued(number, amounts(cpu=20), 5.0), 1.0)
    gc.collect()
    each = (psutil.Process().memory_info().rss - before) / waiting
    return at_most(f"resident memory per queued task, {waiting:,} tasks", round(each), 1_536, " B")
