"""Pools with flavors in a simulation: jobs take the first in which they start, and loans are by flavor."""

from __future__ import annotations

from schedulemesh.sim.cluster import NodeKind
from schedulemesh.sim.jobs import Job
from schedulemesh.sim.policy import parse_policy
from schedulemesh.sim.simulation import simulate

FLAVORS = [{"name": name.lower(), "label_selector": {"model": name}} for name in ("H100", "A100")]
NODES = [NodeKind(name=name, gpu=2, cpu=8, labels={"model": name}) for name in ("H100", "A100")]


def job(name, pool_name, submit_s, gpus):
    return Job(job_id=name, pool=pool_name, submit_s=submit_s, duration_s=100.0, gpus=gpus)


def test_jobs_take_the_first_flavor_and_an_owner_takes_its_own_back():
    policy = parse_policy(
        {
            "pools": [
                {
                    "name": name,
                    "cohort": "all",
                    "resources": {"cpu": 8, f"gpu@{owned}": 2},
                    "flavors": FLAVORS,
                }
                for name, owned in (("a", "h100"), ("b", "a100"))
            ]
        }
    )
    jobs = [job("x", "b", 0, 2), job("y", "b", 1, 2), job("z", "a", 10, 2)]
    result = simulate(jobs, NODES, policy)
    runs = {run.job.job_id: run for run in result.runs}
    assert runs["y"].preemptions == 0, "it holds the A100 of its own pool"
    assert runs["x"].preemptions == 1, "it has borrowed the H100"
