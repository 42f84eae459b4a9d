"""Runs a trace on a cluster under a policy."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from functools import partial

import msgspec

from schedulemesh.domain.arrays import array_form, member_id, parse_array
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import Resources, sum_of
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim.cluster import NodeKind, reports
from schedulemesh.sim.jobs import Job
from schedulemesh.sim.node_changes import NodeChange, capacities, checked, losses
from schedulemesh.sim.policy import Policy
from schedulemesh.sim.runs import Run
from schedulemesh.sim.strategies import loaded, parse_node_strategy
from schedulemesh.sim.submission import CLASS_KEY, Submissions
from schedulemesh.sim.timing import Timing
from schedulemesh.sim.usage import Kind, PoolUsage
from schedulemesh.sim.world import World, plan_submissions

#: When a simulation begins, in seconds since 1970: traces count from zero.
BEGIN = 1_000_000_000.0
#: The name of the pool of a policy that declares none.
WHOLE_CLUSTER = "all"
_CLIENT = "simulator"


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a simulation. Times of runs and pools are counted from ``begin``."""

    runs: tuple[Run, ...]
    pools: dict[str, PoolUsage]
    #: In which the figures of all jobs together are: GPUs, or CPUs where the cluster has no GPUs.
    kind: Kind
    #: (seconds from the begin, what the cluster has of that kind from then on).
    capacity: tuple[tuple[float, float], ...]
    #: Steps of the engine.
    steps: int
    #: Seconds that the simulation took.
    wall_s: float
    begin: float = BEGIN


def simulate(
    jobs: Iterable[Job],
    nodes: Iterable[NodeKind],
    policy: Policy | None = None,
    timing: Timing | None = None,
    *,
    node_strategy: str = "bin_pack",
    node_changes: Iterable[NodeChange] = (),
) -> SimulationResult:
    """Run these jobs until all have ended. Jobs that die with a node are tried again.

    Raises InvalidRequestError for what does not fit together, such as a job of a pool that is not declared or
    two jobs of one id, and SimulationError where jobs are left that can never run.
    """
    policy, timing = policy or Policy(), timing or Timing()
    began = time.perf_counter()
    cluster = reports(nodes)
    total = sum_of(node.total for node in cluster)
    pools = policy.pools or (_pool_of(total),)
    plugins = loaded(policy.strategies)
    engine = Engine(strategies=Strategies(parse_node_strategy(node_strategy), plugins=plugins))
    kind: Kind = "gpu" if total.gpu else "cpu"
    usage = {
        spec.name: PoolUsage(spec.plain_quota, kind, _allowance(policy, timing), BEGIN)
        for spec in pools
    }
    only_pool = pools[0].name if len(pools) == 1 else ""
    changes, absent = checked(node_changes, cluster)
    submissions = Submissions(cluster, only_pool, losses(changes))
    runs = _runs(jobs, submissions, only_pool, usage)
    there = [node for node in cluster if node.node_id not in absent]
    world = World(engine, runs, submissions, timing, BEGIN, there)
    _open(world, policy, pools)
    world.observe()
    by_id = {node.node_id: node for node in cluster}
    for change in changes:
        event = partial(world.change_node, change, by_id[change.node])
        world.at(BEGIN + change.at_s, event)
    plan_submissions(world, runs.values(), BEGIN)
    _run_without_collector(world)
    return SimulationResult(
        runs=tuple(runs.values()),
        pools=usage,
        kind=kind,
        capacity=capacities(cluster, changes, absent),
        steps=world.steps,
        wall_s=time.perf_counter() - began,
    )


def whole_cluster(nodes: Iterable[NodeKind]) -> PoolSpec:
    """The pool of a policy that declares none."""
    return _pool_of(sum_of(node.total for node in reports(nodes)))


def _pool_of(total: Resources) -> PoolSpec:
    return PoolSpec(name=WHOLE_CLUSTER, resources=total)


def _run_without_collector(world: World) -> None:
    """The engine's values hold no cycles, so that the collector would find nothing in millions of objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        world.run()
    finally:
        if enabled:
            gc.enable()


def _open(world: World, policy: Policy, pools: Iterable[PoolSpec]) -> None:
    """Put the policy in force."""
    requests: list[s.AnyStimulus] = [s.CohortRequested(spec=spec) for spec in policy.cohorts]
    requests += [s.PoolRequested(spec=spec) for spec in pools]
    preemption, queue = policy.preemption, policy.queue
    requests.append(s.PolicyChangeRequested(policy=preemption, client=_CLIENT, changes=()))
    requests.append(s.QueuePolicyChangeRequested(policy=queue, client=_CLIENT, changes=()))
    requests.append(s.ClassProbed(class_key=CLASS_KEY))
    for request in requests:
        outcome = world.handle(request).outcome
        if isinstance(outcome, Refused):
            raise InvalidRequestError(outcome.error)


def _allowance(policy: Policy, timing: Timing) -> float:
    return timing.save_s + policy.preemption.preemption_grace_s + timing.end_s


def _runs(
    jobs: Iterable[Job], submissions: Submissions, only_pool: str, pools: dict[str, PoolUsage]
) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    for job in jobs:
        name = only_pool or job.pool
        if name not in pools:
            raise InvalidRequestError(
                f"job {job.job_id!r} is for pool {name!r}, and the policy declares {', '.join(pools)}"
            )
        for one in _members(job):
            if one.job_id in runs:
                raise InvalidRequestError(
                    f"two jobs have the id {one.job_id!r}; give each job an id of its own"
                )
            array = job if job.array else None
            runs[one.job_id] = Run(one, name, pools[name], submissions.need(job), array)
    return runs


def _members(job: Job) -> Iterator[Job]:
    """The members of an array; else the job itself."""
    if not job.array:
        yield job
        return
    for index in array_form(parse_array(job.array)).indices():
        yield msgspec.structs.replace(job, job_id=member_id(job.job_id, index), array="")
