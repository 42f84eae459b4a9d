"""Jobs, leases, elastic gangs, children and tasks that clients complete are decided again in the same way."""

from __future__ import annotations

import functools

import msgspec
import pytest

from schedulemesh.sim import Timing
from schedulemesh.sim.rehearsal import Changes, open_history, rehearse
from tests.sim.mixed_load import KINDS, MixedWorld
from tests.sim.recorded_load import policy_of, random_jobs, recorded_world, written

TIMING = Timing(start_s=1.0, end_s=0.5, save_s=2.0)
#: Two reserved placement groups.
GROUPS = {"high_priority_pg_specs": [{"bundles": [{"gpu": 1}] * 2}, {"gpu": 1}]}
NOTHING = ("nothing",)


def recording_of(path, seed, submitted=KINDS, only=(), policy=None):
    """A load of these kinds of submissions in which ``only`` these things happen; all where it is empty."""
    jobs = random_jobs(seed, 40, "ab", mean_s=6.0, shorter=15.0)
    given = {"seed": seed, "pause_s": 8.0, "submitted": submitted, "only": only}
    mixed = functools.partial(MixedWorld, **given)
    world = recorded_world(jobs, policy or policy_of(), TIMING, world=mixed)
    world.run_for(400.0)
    written(world, path / "mesh.sqlite")
    return world, open_history(str(path / "mesh.sqlite"))


def assert_same(recording, least=30):
    found = rehearse(recording)
    assert found.check.differences == ()
    assert found.check.same == found.check.decisions > least
    assert found.check.left_out == {}
    assert found.rehearsed == found.recorded
    return found


@pytest.mark.parametrize("kind", ["elastic", "job", "lease", "called", "unqueued", "child"])
def test_every_kind_of_submission_is_rehearsed(kind, tmp_path):
    world, recording = recording_of(tmp_path, 1, submitted=(kind,), only=NOTHING)
    assert_same(recording)
    assert world.started[kind] >= 10
    assert kind != "elastic" or world.started["extra"] > 10


def test_claims_of_jobs_that_follow_their_work_and_jobs_that_hold_too_much_are_rehearsed(tmp_path):
    things = ("_move_job", "_end_greedy_job")
    _, recording = recording_of(tmp_path, 2, submitted=("job",), only=things)
    kinds = [event.kind for event in recording.events]
    assert kinds.count("claim_moved") > 1
    assert any(one.reason == "over_claim" for one in recording.attempts.values())
    assert_same(recording)


# In 9 groups are lost before they are created, and in 14 extra members are evicted in vain.
@pytest.mark.parametrize("seed", [9, 14])
def test_gangs_and_leases_among_lost_nodes_and_evictions_are_rehearsed(seed, tmp_path):
    things = ("_lose_or_join", "_evict_one", "_cancel", "_drain_node")
    _, recording = recording_of(tmp_path, seed, submitted=("lease", "elastic"), only=things)
    assert_same(recording, least=100)


@pytest.mark.parametrize("seed", [0, 11])
def test_all_of_them_are_rehearsed_where_clients_operators_and_nodes_intervene(seed, tmp_path):
    world, recording = recording_of(tmp_path, seed)
    assert_same(recording)
    assert len(world.happened) >= 9


@pytest.mark.parametrize(
    ("seed", "submitted"), [(1, ("elastic",)), (4, ("lease", "job")), (0, KINDS)]
)
def test_restarts_of_the_supervisor_are_rehearsed(seed, submitted, tmp_path):
    _, recording = recording_of(tmp_path, seed, submitted, only=("_restart",))
    assert_same(recording)
    kinds = [event.kind for event in recording.events]
    assert kinds.count("supervisor_started") > 5 < kinds.count("supervisor_recovered")
    assert any(one.state == "lost" for one in recording.attempts.values())


# In 4 groups are removed soon that stand when the recording begins, and in 5 an agent never starts.
@pytest.mark.parametrize("seed", [4, 5])
@pytest.mark.parametrize("submitted", [("bundles", "called"), KINDS])
def test_pools_with_placement_groups_are_rehearsed(seed, submitted, tmp_path):
    policy = policy_of(groups=GROUPS)
    _, recording = recording_of(tmp_path, seed, submitted, policy=policy)
    kinds = [event.kind for event in recording.events]
    assert kinds.count("group_created") > 10 < kinds.count("group_removed")
    assert_same(recording, least=25)


def test_what_a_period_had_from_before_it_is_named(tmp_path):
    jobs = random_jobs(1, 10, "ab", mean_s=6.0, shorter=15.0)
    later = [
        msgspec.structs.replace(job, job_id=f"{job.job_id}0", submit_s=job.submit_s + 3000.0)
        for job in jobs
    ]
    policy = policy_of({"estimates": True}, groups=GROUPS)
    world = recorded_world([*jobs, *later], policy, TIMING)
    world.run()
    written(world, tmp_path / "mesh.sqlite")
    whole = open_history(str(tmp_path / "mesh.sqlite"))
    assert rehearse(whole).check.left_out == {}
    since = next(one for one in whole.submissions if one.key == later[0].job_id)
    part = open_history(str(tmp_path / "mesh.sqlite"), since.attempts[0].submitted_at)
    assert [one.key for one in part.submissions] == [job.job_id for job in later]
    # The two reserved groups of each pool are created again.
    assert rehearse(part).check.left_out == {
        "lacks_learned_durations": since.attempts[0].id - 1,
        "lacks_earlier_groups": len(part.groups) - 4,
    }


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_gangs_grow_further_where_there_are_more_nodes(seed, tmp_path):
    """Others need not wait less: extra members take what is added, and leave only by the rules."""
    _, recording = recording_of(tmp_path, seed, submitted=("elastic",), only=NOTHING)
    found = rehearse(recording, Changes(nodes=4, pools={"a": 32, "b": 32}))
    assert found.rehearsed[""].gpu_hours > found.recorded[""].gpu_hours


@pytest.mark.parametrize("seed", [1, 3, 4, 5])
def test_what_does_not_grow_waits_less_where_there_are_more_nodes(seed, tmp_path):
    _, recording = recording_of(tmp_path, seed, submitted=("lease",), only=NOTHING)
    found = rehearse(recording, Changes(nodes=4, pools={"a": 32, "b": 32}))
    assert found.rehearsed[""].waited_s.mean < found.recorded[""].waited_s.mean
