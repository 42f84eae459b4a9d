"""Gangs on real Ray: several actors that start, are saved, evicted and ended as one."""

from __future__ import annotations

import os
import signal

import pytest
import ray

from schedulemesh.errors import InvalidRequestError
from tests.integration.agents import Counter, Member
from tests.integration.polling import assert_nothing_held, groups_in, process_exists, quota, until

ONE = {"cpu": 2.0}
#: An extra member that could not start is started again after 30 s.
GROWS_S = 90.0


@pytest.fixture
def pool(scheduler):
    """A scheduler with a pool of 6 CPUs that keeps no placement groups."""
    assert scheduler.create_pool("pool", resources={"cpu": 6.0})["success"]
    return scheduler


def submit(scheduler, task_id="gang", **more):
    given = {"actor_class": Member, "resources": ONE, "replicas": 3, **more}
    return scheduler.submit_task_with_preemption(task_id=task_id, pool_name="pool", **given)


def members(answer):
    """The handles of a gang that runs, in the order of ranks."""
    assert answer["success"], answer
    return [member["handle"] for member in answer["agents"]]


def test_members_know_their_ranks_and_end_together(pool, namespace):
    answer = submit(pool, agent_name="g", actor_args=(5,))
    handles = members(answer)
    assert ray.get([h.who.remote() for h in handles]) == [(r, 3, str(r), "3") for r in range(3)]
    assert ray.get([h.add.remote(1) for h in handles]) == [6, 6, 6]
    assert [member["name"] for member in answer["agents"]] == ["g-0", "g-1", "g-2"]
    assert answer["agent"]["handle"] == handles[0]
    (listed,) = pool.list_agents()["agents"]
    assert listed["resources"] == {"cpu": 6.0}
    assert [m["handle"] for m in listed["members"]] == handles
    assert [m["pid"] for m in listed["members"]] == [pid for _, pid in places(handles)]
    assert pool.complete_task("gang", end_agent=True)["success"]
    assert_nothing_held(pool)
    until(lambda: not groups_in(namespace), "its group is still there")


def places(handles):
    return ray.get([handle.where.remote() for handle in handles])


def test_a_gang_that_does_not_fit_whole_starts_nobody(pool, namespace):
    pool.submit_task_with_preemption(
        task_id="busy", pool_name="pool", actor_class=Counter, resources={"cpu": 1.0}
    )
    refused = submit(pool)
    assert refused["reason"] == "preemption_failed"
    assert refused["short"]["quota"] == {"cpu": 1.0}
    assert len(pool.list_agents()["agents"]) == 1
    assert groups_in(namespace) == {}


def test_a_member_that_cannot_be_built_ends_all(pool, namespace):
    refused = submit(pool, actor_kwargs={"broken_rank": 1})
    assert refused["reason"] == "agent_start_failed"
    assert "rank 1 is broken" in refused["error"]
    assert_nothing_held(pool)
    until(lambda: not groups_in(namespace), "its group is still there")


@pytest.mark.smoke
def test_every_member_is_saved_and_restored_to_its_rank(pool):
    handles = members(submit(pool, priority=1.0))
    for rank, handle in enumerate(handles):
        ray.get(handle.add.remote(10 * rank + 1))
    urgent = pool.submit_task_with_preemption(
        task_id="urgent", pool_name="pool", actor_class=Counter, resources=ONE, priority=9.0
    )
    assert urgent["success"], urgent
    assert [victim["task_id"] for victim in urgent["preempted"]] == ["gang"]
    saved = pool.get_saved_state("gang")["saved_state"]
    assert [own["count"] for own in saved["state"]] == [1, 11, 21]
    assert pool.complete_task("urgent", end_agent=True)["success"]
    again = pool.restore_task(saved)
    assert again["state_restored"] is True
    assert ray.get([h.add.remote(0) for h in members(again)]) == [1, 11, 21]


def test_a_member_that_dies_ends_the_gang_and_it_is_rebuilt_whole(pool):
    handles = members(submit(pool, agent_name="g"))
    ray.get(handles[2].add.remote(7))
    assert pool.save_task_state("gang")["success"]
    old = places(handles)
    os.kill(old[1][1], signal.SIGKILL)
    until(lambda: pool.ensure_agent_health()["rebuilt"] == ["g"], "it is not rebuilt")
    (listed,) = pool.list_agents()["agents"]
    again = [member["handle"] for member in listed["members"]]
    assert ray.get([h.add.remote(0) for h in again]) == [0, 0, 7]
    assert not {pid for _, pid in old} & {pid for _, pid in places(again)}


def test_a_gang_outlives_its_supervisor(pool, namespace):
    handles = members(submit(pool, agent_name="g"))
    ray.get([h.add.remote(3) for h in handles])
    kill_supervisor(pool)
    assert ray.get([h.add.remote(0) for h in handles]) == [3, 3, 3]
    (listed,) = pool.list_agents()["agents"]
    assert [m["handle"] for m in listed["members"]] == handles
    saved = pool.save_task_state("gang")["saved_state"]
    assert [own["count"] for own in saved["state"]] == [3, 3, 3]
    assert pool.complete_task("gang", end_agent=True)["success"]
    assert_nothing_held(pool)
    until(lambda: not groups_in(namespace), "its group is still there")


def test_a_gang_that_lost_a_member_with_its_supervisor_is_lost_whole(pool):
    handles = members(submit(pool, agent_name="g"))
    ray.get(handles[1].add.remote(4))
    assert pool.save_task_state("gang")["success"]
    old = {pid for _, pid in places(handles)}
    ray.kill(handles[2])
    kill_supervisor(pool)
    until(lambda: "g" in pool.ensure_agent_health()["rebuilt"], "it is not rebuilt")
    (listed,) = pool.list_agents()["agents"]
    again = [member["handle"] for member in listed["members"]]
    assert ray.get([h.add.remote(0) for h in again]) == [0, 4, 0]
    assert not old & {member["pid"] for member in listed["members"]}
    assert not any(process_exists(pid) for pid in old)


