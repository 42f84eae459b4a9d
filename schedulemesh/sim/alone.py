"""How long the jobs of each pool would have waited had the pool been alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.sim.cluster import NodeKind
from schedulemesh.sim.jobs import Job
from schedulemesh.sim.policy import Policy
from schedulemesh.sim.simulation import simulate, whole_cluster
from schedulemesh.sim.timing import Timing


def delays_alone(
    jobs: Iterable[Job],
    nodes: Sequence[NodeKind],
    policy: Policy | None = None,
    timing: Timing | None = None,
) -> dict[str, float]:
    """The delay of each job by its id, if its pool had all nodes to itself, but no more than its own quota,
    and started jobs strictly in the order of their submission, without evicting any.

    Jobs that could not run like this, because they are larger than the quota, are left out.
    """
    pools = (policy or Policy()).pools or (whole_cluster(nodes),)
    equal = [msgspec.structs.replace(job, priority=5.0, labels={}) for job in jobs]
    delays: dict[str, float] = {}
    for spec in pools:
        pool_alone = msgspec.structs.replace(spec, cohort=None, queueing="strict")
        alone = Policy(name=spec.name, pools=(pool_alone,), queue=QueuePolicy(order="fifo"))
        of_pool = [job for job in equal if len(pools) == 1 or job.pool == spec.name]
        for run in simulate(of_pool, nodes, alone, timing).runs:
            if run.ended_at is not None:
                delays[run.job.job_id] = run.delay_s
    return delays
