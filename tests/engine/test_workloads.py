"""Whole workloads end, and nobody starves: properties of the engine over time.

WORKLOADS sets how many random workloads are run; 40 where it is not set.
"""

from __future__ import annotations

import os

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schedulemesh.config.policy import VICTIM_ORDERS
from schedulemesh.config.queueing import ORDERS, QueuePolicy
from schedulemesh.domain.pool import QUEUEING
from schedulemesh.domain.resources import NOTHING
from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages import stimuli as s
from tests.engine.builders import node, pool
from tests.engine.workloads import (
    LEAVE_S,
    START_S,
    TICK_S,
    CountingMesh,
    Job,
    Workload,
)

POOLS = ("p", "q", "r")
#: Seconds that one attempt of a task may take beside its work: until it is tried, starts, and has ended; and
#: the longest back-off after the failures that a job has here.
OVERHEAD_S = 2 * TICK_S + START_S + LEAVE_S + 16.0

profile = settings(
    max_examples=int(os.environ.get("WORKLOADS", "40")),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

needs = st.sampled_from(
    [{"cpu": 1}, {"cpu": 2}, {"cpu": 3}, {"cpu": 1, "gpu": 1}, {"gpu": 0.5}, {"cpu": 1, "gpu": 2}]
)
jobs = st.lists(
    st.builds(
        Job,
        name=st.just(""),
        at=st.sampled_from([0.0, 0.0, 3.0, 20.0, 60.0, 150.0]),
        pool_name=st.sampled_from(POOLS),
        need=needs,
        work_s=st.sampled_from([0.0, 7.0, 40.0, 40.0, 200.0]),
        priority=st.sampled_from([0.0, 1.0, 5.0, 9.0, 20.0]),
        labels=st.sampled_from([{}, {}, {"tier": "gold"}, {"tier": "silver"}, {"tier": "iron"}]),
        estimate_s=st.sampled_from([None, 5.0, 40.0, 300.0]),
        on_preempted=st.sampled_from(["requeue", "requeue", "requeue", "drop"]),
        members=st.sampled_from([1, 1, 1, 2, 3]),
        raises=st.integers(0, 2),
        dies=st.integers(0, 1),
        retries=st.integers(0, 3),
        saves=st.booleans(),
        queue=st.sampled_from([True, True, True, False]),
    ),
    min_size=2,
    max_size=14,
)
policies = st.fixed_dictionaries(
    {},
    optional={
        "same_pool_priority_threshold": st.sampled_from([0.5, 3.0]),
        "cross_pool_priority_threshold": st.sampled_from([0.5, 5.0]),
        "label_preemption_rules": st.just(
            {"tier": {"gold": ["silver", "iron"], "silver": ["iron"]}}
        ),
        "label_dominance_protects": st.booleans(),
        "enable_cross_pool_preemption": st.booleans(),
        "victim_order": st.sampled_from(VICTIM_ORDERS),
        "remaining_time_weight": st.sampled_from([0.0, 1.0]),
        "min_preempt_score": st.sampled_from([-20.0, 0.5]),
        "protected_pools": st.sampled_from([(), ("q",)]),
        "max_preemptions": st.integers(1, 4),
        "min_runtime": st.sampled_from([0.0, 30.0]),
        "preemption_cooldown": st.sampled_from([0.0, 25.0]),
        "lost_work_budget": st.sampled_from([0.0, 100.0]),
        "usage_half_life_s": st.sampled_from([0.0, 60.0]),
    },
)
kinds = st.fixed_dictionaries(
    {
        "cpu": st.sampled_from([2, 4, 6]),
        "gpu": st.sampled_from([0, 2]),
        "queueing": st.sampled_from(QUEUEING),
        "lending": st.sampled_from(
            [
                {},
                {"cohort": "left"},
                {"cohort": "left"},
                {"cohort": "right", "lending_limit": {"cpu": 1}},
                {"cohort": "right", "borrowing_limit": {"cpu": 2}},
            ]
        ),
    }
)
orders = st.builds(
    QueuePolicy,
    order=st.sampled_from(ORDERS),
    ageing_per_hour=st.sampled_from([0.0, 3600.0]),
    las_threshold_gpu_hours=st.just(0.01),
    las_preempts=st.booleans(),
    shortest_preempts=st.booleans(),
    backfill_limit_s=st.sampled_from([0.0, 60.0]),
)


def ordered_by(mesh, policy):
    mesh.handle(s.QueuePolicyChangeRequested(policy=policy, client="me", changes=("order",)))
    return mesh


def nodes():
    """Three nodes, of which each has room for any member of a gang."""
    return [node(name, cpu=4, gpu=2) for name in ("a", "b", "c")]


@given(
    jobs=jobs,
    policy=policies,
    kinds=st.tuples(kinds, kinds, kinds),
    order=orders,
    nested=st.booleans(),
)
@profile
def test_every_workload_ends_and_each_of_its_tasks_once(jobs, policy, kinds, order, nested):
    """How often a task is admitted, and so how long it all takes, is bounded by the counts alone:

    - by the rules a task is evicted ``max_preemptions`` times at most;
    - each reclaim admits a task that holds no loan, which only the rules evict again, and evicts each other
      task once at most: so there are no more reclaims than such admissions;
    - while anything waits, something runs, starts, ends or is backing off: an empty cluster has room for
      every task that is accepted. So the time is at most that of all attempts, one after the other.
    """
    jobs = [job._replace(name=f"t{number}") for number, job in enumerate(jobs)]
    mesh = ordered_by(mesh_of(kinds, policy), order)
    if nested:
        for name, parent in (("root", None), ("left", "root"), ("right", "root")):
            mesh.cohort(name, parent)
    workload = Workload(mesh, jobs)
    most = mesh.state.policy.max_preemptions
    attempts = {job.name: most + 1 + job.raises + job.dies for job in jobs}
    reclaims = sum(attempts.values())
    longest = sum(
        (n + reclaims) * (j.work_s + OVERHEAD_S)
        for n, j in zip(attempts.values(), jobs, strict=True)
    )
    workload.run(mesh.now + 150.0 + order.backfill_limit_s * len(jobs) + longest)

    accepted = {job.name for job in jobs} - workload.refused.keys()
    assert mesh.ends_of == dict.fromkeys(accepted, 1)
    for name in accepted:
        assert mesh.evicted[name] <= most
        assert mesh.reclaimed[name] <= reclaims
        ended_as_it_should(mesh, workload.jobs[name])
    for account in mesh.state.ledger.accounts.values():
        assert (account.reserved, account.used, account.lent, account.borrowed) == (NOTHING,) * 4


def mesh_of(kinds, policy):
    pools = [
        msgspec.structs.replace(
            pool(name, cpu=kind["cpu"], gpu=kind["gpu"], memory=100, lending=kind["lending"]),
            queueing=kind["queueing"],
        )
        for name, kind in zip(POOLS, kinds, strict=True)
    ]
    return CountingMesh(*pools, nodes=nodes(), **policy)


def ended_as_it_should(mesh, job):
    """It was completed, unless it was evicted and dropped, or failed too often."""
    state = mesh.state.ended[job.name].state
    evicted = mesh.evicted[job.name] + mesh.reclaimed[job.name]
    if job.on_preempted == "drop" and evicted:
        assert evicted == 1
    elif job.raises + job.dies <= job.retries:
        assert state is EndState.COMPLETED
    else:
        assert state in (EndState.FAILED, EndState.LOST)
        assert mesh.admitted[job.name] <= 1 + job.retries + evicted + mesh.returned[job.name]


streams = st.fixed_dictionaries(
    {
        #: Seconds between two arrivals, and how long each runs: together more than the cluster can serve.
        "every_s": st.sampled_from([4.0, 10.0]),
        "work_s": st.sampled_from([20.0, 60.0]),
        "estimated": st.booleans(),
        "queue": st.sampled_from([True, True, False]),
        "pools": st.sampled_from([("p",), ("p", "q"), ("q",)]),
        "need": st.sampled_from([{"cpu": 1}, {"cpu": 2}]),
    }
)


@given(
    stream=streams,
    priority=st.sampled_from([0.0, 4.0]),
    need=st.sampled_from([{"cpu": 1}, {"cpu": 4}]),
    rate=st.sampled_from([60.0, 180.0]),
    strict=st.booleans(),
    backfill_limit_s=st.sampled_from([0.0, 50.0]),
    low=st.integers(0, 4),
)
@settings(profile, max_examples=max(1, profile.max_examples // 2))
def test_nobody_starves_while_ageing_is_on(
    stream, priority, need, rate, strict, backfill_limit_s, low
):
    """With ageing by ``rate`` per hour, a task comes before all tasks of a priority higher by d that arrive
    more than ``lead`` = 3600 d / rate seconds after it. So it starts at the latest after

    - its lead, in which all arrive that come before it;
    - the time in which these run, as many at a time as have room;
    - then one run of what holds its room, which is kept free from now on: it is the first of its pool. Where
      ends are not known, that begins after ``backfill_limit_s``. What was evicted from that room meanwhile
      was replaced once by a task that the stream cannot evict: one more run;
    - and for each of these the overhead of starts, ends and ticks.
    """
    order = QueuePolicy(ageing_per_hour=rate, backfill_limit_s=backfill_limit_s)
    cpu, high = 4, 10.0
    specs = [pool(name, cpu=cpu, memory=100) for name in ("p", "q")]
    kind = {"queueing": "strict" if strict else "best_effort"}
    mesh = CountingMesh(
        *(msgspec.structs.replace(x, **kind) for x in specs), nodes=[node("a", cpu=cpu)]
    )
    ordered_by(mesh, order)
    lead = 3600.0 * (high - priority) / rate
    at_once = cpu // stream["need"]["cpu"]
    each_s = stream["work_s"] + OVERHEAD_S
    before = low + int((lead + 10.0) / stream["every_s"]) * len(stream["pools"])
    latest = 10.0 + lead + before * each_s / at_once + 2 * each_s + backfill_limit_s + 60.0
    estimate = stream["work_s"] if stream["estimated"] else None
    jobs = [Job("waits", 10.0, "p", need, 5.0, priority)]
    small = Job("", 0.0, "p", {"cpu": 1}, 60.0, 0.0, estimate_s=60.0)
    jobs += [small._replace(name=f"low{number}") for number in range(low)]
    for number in range(int(latest / stream["every_s"])):
        for name in stream["pools"]:
            at = number * stream["every_s"]
            job = Job(f"{name}{number}", at, name, stream["need"], stream["work_s"], high)
            jobs.append(job._replace(estimate_s=estimate, queue=stream["queue"]))
    workload = Workload(mesh, jobs)
    begin = mesh.now
    workload.run_until(lambda: "waits" in mesh.started_at, begin + latest)
