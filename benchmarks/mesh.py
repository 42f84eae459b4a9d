"""An engine with nodes and pools, and the stimuli of an agent's life as the supervisor sends them."""

from __future__ import annotations

from collections.abc import Iterator

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import Resources, parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.instructions import StartAgent
from schedulemesh.engine.transaction import Step

POOLS = 30


def amounts(**given: float) -> Resources:
    """Resources from their documented names."""
    return parse_resources(given)


def mesh(nodes: int) -> Engine:
    """An engine after the stimuli of ``opening``."""
    engine = Engine()
    for stimulus in opening(nodes):
        engine.handle(stimulus, 0.0)
    return engine


def opening(nodes: int) -> Iterator[s.AnyStimulus]:
    """30 pools, and nodes of 64 CPUs and 8 GPUs; quota is never short."""
    whole = amounts(cpu=64, memory=512_000, gpu=8)
    reports = tuple(NodeReport(node_id=f"node-{i:04}", total=whole) for i in range(nodes))
    yield s.ClusterObserved(nodes=reports)
    quota = amounts(cpu=64 * nodes, memory=512_000 * nodes, gpu=8 * nodes)
    for i in range(POOLS):
        yield s.PoolRequested(spec=PoolSpec(name=f"pool-{i}", resources=quota))


def submitted(
    number: int,
    need: Resources,
    priority: float,
    duration: float | None = None,
) -> s.TaskSubmitted:
    """The submission of task ``number`` with an agent of its own."""
    pool = f"pool-{number % POOLS}"
    agent = AgentSpec(name=f"agent-{number}", pool_name=pool, resources=need, class_key="class")
    task = TaskSpec(
        task_id=f"task-{number}",
        pool_name=pool,
        priority=priority,
        estimated_duration=duration,
    )
    return s.TaskSubmitted(agent=agent, task=task, request_id=f"request-{number}")


def reported(engine: Engine, step: Step) -> s.AgentReported:
    """The report of the agent that this step starts, with the devices that the node state assigned."""
    order = step.instructions[0]
    if not isinstance(order, StartAgent) or order.node_id is None:
        raise AssertionError(f"the agent was not placed: {step.outcome}")
    name = order.agent.name
    devices = engine.state.cluster.nodes[order.node_id].allocations[name].devices
    return s.AgentReported(
        agent_name=name,
        incarnation=order.incarnation,
        node_id=order.node_id,
        gpu_ids=tuple(str(i) for i, _ in devices.units),
    )


def start(engine: Engine, submission: s.TaskSubmitted, now: float) -> int:
    """Start an agent now; returns its incarnation."""
    report = reported(engine, engine.handle(submission, now))
    engine.handle(report, now)
    return report.incarnation


def finished(number: int) -> s.TaskFinished:
    """Task ``number`` is completed and its agent is to end."""
    return s.TaskFinished(task_id=f"task-{number}", end_agent=True)


def gone(number: int, incarnation: int) -> s.AgentGone:
    """The process of agent ``number`` is gone."""
    return s.AgentGone(agent_name=f"agent-{number}", incarnation=incarnation)


def finish(engine: Engine, number: int, incarnation: int, now: float) -> None:
    """End task ``number`` and its agent now."""
    engine.handle(finished(number), now)
    engine.handle(gone(number, incarnation), now)
