"""Leases on real Ray: who may use their groups, and how they end."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest
import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from schedulemesh import InvalidRequestError, LeaseRefusedError
from schedulemesh.core.backend.ray_internals import group_in_use
from schedulemesh.simple import SimpleScheduler
from tests.integration.agents import Plain
from tests.integration.drivers import run_driver, start_driver
from tests.integration.polling import (
    assert_nothing_held,
    groups_in,
    process_exists,
    touched,
    until,
)

#: Two groups of two bundles: half of the 8 CPUs of this run's Ray.
GROUPS = [[{"cpu": 1.0}, {"cpu": 1.0}]] * 2

#: A driver in a namespace of its own that uses every bundle of the lease "shared" by detached actors.
USES_EVERY_BUNDLE = """
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
scheduler = RayScheduler.attach("mesh", namespace={namespace!r})
groups = scheduler.get_lease("shared").placement_groups

@ray.remote(num_cpus=1, max_restarts=-1)
class Member:
    def pid(self):
        return os.getpid()

members = [
    Member.options(
        name=f"member-{{i}}-{{bundle}}",
        lifetime="detached",
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle),
    ).remote()
    for i, group in enumerate(groups)
    for bundle in range(group.bundle_count)
]
print("pids", json.dumps(ray.get([member.pid.remote() for member in members])))
"""

#: A driver that holds a lease until its input is closed.
HOLDS = """
scheduler = RayScheduler.attach("mesh", namespace={namespace!r})
lease = scheduler.lease("held", "pool", {groups!r}, strategy="STRICT_PACK", priority=1.0)
print(json.dumps([group.id.hex() for group in lease.placement_groups]), flush=True)
sys.stdin.read()
"""


@ray.remote(num_cpus=1)
class Member:
    """An actor of the holder."""

    def pid(self):
        return os.getpid()


def in_bundle(group, index):
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


def fill(lease):
    """An actor in each bundle of a lease, and the ids of their processes."""
    members = [
        Member.options(scheduling_strategy=in_bundle(group, index)).remote()
        for group in lease.placement_groups
        for index in range(group.bundle_count)
    ]
    return members, ray.get([member.pid.remote() for member in members])


@pytest.fixture
def pool(make_scheduler):
    """A detached scheduler that other jobs may attach to, with a pool of the whole Ray."""
    scheduler = make_scheduler(detached=True)
    assert scheduler.ensure_pool("pool", resources={"cpu": 8.0})["success"]
    return scheduler


def submit(scheduler, task_id, cpu, priority=9.0):
    return scheduler.submit_task_with_preemption(
        task_id, "pool", Plain, resources={"cpu": cpu}, priority=priority
    )


def test_every_bundle_is_for_any_job_in_any_namespace_and_ends_with_the_lease(
    pool, namespace, tmp_path
):
    lease = pool.lease("shared", "pool", GROUPS, strategy="STRICT_PACK")
    assert [group.bundle_count for group in lease.placement_groups] == [2, 2]
    assert lease.placement_groups[0].wait(30)
    (row,) = pool.list_tasks()["tasks"]
    assert (row["task_id"], row["phase"], row["kind"]) == ("shared", "running", "lease")
    told = run_driver(USES_EVERY_BUNDLE.format(namespace=namespace), tmp_path).splitlines()
    pids = next(json.loads(line[4:]) for line in told if line.startswith("pids"))
    assert len(pids) == 4
    assert all(map(process_exists, pids)), "detached actors outlive their job"
    assert lease.release() == {"success": True}
    until(lambda: not any(map(process_exists, pids)), "a process is left")
    until(lambda: not groups_in(namespace), "its groups are left in Ray")
    assert_nothing_held(pool)
    assert lease.release()["detail"] == "already_ended"


@pytest.mark.smoke
def test_a_holder_that_is_called_back_hands_its_groups_over(pool):
    seen = []

    def save(lease):
        seen.append((lease.preempted(), lease.grace_left() > 0))
        lease.release()

    lease = pool.lease("low", "pool", GROUPS, priority=1.0, on_preempt=save, grace_s=60.0)
    _, pids = fill(lease)
    answer = submit(pool, "urgent", 6.0)
    assert answer["success"], answer
    assert lease.grace_left() > 0, "it did not wait for the whole grace"
    assert seen == [(True, True)]
    until(lambda: not any(map(process_exists, pids)), "a process is left")
    assert [task["task_id"] for task in answer["preempted"]] == ["low"]
    assert lease.preempted()


def test_a_holder_that_ignores_the_notice_loses_all_that_runs_in_its_groups(pool):
    lease = pool.lease("low", "pool", GROUPS, priority=1.0, grace_s=1.0)
    members, pids = fill(lease)
    began = time.monotonic()
    assert submit(pool, "urgent", 6.0)["success"]
    assert time.monotonic() - began >= 1.0
    until(lambda: not any(map(process_exists, pids)), "a process is left")
    with pytest.raises(RayActorError):
        ray.get(members[0].pid.remote())
    until(lambda: lease.state == "cancelled", "it has not seen its end")
    with pytest.raises(InvalidRequestError, match="has no placement groups"):
        assert lease.placement_groups


def test_the_handles_of_an_evicted_lease_reach_nothing_of_the_next(pool):
    whole = [[{"cpu": 8.0}]]
    first = pool.lease("first", "pool", whole, priority=1.0, grace_s=0.0)
    (old,) = first.placement_groups
    second = pool.lease("second", "pool", whole, priority=9.0)
    (new,) = second.placement_groups
    assert old.id != new.id
    member = Member.options(scheduling_strategy=in_bundle(new, 0)).remote()
    assert ray.get(member.pid.remote())


def test_a_released_group_is_handed_on_as_it_is(scheduler):
    config = {"enable": True, "max_dynamic_pgs": 1}
    scheduler.create_pool("pool", resources={"cpu": 8.0}, pg_pool_config=config)
    first = scheduler.lease("first", "pool", [[{"cpu": 2.0}]])
    (group,) = first.placement_groups
    members, _ = fill(first)
    until(lambda: group_in_use(group.id.hex()), "Ray does not show what runs in it")
    # Where what its holder has ended is still there a second after the release, the group is made again.
    del members
    until(lambda: not group_in_use(group.id.hex()), "what ran in it does not end")
    first.release()
    with scheduler.lease("second", "pool", [[{"cpu": 2.0}]]) as second:
        assert [handed.id for handed in second.placement_groups] == [group.id]
        fill(second)
    assert second.state == "completed"
    for use in (lambda: second.placement_groups, second.__enter__):
        with pytest.raises(InvalidRequestError, match=r"'second'.*completed"):
            use()
    assert_nothing_held(scheduler)


def test_tasks_that_run_in_a_lease_end_with_it(scheduler, tmp_path):
    config = {"enable": True, "max_dynamic_pgs": 1}
    scheduler.create_pool("pool", resources={"cpu": 8.0}, pg_pool_config=config)
    lease = scheduler.lease("first", "pool", [[{"cpu": 2.0}]])
    (group,) = lease.placement_groups

    @ray.remote(num_cpus=2, max_retries=0)
    def sleeps(began):
        began.touch()
        time.sleep(600)  # there to be ended

    began = tmp_path / "began"
    ref = sleeps.options(scheduling_strategy=in_bundle(group, 0)).remote(began)
    until(touched(began), "it does not run")
    assert not ray.wait([ref], timeout=0)[0]
    lease.release()
    assert ray.wait([ref], timeout=60.0)[0], "it runs on"
    with scheduler.lease("second", "pool", [[{"cpu": 2.0}]]) as second:
        fill(second)


def test_a_lease_ends_with_the_job_of_its_holder_also_when_that_is_killed(
    pool, namespace, tmp_path
):
    holder = start_driver(HOLDS.format(namespace=namespace, groups=GROUPS), tmp_path)
    with holder:
        assert len(json.loads(holder.stdout.readline())) == 2
        lease = pool.get_lease("held")
        assert lease.state == "running"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    until(lambda: not pool.list_tasks()["tasks"], "it is still held")
    until(lambda: not groups_in(namespace), "its groups are left in Ray")
    explained = pool.explain("held")
    assert (explained["state"], explained["reason"]) == ("cancelled", "holder_ended")
    assert_nothing_held(pool)


def test_a_lease_is_as_it_was_when_the_supervisor_has_been_killed(pool):
    lease = pool.lease("kept", "pool", GROUPS, strategy="STRICT_PACK", on_preempt=lambda _: None)
    ids = [group.id for group in lease.placement_groups]
    _, pids = fill(lease)
    before = pool.about()
    os.kill(before["pid"], signal.SIGKILL)
    until(lambda: pool.about()["epoch"] > before["epoch"], "it does not serve again")
    again = pool.get_lease("kept")
    assert again.state == "running"
    assert [group.id for group in again.placement_groups] == ids
    assert all(map(process_exists, pids))
    assert lease.release() == {"success": True}
    until(lambda: not any(map(process_exists, pids)), "a process is left")
    assert_nothing_held(pool)


def test_a_lease_from_a_free_group_survives_a_kill_right_after_it_was_granted(make_scheduler):
    scheduler = make_scheduler(detached=True)
    config = {"enable": True, "max_dynamic_pgs": 1}
    scheduler.create_pool("pool", resources={"cpu": 8.0}, pg_pool_config=config)
    about = scheduler.about()
    for number in range(3):
        lease = scheduler.lease(f"kept-{number}", "pool", [[{"cpu": 2.0}]])
        os.kill(about["pid"], signal.SIGKILL)
        ids = [group.id for group in lease.placement_groups]
        _, pids = fill(lease)
        about, before = scheduler.about(), about
        assert about["epoch"] > before["epoch"]
        again = scheduler.get_lease(f"kept-{number}")
        assert again.state == "running"
        assert [group.id for group in again.placement_groups] == ids
        assert all(map(process_exists, pids)), "what runs in it was ended"
        assert len(scheduler.list_tasks()["tasks"]) == 1, "it was granted twice"
        assert lease.release() == {"success": True}
    assert_nothing_held(scheduler)


def test_a_lease_waits_in_the_queue_until_there_is_room(pool):
    whole = [[{"cpu": 8.0}]]
    with pytest.raises(LeaseRefusedError) as refused, pool.lease("first", "pool", whole):
        pool.lease("second", "pool", GROUPS)
    assert refused.value.answer["reason"] == "preemption_failed"
    with pool.lease("third", "pool", whole):
        waiting = pool.lease("fourth", "pool", GROUPS, queue=True)
        assert (waiting.state, waiting.wait(0.1)) == ("queued", False)
        (row,) = pool.list_queue()["tasks"]
        assert (row["task_id"], row["kind"]) == ("fourth", "lease")
        assert pool.explain("fourth")["state"] == "queued"
        with pytest.raises(InvalidRequestError, match=r"wait\(\) returns when it is granted"):
            assert waiting.placement_groups
    assert waiting.wait(60.0)
    fill(waiting)
    waiting.release()
    assert_nothing_held(pool)


def test_ctrl_c_while_a_lease_waits_leaves_nothing_in_the_queue(
    pool, namespace, tmp_path, interruptible
):
    program = """
    scheduler = RayScheduler.attach("mesh", namespace={namespace!r})
    print("asks", flush=True)
    try:
        scheduler.lease("waits", "pool", [[{{"cpu": 8.0}}]], wait=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    """
    with pool.lease("first", "pool", [[{"cpu": 8.0}]]):
        waiter = start_driver(program.format(namespace=namespace), tmp_path)
        with waiter:
            assert waiter.stdout.readline() == "asks\n"
            until(lambda: pool.list_queue()["total"], "it does not wait")
            waiter.send_signal(signal.SIGINT)
            out, err = waiter.communicate(timeout=60)
        assert out == "interrupted\n", err
        assert pool.list_queue()["total"] == 0
    assert_nothing_held(pool)


def test_a_lease_ends_unless_it_is_renewed(pool):
    lease = pool.lease("short", "pool", GROUPS, ttl_s=10.0)
    assert lease.renew() == {"success": True}
    until(lambda: lease.state == "cancelled", "it does not expire")
    assert pool.explain("short")["reason"] == "lease_expired"
    assert lease.renew()["reason"] == "lease_ended"


def test_a_scheduler_is_shut_down_quietly_while_a_lease_is_watched(tmp_path, namespace):
    program = """
    scheduler = RayScheduler("own", namespace={namespace!r})
    scheduler.create_pool("pool", resources={{"cpu": 2.0}})
    lease = scheduler.lease("watched", "pool", [[{{"cpu": 1.0}}]])
    assert scheduler.shutdown()["success"]
    with lease._changed:
        lease._changed.wait_for(lambda: lease.state != "running", 30.0)
    print(lease.state, flush=True)
    """
    with start_driver(program.format(namespace=namespace), tmp_path) as driver:
        out, err = driver.communicate(timeout=90)
    assert out == "unknown\n", err
    assert "retries" not in err


def test_simple_scheduler_leases_too(namespace):
    with SimpleScheduler("simple", namespace=namespace) as mesh:
        mesh.ensure_pool("pool", resources={"cpu": 8.0})
        called = threading.Event()
        lease = mesh.lease("a", "pool", GROUPS, priority=1.0, on_preempt=lambda _: called.set())
        assert repr(lease).startswith("<Lease 'a' in pool 'pool': running")
        preempting = threading.Thread(target=mesh.preempt_task, args=("a",))
        preempting.start()
        assert called.wait(30.0)
        lease.release()
        preempting.join(60.0)
        assert not preempting.is_alive()