def kill_supervisor(scheduler):
    """Kill -9; it serves again when this returns."""
    pid = scheduler.about()["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: scheduler.about()["pid"] != pid, "it does not come back")


def test_an_elastic_gang_gives_up_a_member_and_grows_again(pool, namespace):
    answer = submit(pool, agent_name="g", replicas=3, min_replicas=2, priority=1.0)
    first, _ = members(answer)
    until(lambda: ray.get(first.others.remote()) == [0, 1, 2], "it does not grow", GROWS_S)
    extra = extra_of(pool)
    assert ray.get(extra["handle"].who.remote()) == (2, 3, "2", "3")
    ray.get(extra["handle"].add.remote(5))
    urgent = pool.submit_task_with_preemption(
        task_id="urgent", pool_name="pool", actor_class=Counter, resources=ONE, priority=9.0
    )
    assert [victim["task_id"] for victim in urgent["preempted"]] == ["g-2"]
    until(lambda: ray.get(first.others.remote()) == [0, 1], "nobody says that one is gone")
    assert pool.complete_task("urgent", end_agent=True)["success"]
    until(lambda: ray.get(first.others.remote()) == [0, 1, 2], "it does not grow again", GROWS_S)
    assert ray.get(extra_of(pool)["handle"].add.remote(0)) == 5
    assert pool.complete_task("gang", end_agent=True)["success"]
    until(lambda: not pool.list_agents()["agents"], "an extra member is left")
    assert_nothing_held(pool)


def test_members_learn_who_died_with_the_supervisor(pool):
    answer = submit(pool, agent_name="g", replicas=3, min_replicas=2)
    first, second = members(answer)
    until(lambda: ray.get(first.others.remote()) == [0, 1, 2], "it does not grow", GROWS_S)
    ray.kill(extra_of(pool)["handle"])
    kill_supervisor(pool)
    for handle in (first, second):
        until(lambda h=handle: ray.get(h.others.remote()) == [0, 1], "nobody says that one is gone")


def extra_of(scheduler):
    """The only extra member of the gang."""
    (found,) = (a for a in scheduler.list_agents()["agents"] if a.get("extra_of") == "g")
    return found


def test_a_gang_of_three_waits_holding_nothing_starts_whole_loses_one_and_recovers(pool, namespace):
    pool.submit_task_with_preemption(
        task_id="busy", pool_name="pool", actor_class=Counter, resources={"cpu": 1.0}
    )
    waiting = submit(pool, agent_name="g", queue=True)
    assert waiting["success"], waiting
    assert waiting["state"] == "queued"
    assert [agent["tasks"] for agent in pool.list_agents()["agents"]] == [["busy"]]
    assert quota(pool, "pool")["free"] == {"cpu": 5.0}
    assert groups_in(namespace) == {}
    pool.complete_task("busy", end_agent=True)
    until(lambda: state_of(pool, "g") == "running", "it does not start")
    assert len(members_of(pool)) == 3
    ray.get(members_of(pool)[0].add.remote(9))
    assert pool.save_task_state("gang")["success"]
    os.kill(ray.get(members_of(pool)[1].where.remote())[1], signal.SIGKILL)
    until(lambda: pool.ensure_agent_health()["rebuilt"] == ["g"], "it is not rebuilt")
    assert ray.get([h.add.remote(0) for h in members_of(pool)]) == [9, 0, 0]


def state_of(scheduler, name):
    return next((a["state"] for a in scheduler.list_agents()["agents"] if a["name"] == name), "")


def members_of(scheduler):
    """The handles of the members of the only gang."""
    (listed,) = (a for a in scheduler.list_agents()["agents"] if "members" in a)
    return [member["handle"] for member in listed["members"]]


def test_members_may_differ(pool, namespace):
    answer = pool.submit_gang(
        "rlhf",
        "pool",
        members=[
            {"actor_class": Member, "resources": {"cpu": 2.0}, "actor_args": (100,)},
            {"actor_class": Counter, "resources": {"cpu": 1.0}, "replicas": 2},
        ],
    )
    learner, *rollouts = members(answer)
    assert ray.get(learner.add.remote(1)) == 101
    assert ray.get([r.add.remote(1) for r in rollouts]) == [1, 1]
    assert [m["resources"] for m in answer["agents"]] == [{"cpu": 2.0}, {"cpu": 1.0}, {"cpu": 1.0}]
    refused = pool.delete_agent(rollout_name := answer["agents"][1]["name"])
    assert refused["reason"] == "agent_not_found"
    assert rollout_name in refused["error"]
    (listed,) = pool.list_agents()["agents"]
    assert pool.delete_agent(listed["name"])["success"]
    assert_nothing_held(pool)
    until(lambda: not groups_in(namespace), "its group is still there")


def test_what_no_gang_can_be_is_refused_at_once(pool):
    for wrong, says in (
        ({"replicas": 0}, "replicas"),
        ({"resources": None}, "resources must say"),
        ({"placement": "TIGHT"}, "STRICT_PACK"),
        ({"bundles": [ONE]}, "bundles"),
        ({"ray_options": {"max_restarts": 1}}, "max_restarts"),
        ({"replicas": None, "same_label": "rack"}, "replicas=N"),
    ):
        with pytest.raises(InvalidRequestError, match=says):
            submit(pool, **wrong)
