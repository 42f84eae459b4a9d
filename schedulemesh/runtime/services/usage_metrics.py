"""Metrics of what agents really use, beside what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics.gauges import amounts
from schedulemesh.metrics.values import Family, Labels, Sample
from schedulemesh.runtime.agents.usage import AgentUsage


def usage_families(
    state: MeshState, usage: AgentUsage, now: float, *, per_agent: bool
) -> Iterator[Family]:
    """What is used by pool, and with ``per_agent`` by agent. The state may change while they are read."""
    by_agent: dict[Labels, float] = {}
    yield c.POOL_MEASURED, _by_pool(state, usage, now, by_agent if per_agent else None)
    if per_agent:
        yield c.AGENT_MEASURED, (Sample(labels, value) for labels, value in by_agent.items())


def jobs_beyond_claim(state: MeshState, beyond: Mapping[str, Resources]) -> Iterator[Sample]:
    """What jobs hold in Ray beyond their claims, by pool. ``beyond``: by agent."""
    sums: dict[tuple[str, str], float] = {}
    for name, amount in beyond.items():
        agent = state.agents.get(name)
        if agent is not None:
            for resource, more in amounts(amount).items():
                labels = (agent.spec.pool_name, resource)
                sums[labels] = sums.get(labels, 0.0) + more
    for labels, more in sums.items():
        yield Sample(labels, more)


def _by_pool(
    state: MeshState, usage: AgentUsage, now: float, by_agent: dict[Labels, float] | None
) -> Iterator[Sample | None]:
    """The sums of pools; what each agent uses is noted on the way."""
    sums: dict[Labels, float] = {}
    for name, agent in list(state.agents.items()):
        pool = agent.spec.pool_name
        for resource, amount in used(agent, usage, now).items():
            sums[pool, resource] = sums.get((pool, resource), 0.0) + amount
            if by_agent is not None:
                by_agent[pool, name, resource] = round(amount, 3)
        yield None
    for labels, amount in sums.items():
        yield Sample(labels, round(amount, 3))


def used(agent: Agent, usage: AgentUsage, now: float) -> dict[str, float]:
    """What the processes of an agent use, by resource; what is not known is left out."""
    names = agent.spec.process_names
    sums: dict[str, float] = {}
    gpus = agent.spec.resources.gpu / UNIT / len(names)
    for name in names:
        measured = usage.newest_of(name, now)
        if measured is None:
            continue
        one = measured.usage
        amounts = {"cpu": one.cpu, "memory": one.memory_mb, "gpu_memory": one.gpu_memory_mb}
        if one.gpu_utilization is not None:
            amounts["gpu"] = gpus * one.gpu_utilization / 100.0
        for resource, amount in amounts.items():
            if amount is not None:
                sums[resource] = sums.get(resource, 0.0) + amount
    return sums
