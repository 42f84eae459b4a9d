"""What external work waits for, as a whole supervisor on a fake backend takes it into account."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.domain.resources import parse_resources
from schedulemesh.runtime.backend import NodeView
from schedulemesh.runtime.cluster_usage import ClusterUsage
from schedulemesh.runtime.jobs.claims import jobs_of, owner_of_work
from schedulemesh.runtime.jobs.external_demand import demand_of
from tests.core.test_request_service import client
from tests.runtime.composition import InThread
from tests.runtime.fake_backend import OWN_NODE
from tests.runtime.test_external_usage import TRAINING, holder

EIGHT = parse_resources({"cpu": 8})
WAITS = {"held": (), "waiting": (EIGHT,)}


@pytest.fixture
def service(tmp_path):
    found = InThread(tmp_path / "j.sqlite")
    free = parse_resources({"cpu": 8})
    found.backend.free = [NodeView(node_id=OWN_NODE, total=EIGHT, free=free, labels={})]
    found.do(found.running.monitor.observe())
    yield found
    found.close()


def sees(service, *holders, jobs=None):
    known = {TRAINING.job_id: TRAINING} if jobs is None else jobs
    service.backend.used = ClusterUsage(jobs=known, holders=holders)
    service.do(service.running.monitor.observe())


def submit(calls, task_id, priority):
    return calls.submit_task_with_preemption(
        task_id, "p", AgentActor, resources={"cpu": 8}, priority=priority
    )


def test_an_eviction_is_refused_while_other_work_waits_for_its_room(service):
    calls = client(service)
    calls.create_pool("p", resources={"cpu": 8})
    assert submit(calls, "low", 1.0)["success"]
    sees(service, holder("a1", **WAITS))
    refused = submit(calls, "high", 9.0)
    assert (refused["success"], refused["reason"]) == (False, "external_demand")
    assert "Ray job 03000000 (namespace 'team') waits in Ray for cpu 8" in refused["error"]
    sees(service)
    assert submit(calls, "high", 9.0)["success"]


def test_what_waits_of_ours_is_no_external_demand(service):
    calls = client(service)
    calls.create_pool("p", resources={"cpu": 8})
    assert submit(calls, "low", 1.0)["success"]
    agents = service.running.executor._agents
    sees(service, holder("a1", name=agents.mark("other#7"), namespace="space", **WAITS))
    assert service.running.reactor.state.external_demands.waiting == ()


@pytest.mark.parametrize(
    ("job_id", "named"),
    [("03000000", "Ray job 03000000 (namespace 'team')"), ("", "a Ray job that is not known yet")],
)
def test_plain_tasks_that_wait_count_too(service, job_id, named):
    calls = client(service)
    calls.create_pool("p", resources={"cpu": 8})
    assert submit(calls, "low", 1.0)["success"]
    namespace = "team" if job_id else ""
    sees(service, holder("tasks", job_id=job_id, namespace=namespace, are_tasks=True, **WAITS))
    refused = submit(calls, "high", 9.0)
    assert refused["reason"] == "external_demand"
    assert f"{named} waits in Ray for cpu 8" in refused["error"]


def test_plain_tasks_of_the_schedulers_own_jobs_are_no_demand(service):
    """Where it runs jobs, those whose owner is not known may be theirs."""
    sixteen = parse_resources({"cpu": 16})
    service.backend.free = [NodeView(node_id=OWN_NODE, total=sixteen, free=sixteen, labels={})]
    sees(service)
    calls = client(service)
    calls.create_pool("p", resources={"cpu": 16})
    assert submit(calls, "low", 1.0)["success"]
    tasks = {"are_tasks": True, **WAITS}
    unknown = holder("unknown", job_id="", namespace="", **tasks)
    foreign = holder("foreign", job_id="04000000", **tasks)
    sees(service, unknown, foreign)
    assert waiting_for(service) == ["", "04000000"]
    calls.submit_job("job", "true", "p", {"cpu": 8})
    (job,) = jobs_of(service.running.reactor.state)
    owner = owner_of_work(service.running.executor._agents, job)
    own = msgspec.structs.replace(TRAINING, metadata={"schedulemesh_actor": owner})
    sees(service, unknown, foreign, holder("own", **tasks), jobs={own.job_id: own})
    assert waiting_for(service) == ["04000000"]


def waiting_for(service):
    return [each.job_id for each in service.running.reactor.state.external_demands.waiting]


def test_without_tasks_that_could_be_evicted_nobody_looks(service):
    sees(service, holder("a1", **WAITS))
    assert service.running.reactor.state.external_demands.waiting == ()


def test_equal_demands_are_told_apart_up_to_a_number_and_sorted():
    many = [holder(f"a{i}", **WAITS) for i in range(50)]
    small = holder("b", job_id="04000000", held=(), waiting=(parse_resources({"cpu": 1}),))
    found = demand_of([small, *many])
    assert len(found) == 33
    assert found[-1].job_id == "04000000"
    assert found == demand_of([*many, small])


def test_who_took_the_room_is_named_also_while_it_is_being_started(service):
    demand, state = service.running.executor.demand, service.running.reactor.state
    service.backend.used = ClusterUsage(
        jobs={TRAINING.job_id: TRAINING},
        holders=(
            holder("a1"),
            holder("a2", namespace="gpus", held=((OWN_NODE, parse_resources({"gpu": 1})),)),
            holder("a3", namespace="elsewhere", held=(("n7", EIGHT),)),
        ),
    )
    takers = service.do(demand.takers(state, OWN_NODE, EIGHT))
    assert takers == ["Ray job 03000000 (namespace 'team')"]
    starting = holder("a4", namespace="starting", **WAITS)
    used = msgspec.structs.replace(service.backend.used, holders=(starting,))
    service.backend.used = used
    assert service.do(demand.takers(state, OWN_NODE, EIGHT)) == [], "it waits still"
