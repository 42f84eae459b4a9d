"""GPU models: what it costs to ask for them, and for alternatives, against tasks that run on any node."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Iterator

import msgspec

from benchmarks.mesh import POOLS, amounts, submitted
from benchmarks.queueing import Drain
from benchmarks.rows import Row, at_least, note, spread
from schedulemesh.domain.agent import AgentSpec, Alternative, with_alternatives
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.node_labels import ACCELERATOR_TYPE, NodeLabels
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s

MODELS = ("H100", "A100", "L40S")
GPUS, MARK = 8, 0.9
#: What tasks ask for, by the name of the way.
WAYS = ("any node", "a model", "alternatives")


def models(nodes: int = 300, tasks: int = 9_000, rounds: int = 5) -> list[Row]:
    """Decisions per second while a queue is drained, by what its tasks say of nodes."""
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            rates[way].append(_drained(nodes, tasks, way))
    plain, *others = rates.items()
    what = f"{tasks:,} queued tasks on {nodes:,} nodes of {len(MODELS)} models"
    rows = [note(f"{what}, {plain[0]}", f"{statistics.median(plain[1]):,.0f} /s")]
    for way, measured in others:
        ratios = [one / base for one, base in zip(measured, plain[1], strict=True)]
        rows.append(
            at_least(
                f"{what}, {way}, against {plain[0]}",
                statistics.median(ratios),
                MARK,
                "",
                spread(ratios, ""),
            )
        )
    return rows


def _drained(nodes: int, tasks: int, way: str) -> float:
    """Admissions per second: all tasks are queued before the clock starts, but those that fit at once."""
    engine = Engine()
    drain = Drain(engine)
    submissions = (_submission(number, way) for number in range(tasks))
    for stimulus in itertools.chain(_opening(nodes), submissions):
        drain.take(engine.handle(stimulus, 1.0).instructions)
    gc.collect()
    began = time.perf_counter()
    for stimulus in drain.stimuli():
        drain.take(engine.handle(stimulus, drain.now).instructions)
    took = time.perf_counter() - began
    if drain.admitted != tasks or engine.state.queue.by_id:
        raise AssertionError(f"{drain.admitted} of {tasks} tasks were admitted")
    return tasks / took


def _opening(nodes: int) -> Iterator[s.AnyStimulus]:
    """30 pools whose quota is never short, and nodes of each model in turn."""
    whole = amounts(cpu=64, gpu=GPUS)
    yield s.ClusterObserved(
        nodes=tuple(
            NodeReport(
                node_id=f"node-{i:04}",
                total=whole,
                labels={ACCELERATOR_TYPE: MODELS[i % len(MODELS)]},
            )
            for i in range(nodes)
        )
    )
    quota = amounts(cpu=64 * nodes, gpu=GPUS * nodes)
    for i in range(POOLS):
        yield s.PoolRequested(spec=PoolSpec(name=f"pool-{i}", resources=quota))


def _submission(number: int, way: str) -> s.TaskSubmitted:
    submission = submitted(number, amounts(cpu=1, gpu=1), 5.0)
    agent = _placed(submission.agent, number, way)
    return msgspec.structs.replace(submission, agent=agent, queue=True, request_id=None)


def _placed(agent: AgentSpec, number: int, way: str) -> AgentSpec:
    """The agent as it asks for nodes: each model is the preferred one of a third of the tasks."""
    if way == "any node":
        return agent
    first, second, third = (_on(MODELS[(number + i) % len(MODELS)]) for i in range(len(MODELS)))
    agent = msgspec.structs.replace(agent, node_labels=first)
    if way == "a model":
        return agent
    twice = Alternative(node_labels=third, resources=amounts(cpu=2, gpu=2))
    return with_alternatives(agent, (Alternative(node_labels=second), twice))


def _on(model: str) -> NodeLabels:
    return ((ACCELERATOR_TYPE, model),)
