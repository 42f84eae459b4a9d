"""Gangs that wait on a full cluster: what their submission, a tick and the end of an agent cost."""

from __future__ import annotations

import statistics

from benchmarks.mesh import POOLS, amounts, finished, gone, mesh, start, submitted
from benchmarks.rows import Row, at_most, spread, timed_ms
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s

#: GPUs of a node, each held by an agent of its own, and members of a gang, each with one GPU.
GPUS, MEMBERS = 8, 4
PRIORITY = 5.0


def waiting_gangs(
    nodes: int = 1_000, gangs: int = 50, ends: int = 31, ticks: int = 21
) -> list[Row]:
    """The cost of gangs for which neither room nor a victim can be found."""
    engine = mesh(nodes)
    incarnations = [
        start(engine, submitted(number, amounts(cpu=1, gpu=1), PRIORITY), 1.0)
        for number in range(nodes * GPUS)
    ]
    joins = [timed_ms(lambda n=n: engine.handle(_gang(n), 1.0)) for n in range(gangs)]
    _check_waiting(engine, gangs)
    times = [timed_ms(lambda k=k: engine.handle(s.ClockTicked(), 2.0 + k)) for k in range(ticks)]
    freed = []
    for number in range(ends):
        engine.handle(finished(number), 2.0 + ticks)
        step = gone(number, incarnations[number])
        freed.append(timed_ms(lambda step=step: engine.handle(step, 2.0 + ticks)))
        # a task that comes before the gangs takes the GPU, so that there is never room for one of them
        start(engine, submitted(nodes * GPUS + number, amounts(cpu=1, gpu=1), 9.0), 2.0 + ticks)
    _check_waiting(engine, gangs)
    what = f"{gangs} gangs of {MEMBERS} wait on {nodes:,} full nodes"
    return [
        at_most(f"{what}: a submission", statistics.median(joins), 5.0, " ms", spread(joins)),
        at_most(f"{what}: a tick", statistics.median(times), 100.0, " ms", spread(times)),
        at_most(f"{what}: an agent ends", statistics.median(freed), 50.0, " ms", spread(freed)),
    ]


def _gang(number: int) -> s.TaskSubmitted:
    """The submission of a gang, which may wait."""
    pool = f"pool-{number % POOLS}"
    agent = AgentSpec(
        name=f"gang-{number}",
        pool_name=pool,
        resources=amounts(cpu=MEMBERS, gpu=MEMBERS),
        bundles=(amounts(cpu=1, gpu=1),) * MEMBERS,
        payload=GangPayload(),
        class_key="class",
    )
    task = TaskSpec(task_id=f"gang-task-{number}", pool_name=pool, priority=PRIORITY)
    return s.TaskSubmitted(agent=agent, task=task, queue=True)


def _check_waiting(engine: Engine, gangs: int) -> None:
    if len(engine.state.queue.by_id) != gangs:
        raise AssertionError(f"{len(engine.state.queue.by_id)} of {gangs} gangs wait")
