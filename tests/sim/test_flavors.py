"""Pools with flavors in a simulation: jobs take the first in which they start, and loans are by flavor."""

from __future__ import annotations

import functools

import msgspec
import pytest

from schedulemesh.engine.codec import decode_facts
from schedulemesh.engine.messages.facts import AgentAdmitted
from schedulemesh.sim import Timing
from schedulemesh.sim.cluster import NodeKind
from schedulemesh.sim.jobs import Job, JobAlternative
from schedulemesh.sim.policy import parse_policy
from schedulemesh.sim.rehearsal import open_history, rehearse
from schedulemesh.sim.simulation import simulate
from tests.sim.recorded_load import random_jobs, recorded_world, written
from tests.sim.test_windows import MaintainedWorld

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


def mixed_policy():
    """Two pools that lend each other the GPUs of both models, with a budget."""
    quotas = {"a": (12, 4), "b": (4, 12)}
    return parse_policy(
        {
            "pools": [
                {
                    "name": name,
                    "cohort": "all",
                    "resources": {"gpu@h100": h100, "gpu@a100": a100},
                    "flavors": FLAVORS,
                    "budget": {"gpu_hours": 0.1, "period": "day", "then": "lower_priority"},
                    "owner_order": "fair",
                }
                for name, (h100, a100) in quotas.items()
            ]
        }
    )


def with_models(jobs):
    """Some of the jobs need a model, and some have another one as an alternative."""
    h100, a100 = {"model": "H100"}, {"model": "A100"}
    ways = [{}, {"node_labels": h100}]
    ways.append({"node_labels": a100, "alternatives": (JobAlternative(node_labels=h100),)})
    for number, one in enumerate(jobs):
        yield msgspec.structs.replace(one, **ways[number % 3])


@pytest.mark.parametrize("seed", range(3))
def test_a_rehearsal_has_the_flavors_and_budgets_of_the_history(seed, tmp_path):
    jobs = [*with_models(random_jobs(seed, 40, "ab", mean_s=6.0, shorter=15.0))]
    nodes = [
        NodeKind(name=name, count=2, gpu=8, labels={"model": name}) for name in ("H100", "A100")
    ]
    disturbed = functools.partial(MaintainedWorld, seed=seed, pause_s=12.0, nodes=nodes)
    timing = Timing(start_s=1.0, end_s=0.5, save_s=2.0)
    world = recorded_world(jobs, mixed_policy(), timing, nodes=nodes, world=disturbed)
    world.run_for(400.0)
    written(world, tmp_path / "mesh.sqlite")
    recording = open_history(str(tmp_path / "mesh.sqlite"))
    rehearsed = rehearse(recording)
    assert rehearsed.check.differences == ()
    assert rehearsed.check.left_out == {}
    assert rehearsed.check.same == rehearsed.check.decisions > 20
    facts = (fact for record in world.engine.commits for fact in decode_facts(record))
    admitted = [fact.agent for fact in facts if isinstance(fact, AgentAdmitted)]
    assert {agent.taken_flavor for agent in admitted} == {"h100", "a100"}
    assert any(event.kind == "budget_reached" for event in recording.events)
