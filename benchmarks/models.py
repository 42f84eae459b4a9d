"""GPU models: what it costs to ask for them, for alternatives, and in pools with a flavor of each model,
against tasks that run on any node.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import msgspec

from benchmarks.mesh import POOLS, amounts, submitted
from benchmarks.queueing import drained, in_each_way
from benchmarks.rows import Row, at_least, note, spread
from schedulemesh.domain.agent import AgentSpec, Alternative, with_alternatives
from schedulemesh.domain.flavors import Flavor
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.node_labels import ACCELERATOR_TYPE, NodeLabels
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages import stimuli as s

MODELS = ("H100", "A100", "L40S")
GPUS, MARK = 8, 0.9
#: What tasks ask for, by the name of the way.
WAYS = ("any node", "a model", "alternatives", "flavors", "a model of the flavors")


def models(nodes: int = 300, tasks: int = 9_000, rounds: int = 5) -> list[Row]:
    """Decisions per second of processor time while a queue is drained, by what its tasks say of nodes."""

    def in_way(way: str) -> float:
        submissions = (_submission(number, way) for number in range(tasks))
        return drained(_opening(nodes, way), submissions, tasks, time.process_time)

    plain, ratios = in_each_way(WAYS, rounds, in_way)
    what = f"{tasks:,} queued tasks on {nodes:,} nodes of {len(MODELS)} models"
    rows = [note(f"{what}, {WAYS[0]}", f"{plain:,.0f} /s")]
    for way, of_rounds in ratios.items():
        label = f"{what}, {way}, against {WAYS[0]}"
        median = statistics.median(of_rounds)
        rows.append(at_least(label, median, MARK, "", spread(of_rounds, "")))
    return rows


def _opening(nodes: int, way: str) -> Iterator[s.AnyStimulus]:
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
    gpus = {"gpu": GPUS * nodes}
    flavors = tuple(Flavor(name=m, node_labels=_on(m)) for m in MODELS) if "flavors" in way else ()
    if flavors:
        gpus = {f"gpu@{flavor.name}": GPUS * nodes for flavor in flavors}
    quota = parse_resources({"cpu": 64 * nodes, **gpus})
    for i in range(POOLS):
        yield s.PoolRequested(spec=PoolSpec(name=f"pool-{i}", resources=quota, flavors=flavors))


def _submission(number: int, way: str) -> s.TaskSubmitted:
    submission = submitted(number, amounts(cpu=1, gpu=1), 5.0)
    agent = _placed(submission.agent, number, way)
    return msgspec.structs.replace(submission, agent=agent, queue=True, request_id=None)


def _placed(agent: AgentSpec, number: int, way: str) -> AgentSpec:
    """The agent as it asks for nodes: each model is the preferred one of a third of the tasks."""
    if way in ("any node", "flavors"):
        return agent
    first, second, third = (_on(MODELS[(number + i) % len(MODELS)]) for i in range(len(MODELS)))
    agent = msgspec.structs.replace(agent, node_labels=first)
    if way.startswith("a model"):
        return agent
    twice = Alternative(node_labels=third, resources=amounts(cpu=2, gpu=2))
    return with_alternatives(agent, (Alternative(node_labels=second), twice))


def _on(model: str) -> NodeLabels:
    return ((ACCELERATOR_TYPE, model),)
