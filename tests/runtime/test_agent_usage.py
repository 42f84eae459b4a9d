"""What agents really use: the newest of each process, and the sums that metrics show."""

from __future__ import annotations

import pytest

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.placement import Unplaced
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.metrics.aggregation import Aggregates
from schedulemesh.protocol.agents import Usage, pack
from schedulemesh.runtime.agents.usage import STALE_S, AgentUsage, public_usage
from schedulemesh.runtime.services.usage_metrics import usage_families
from tests.engine.builders import Mesh


def message(cpu=0.5, memory_mb=100.0, **gpu):
    return pack(Usage(cpu=cpu, memory_mb=memory_mb, **gpu))


def test_the_newest_counts_until_it_is_too_old():
    usage = AgentUsage(Aggregates())
    assert public_usage(usage.newest_of("a", 1.0)) is None
    usage.take("a", 1, message(cpu=0.25), 1.0)
    usage.take("a", 1, message(cpu=0.5, gpu_utilization=90.0, gpu_memory_mb=7.0), 2.0)
    assert public_usage(usage.newest_of("a", 3.0)) == {
        "cpu": 0.5,
        "memory_mb": 100.0,
        "gpu_utilization": 90.0,
        "gpu_memory_mb": 7.0,
        "at": 2.0,
    }
    assert usage.newest_of("a", 2.0 + STALE_S + 1.0) is None


@pytest.mark.parametrize(
    "given",
    [
        None,
        b"",
        b"\xc1",
        message(cpu=float("nan")),
        message(cpu=-1.0),
        message(memory_mb=1e300),
        message(gpu_utilization=float("inf")),
    ],
)
def test_what_is_no_measurement_is_ignored(given):
    usage = AgentUsage(Aggregates())
    usage.take("a", 1, given, 1.0)
    assert usage.newest_of("a", 1.0) is None


def test_values_are_aggregated_and_go_with_their_process():
    aggregates = Aggregates()
    usage = AgentUsage(aggregates)
    usage.take("a", 2, message(), 1.0)
    assert [row["metric"] for row in aggregates.rows(["a"], 1.0) if row] == [
        "cpu_used",
        "memory_used_mb",
    ]
    usage.forget("a", 1)
    assert usage.newest_of("a", 1.0) is not None, "another process of it ended"
    usage.forget("a", 2)
    assert usage.newest_of("a", 1.0) is None
    assert aggregates.agents() == []


def families(usage, state, *, per_agent):
    return {
        metric.name: {s.labels: s.value for s in samples if s is not None}
        for metric, samples in usage_families(state, usage, 1.0, per_agent=per_agent)
    }


def test_pools_are_always_shown_and_agents_where_they_are_asked_for():
    state, usage = Mesh().state, AgentUsage(Aggregates())
    for name, gpu in (("a", 2), ("b", 1), ("c", 0)):
        spec = AgentSpec(name=name, pool_name="p", resources=parse_resources({"gpu": gpu}))
        state.agents[name] = Agent(
            spec=spec,
            incarnation=1,
            phase=Running(started_at=0.0),
            place=Unplaced(),
            admitted_at=0.0,
        )
    usage.take("a", 1, message(gpu_utilization=50.0, gpu_memory_mb=10.0), 1.0)
    usage.take("b", 1, message(cpu=1.5, gpu_utilization=100.0, gpu_memory_mb=5.0), 1.0)
    pools = {
        ("p", "cpu"): 2.0,
        ("p", "memory"): 200.0,
        ("p", "gpu"): 2.0,
        ("p", "gpu_memory"): 15.0,
    }
    shown = families(usage, state, per_agent=False)
    assert shown == {"schedulemesh_pool_measured_usage": pools}
    shown = families(usage, state, per_agent=True)
    assert shown["schedulemesh_pool_measured_usage"] == pools
    own = shown["schedulemesh_agent_measured_usage"]
    assert own["p", "a", "gpu"] == 1.0
    assert not any(labels[1] == "c" for labels in own), "what is not known is not zero"
