"""Runs a trace on a cluster under a policy."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from functools import partial

import msgspec

from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import UNIT, Resources, sum_of
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
from schedulemesh.sim.strategies import loaded
from schedulemesh.sim.submission import CLASS_KEY, Submissions
from schedulemesh.sim.timing import Timing
from schedulemesh.sim.usage import PoolUsage
from schedulemesh.sim.world import World, plan_submissions

#: When a simulation begins, in seconds since 1970: traces count from zero.
BEGIN = 1_000_000_000.0
#: The name of the pool of a policy that declares none.
WHOLE_CLUSTER = "all"
_CLIENT = "simulator"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a simulation. Times of runs and pools are counted from ``begin``."""

    runs: tuple[Run, ...]
    pools: dict[str, PoolUsage]
    #: (seconds from the begin, GPUs of the cluster from then on); CPUs where it has no GPUs.
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
) -> Result:
    """Run these jobs until all have ended. Jobs that die with a node are tried again.

    Raises InvalidRequestError for what does not fit together, such as a job of a pool that is not declared,
    and SimulationError where jobs are left that can never run.
    """
    policy, timing = policy or Policy(), timing or Timing()
    began = time.perf_counter()
    cluster = reports(nodes)
    total = sum_of(node.total for node in cluster)
    pools = policy.pools or (_pool_of(total),)
    plugins = loaded(policy.strategies)
    engine = Engine(strategies=Strategies(node_strategy, plugins=plugins))
    usage = {
        spec.name: PoolUsage(_units(spec.resources), _allowance(policy, timing), BEGIN)
        for spec in pools
    }
    only_pool = pools[0].name if len(pools) == 1 else ""
    changes, absent = checked(node_changes, cluster)
    submissions = Submissions(cluster, only_pool, losses(changes))
    runs = {job.job_id: _run_of(job, only_pool, usage) for job in jobs}
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
    return Result(
        runs=tuple(runs.values()),
        pools=usage,
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


def _run_of(job: Job, only_pool: str, pools: dict[str, PoolUsage]) -> Run:
    name = only_pool or job.pool
    if name not in pools:
        raise InvalidRequestError(
            f"job {job.job_id!r} is for pool {name!r}, and the policy declares {', '.join(pools)}"
        )
    return Run(job, name, pools[name], _units_of(job))


def _units(resources: Resources) -> int:
    return resources.gpu or resources.cpu


def _units_of(job: Job) -> int:
    return round((job.gpus or job.cpus) * UNIT)
