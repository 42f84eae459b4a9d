"""Jobs that are larger than every node are in one rack in a simulation, too."""

from __future__ import annotations

import functools

import msgspec
import pytest

from schedulemesh.engine.codec import decode_facts
from schedulemesh.engine.messages.facts import GroupPlanned
from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim import Timing
from schedulemesh.sim.cluster import NodeKind
from schedulemesh.sim.jobs import Job
from schedulemesh.sim.policy import parse_policy
from schedulemesh.sim.rehearsal import open_history, rehearse
from schedulemesh.sim.simulation import simulate
from tests.sim.recorded_load import policy_of, random_jobs, recorded_world, written
from tests.sim.test_windows import MaintainedWorld

NODES = [
    NodeKind(name=f"{rack}-", count=2, gpu=8, cpu=8, labels={"rack": rack}) for rack in ("r1", "r2")
]
NO_COSTS = Timing(start_s=0.0, save_s=0.0)


def job(name, submit_s, duration_s, gpus, **more):
    return Job(job_id=name, submit_s=submit_s, duration_s=duration_s, gpus=gpus, **more)


@pytest.mark.parametrize(("topology", "start_s"), [("rack", 100), ("preferred:rack", 1)])
def test_a_job_of_two_nodes_waits_for_one_rack_only_where_it_requires_one(topology, start_s):
    """One node of each rack is taken, for 100 and for 300 s."""
    jobs = [
        job("a", 0, 100, 8, node_labels={"rack": "r1"}),
        job("b", 0, 300, 8, node_labels={"rack": "r2"}),
        job("both", 1, 10, 16, topology=topology),
        job("one", 2, 10, 8, topology="rack"),
    ]
    policy = parse_policy({"policy": {"preemption": {"topology_levels": ["rack"]}}})
    runs = {run.job.job_id: run for run in simulate(jobs, NODES, policy, NO_COSTS).runs}
    began = runs["a"].first_start
    assert runs["both"].first_start - began == pytest.approx(start_s, abs=3)
    assert runs["one"].error == ""


def test_a_topology_of_a_trace_is_checked():
    with pytest.raises(InvalidRequestError, match="topology"):
        job("a", 0, 1, 8, topology="a:b")


@pytest.mark.parametrize("seed", range(2))
def test_a_rehearsal_has_the_topologies_of_the_history(seed, tmp_path):
    words = ("rack", "preferred:rack", "")
    jobs = [
        msgspec.structs.replace(one, topology=words[number % 3])
        for number, one in enumerate(random_jobs(seed, 40, "ab", mean_s=6.0, shorter=15.0))
    ]
    disturbed = functools.partial(MaintainedWorld, seed=seed, pause_s=12.0, nodes=NODES)
    timing = Timing(start_s=1.0, end_s=0.5, save_s=2.0)
    policy = policy_of(topology_levels=["rack"])
    world = recorded_world(jobs, policy, timing, nodes=NODES, world=disturbed)
    world.run_for(400.0)
    written(world, tmp_path / "mesh.sqlite")
    rehearsed = rehearse(open_history(str(tmp_path / "mesh.sqlite")))
    assert rehearsed.check.differences == ()
    assert rehearsed.check.same == rehearsed.check.decisions > 20
    facts = (fact for record in world.engine.commits for fact in decode_facts(record))
    planned = [fact.shape.topology for fact in facts if isinstance(fact, GroupPlanned)]
    assert any(planned)
