"""Pools that keep placement groups, on real Ray: which group an agent gets, and what becomes of groups."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.core import RayScheduler
from schedulemesh.core.client.connection import connect
from schedulemesh.core.client.task_request import task_submission
from schedulemesh.engine.messages.outcomes import Accepted, Refused
from schedulemesh.protocol.answers import Response, decode_answer
from schedulemesh.protocol.requests import encode_request
from tests.integration.agents import Counter, Hung, Plain
from tests.integration.drivers import run_driver, start_driver
from tests.integration.polling import actors_in, assert_nothing_held, groups_in, touched, until

ONE = {"cpu": 2.0, "memory": 1024.0}
#: Two reserved groups and two dynamic ones fill the 8 CPUs of this run's Ray.
CONFIG = {"enable": True, "high_priority_pg_specs": [ONE, ONE], "max_dynamic_pgs": 2}


def make_pool(scheduler, cpu=8.0, **config):
    answer = scheduler.create_pool(
        "pool", resources={"cpu": cpu, "memory": 16000.0}, pg_pool_config={**CONFIG, **config}
    )
    assert answer["success"], answer
    return answer


@pytest.fixture
def pool(scheduler):
    """A scheduler with the pool."""
    make_pool(scheduler)
    return scheduler


@pytest.fixture
def unobserving(make_scheduler, namespace):
    """A scheduler that looks at the cluster when it starts and then no more, so that it does not know what
    others have taken since.
    """
    whole = ray.cluster_resources()["CPU"]
    until(lambda: ray.available_resources().get("CPU") == whole, "others still have CPUs")
    connect(SchedulerSettings(name="mesh", namespace=namespace, monitor_interval_s=3600.0))
    return make_scheduler()


def submit(scheduler, task_id, priority=1.0, **more):
    more.setdefault("actor_class", Counter)
    if "bundles" not in more:
        more.setdefault("resources", ONE)
    return scheduler.submit_task_with_preemption(
        task_id=task_id, pool_name="pool", priority=priority, agent_name=f"on-{task_id}", **more
    )


def submit_for_group(scheduler, task_id, priority=9.0, **more):
    return scheduler.submit_with_pg_preemption(
        task_id=task_id,
        pool_name="pool",
        actor_class=Counter,
        resources=more.pop("resources", ONE),
        priority=priority,
        agent_name=f"on-{task_id}",
        **more,
    )


def runs(answer):
    """The group of a submission that succeeded, and whose agent answers."""
    assert answer["success"], answer
    assert ray.get(answer["agent"]["handle"].add.remote(1)) >= 1
    return answer["placement_group"]


def numbers(scheduler):
    stats = scheduler.pg_pool_stats()
    return {key: stats[key] for key in ("reserved", "dynamic", "free", "in_use", "destroyed")}


def same_groups_as_ray(scheduler, namespace):
    """Whether Ray has the same groups as the scheduler, each on the same nodes."""
    stats = scheduler.pg_pool_stats()
    book = {
        group["name"]: group["node_ids"]
        for pool in stats["pools"].values()
        for group in pool["groups"]
        if group["phase"] == "ready"
    }
    real = {
        name: [entry["bundles_to_node_id"][i] for i in sorted(entry["bundles"])]
        for name, entry in groups_in(namespace).items()
    }
    return book == real


class TestWhichGroup:
    def test_creating_a_pool_waits_for_its_reserved_groups(self, scheduler, namespace):
        answer = make_pool(scheduler)
        assert answer["placement_groups"] == {"reserved": 2, "ready": 2, "unplaced": []}
        living = groups_in(namespace)
        assert [entry["state"] for entry in living.values()] == ["CREATED"] * 2
        assert all(name.startswith(f"schedulemesh:mesh@{namespace}:group:") for name in living)
        bundle = next(iter(living.values()))["bundles"][0]
        assert (bundle["CPU"], bundle["memory"]) == (2.0, 1024 * 2**20)
        again = scheduler.ensure_pool(
            "pool", resources={"cpu": 8.0, "memory": 16000.0}, pg_pool_config=CONFIG
        )
        assert again["success"]
        assert groups_in(namespace).keys() == living.keys()
        assert same_groups_as_ray(scheduler, namespace)

    @pytest.mark.smoke
    def test_entitled_tasks_get_reserved_groups_and_others_dynamic_ones(self, pool, namespace):
        low = runs(submit(pool, "low"))
        assert (low["path"], len(groups_in(namespace))) == ("created", 3)
        high = runs(submit(pool, "high", 9.0))
        assert high["path"] == "reserved"
        listed, _ = sorted(pool.list_agents()["agents"], key=lambda agent: agent["name"])
        assert listed["placement_group"]["id"] == high["id"]
        assert listed["placement_group"]["node_ids"] == high["node_ids"] == [listed["node_id"]]
        assert numbers(pool) == {
            "reserved": 2,
            "dynamic": 1,
            "free": 1,
            "in_use": 2,
            "destroyed": 0,
        }

    def test_a_dynamic_group_is_reused(self, pool, namespace):
        first = runs(submit(pool, "one"))
        pool.complete_task("one", end_agent=True)
        assert first["name"] in groups_in(namespace)
        again = runs(submit(pool, "two"))
        assert (again["path"], again["id"]) == ("reused", first["id"])
        assert pool.pg_pool_stats()["reused"] == 1

    def test_without_reuse_a_group_is_removed_with_its_agent(self, scheduler, namespace):
        make_pool(scheduler, enable_pg_reuse=False)
        first = runs(submit(scheduler, "one"))
        scheduler.complete_task("one", end_agent=True)
        until(lambda: first["name"] not in groups_in(namespace), "it stays")

    def test_an_idle_group_is_removed_after_its_idle_time(self, scheduler, namespace):
        make_pool(scheduler, idle_timeout_s=0.5)
        first = runs(submit(scheduler, "one"))
        scheduler.complete_task("one", end_agent=True)
        until(lambda: first["name"] not in groups_in(namespace), "it stays")
        assert len(groups_in(namespace)) == 2, "reserved ones do not go"
        until(lambda: numbers(scheduler)["destroyed"] == 1, "it is still listed")

    def test_an_agent_without_a_task_runs_in_a_group_too(self, pool):
        answer = pool.create_agent("a", "pool", Counter, resources=ONE)
        assert answer["success"], answer
        assert answer["placement_group"]["path"] == "created"

    def test_a_victims_group_is_preempted_group(self, pool, namespace):
        groups = [runs(submit(pool, f"low-{i}"))["id"] for i in range(2)]
        for i in range(2):
            runs(submit(pool, f"high-{i}", 9.0))
        before = groups_in(namespace)
        pool.ensure_pool("other", resources={"cpu": 1.0})
        pool.resize_pool("pool", resources={"cpu": 12.0, "memory": 16000.0})
        refused = submit_for_group(pool, "too-low", 1.5)
        assert (refused["success"], refused["reason"]) == (False, "group_unplaceable")
        answer = submit_for_group(pool, "incoming", 4.0)
        group = runs(answer)
        assert (answer["path"], group["path"]) == ("pg", "preempted")
        assert group["id"] in groups
        assert [v["reason"] for v in answer["preempted"]] == ["same_pool_preemption"]
        assert groups_in(namespace).keys() == before.keys()
        assert {n: e["placement_group_id"] for n, e in groups_in(namespace).items()} == {
            n: e["placement_group_id"] for n, e in before.items()
        }, "none was made anew"

    def test_the_group_of_a_victim_whose_cancel_hangs_is_preempted_group(self, scheduler):
        class Stubborn(Counter):
            def cancel(self, task_id):
                threading.Event().wait()

        make_pool(scheduler, max_dynamic_pgs=1)
        scheduler.update_preemption_policy(cancel_timeout=0.2)
        group = runs(submit(scheduler, "stubborn", actor_class=Stubborn))
        answer = submit_for_group(scheduler, "incoming", 4.0)
        assert [v["task_id"] for v in answer["preempted"]] == ["stubborn"]
        assert runs(answer)["id"] == group["id"]

    def test_short_quota_is_no_reason_to_evict_but_the_fallback_may(self, scheduler):
        make_pool(scheduler, cpu=6.0)
        for i in range(2):
            runs(submit(scheduler, f"rollout-0{i}", 1.0))
        runs(submit(scheduler, "reward-00", 6.0))
        asked = {"priority": 9.0, "request_id": "once"}
        refused = submit_for_group(scheduler, "train-00", **asked)
        assert (refused["success"], refused["reason"]) == (False, "insufficient_quota")
        assert scheduler.get_preemption_stats()["total_preemptions"] == 0
        answer = submit_for_group(scheduler, "train-00", fallback=True, **asked)
        assert runs(answer)["path"] == "reserved"
        assert (answer["path"], len(answer["preempted"])) == ("fallback", 1)
        assert scheduler.get_preemption_stats()["total_preemptions"] == 1
        again = submit_for_group(scheduler, "train-00", fallback=True, **asked)
        assert again["agent"]["name"] == answer["agent"]["name"]
        assert scheduler.get_preemption_stats()["total_preemptions"] == 1

    def test_a_pool_without_groups_has_none_to_give(self, scheduler):
        scheduler.create_pool("pool", resources={"cpu": 8.0, "memory": 16000.0})
        assert submit_for_group(scheduler, "t")["reason"] == "no_pg_pool"
        assert submit(scheduler, "t", bundles=[ONE, ONE])["reason"] == "no_pg_pool"
        answer = submit_for_group(scheduler, "t", fallback=True)
        assert (answer["success"], answer["path"]) == (True, "fallback")
        assert "placement_group" not in answer

    def test_ray_options(self, pool):
        answer = submit(pool, "t", 9.0, ray_options={"name": "train-worker-00"})
        assert runs(answer)["path"] == "reserved"
        assert ray.get(ray.get_actor("train-worker-00").add.remote(1)) == 2
        refused = submit(pool, "u", ray_options={"scheduling_strategy": "SPREAD"})
        assert refused["reason"] == "conflicting_options"

    def test_a_dry_run_makes_nothing(self, pool, namespace):
        answer = submit(pool, "t", dry_run=True)
        assert answer["success"]
        assert answer["placement_group"]["path"] == "created"
        assert len(groups_in(namespace)) == 2


def group_id(namespace, group):
    return groups_in(namespace)[group["name"]]["placement_group_id"]


class Parent(Counter):
    """Has children of its own."""

    def children(self, amount):
        @ray.remote(num_cpus=amount)
        def child():
            return ray.util.get_current_placement_group().id.hex()

        return ray.get([child.remote() for _ in range(2)])


class TestBundles:
    def test_an_agent_of_several_bundles_runs_in_the_first_and_its_children_in_all(
        self, pool, namespace
    ):
        answer = submit(pool, "t", bundles=[{"cpu": 1.0}, {"cpu": 2.0}], actor_class=Parent)
        group = runs(answer)
        assert answer["agent"]["resources"] == {"cpu": 3.0}
        assert len(group["node_ids"]) == 2
        found = ray.get(answer["agent"]["handle"].children.remote(2))
        assert set(found) == {group_id(namespace, group)}

    def test_an_agent_may_leave_all_its_bundles_to_others(self, pool, namespace):
        halves = [{"cpu": 2.0}, {"cpu": 2.0}]
        answer = submit(pool, "t", bundles=halves, driver_bundle=False)
        place = PlacementGroup(
            ray.PlacementGroupID(bytes.fromhex(group_id(namespace, runs(answer))))
        )
        workers = [
            ray.remote(num_cpus=2)(Counter)
            .options(scheduling_strategy=PlacementGroupSchedulingStrategy(place, bundle))
            .remote("worker", {})
            for bundle in range(2)
        ]
        assert ray.get([worker.add.remote(1) for worker in workers], timeout=60.0)
        assert runs(answer), "the agent runs on beside them"
        assert pool.list_pools()["pools"][0]["used"]["cpu"] == 4.0

    def test_a_reserved_group_of_the_same_bundles(self, scheduler):
        spec = {"bundles": [{"cpu": 1.0}, {"cpu": 1.0}], "placement_strategy": "PACK"}
        make_pool(scheduler, high_priority_pg_specs=[spec])
        answer = submit(scheduler, "t", 9.0, bundles=[{"cpu": 1.0}, {"cpu": 1.0}])
        assert runs(answer)["path"] == "reserved"


class TestWhatBecomesOfGroups:
    @pytest.mark.parametrize(("destroy", "stays"), [(True, False), (False, True), (None, True)])
    def test_a_reserved_group_is_removed_only_on_request(self, pool, namespace, destroy, stays):
        group = runs(submit(pool, "t", 9.0))
        assert pool.delete_agent("on-t", destroy_pg=destroy)["success"]
        assert (group["name"] in groups_in(namespace)) is stays
        assert pool.pg_pool_stats()["reserved"] == (2 if stays else 1)
        if not stays:
            until(lambda: len(groups_in(namespace)) == 1, "another one is made")
            answer = pool.resize_pool("pool")
            assert answer["placement_groups"]["ready"] == len(groups_in(namespace)) == 2

    @pytest.mark.parametrize(
        ("destroy", "reuse", "stays"),
        [(True, True, False), (False, False, True), (None, True, True), (None, False, False)],
    )
    def test_a_dynamic_group_is_kept_on_request(self, scheduler, namespace, destroy, reuse, stays):
        make_pool(scheduler, enable_pg_reuse=reuse)
        group = runs(submit(scheduler, "t"))
        scheduler.delete_agent("on-t", destroy_pg=destroy)
        if stays:
            assert group["name"] in groups_in(namespace)
        else:
            until(lambda: group["name"] not in groups_in(namespace), "it stays")

    def test_a_resize_changes_what_is_given(self, pool, namespace):
        answer = pool.resize_pool("pool", pg_pool_config={"high_priority_pg_specs": [ONE] * 3})
        assert answer["placement_groups"] == {"reserved": 3, "ready": 3, "unplaced": []}
        assert answer["pool"]["resources"] == {"cpu": 8.0, "memory": 16000.0}
        pool.resize_pool("pool", pg_pool_config={"high_priority_pg_specs": [ONE]})
        until(lambda: len(groups_in(namespace)) == 1, "those that are too many stay")
        assert pool.resize_pool("nowhere")["reason"] == "pool_not_found"

    def test_the_target_is_kept_filled(self, scheduler, namespace):
        answer = scheduler.create_pool(
            "pool",
            resources={"cpu": 4.0},
            target_agents=2,
            pg_pool_config={"enable": True, "fill_target_agents": True},
        )
        assert answer["success"], answer
        until(lambda: len(groups_in(namespace)) == 2, "the target is not filled")
        assert runs(submit(scheduler, "t", resources=None))["path"] in ("created", "reused")

    def test_a_group_that_no_node_can_hold_is_refused_at_once(self, scheduler, namespace):
        answer = make_pool(scheduler, high_priority_pg_specs=[ONE, {"cpu": 100.0}])
        standing = answer["placement_groups"]
        assert (standing["reserved"], standing["ready"]) == (1, 1)
        (unplaced,) = standing["unplaced"]
        assert unplaced["bundles"] == [{"cpu": 100.0}]
        assert "cpu" in unplaced["error"]
        assert scheduler.pg_pool_stats("pool")["pools"]["pool"]["unplaced"] == [unplaced]
        refused = submit(scheduler, "huge", resources={"cpu": 100.0})
        assert not refused["success"]

    def test_a_group_that_ray_does_not_place_in_time_is_withdrawn_with_a_reason(
        self, unobserving, namespace
    ):
        """Others take the node's CPUs just before."""
        scheduler = unobserving
        make_pool(scheduler, high_priority_pg_specs=[], wait_timeout_s=1.0)
        other = ray.remote(num_cpus=7)(Plain).remote("other", {})
        ray.get(other.pid.remote())
        until(lambda: ray.available_resources().get("CPU") == 1.0, "Ray does not say so yet")
        answer = submit(scheduler, "t")
        ray.kill(other)
        assert not answer["success"]
        assert "bundle 0 needs cpu 2" in answer["error"]
        assert groups_in(namespace) == {}
        assert_nothing_held(scheduler)

    def test_one_that_an_outsider_removes_is_made_again(self, pool, namespace):
        answer = submit(pool, "t", 9.0)
        group = runs(answer)
        outsider = ray.util.placement_group_table()
        (ray_id,) = (i for i, entry in outsider.items() if entry["name"] == group["name"])
        from ray import PlacementGroupID
        from ray.util.placement_group import PlacementGroup, remove_placement_group

        remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(ray_id))))
        until(lambda: not pool.list_agents()["agents"], "its agent is still listed")
        until(lambda: len(groups_in(namespace)) == 2, "it is not made again")
        until(lambda: same_groups_as_ray(pool, namespace), "the state differs")
        assert runs(submit(pool, "u", 9.0))["path"] == "reserved"


class TestAcrossRestarts:
    def test_a_shutdown_leaves_no_group(self, make_scheduler, namespace):
        scheduler = make_scheduler()
        make_pool(scheduler, warm={"actor_class": Counter})
        runs(submit(scheduler, "t"))
        scheduler.shutdown()
        assert groups_in(namespace) == {}
        until(lambda: not actors_in(namespace), "an actor is left")

    @pytest.mark.parametrize("how", ["ends", "killed"])
    def test_a_job_that_ends_leaves_no_group(self, namespace, tmp_path, how):
        source = f"""
        scheduler = RayScheduler("of-job", namespace={namespace!r})
        config = {{"high_priority_pg_specs": [{{"cpu": 1}}], "warm": {{"actor_class": AgentActor}}}}
        scheduler.create_pool("pool", resources={{"cpu": 2}}, pg_pool_config=config)
        print(scheduler.create_agent("a", "pool", AgentActor, resources={{"cpu": 1}})["success"], flush=True)
        sys.stdin.readline()
        """
        with start_driver(source, tmp_path) as driver:
            assert driver.stdout.readline().strip() == "True", driver.stderr.read()
            assert len(groups_in(namespace)) == 2
            if how == "killed":
                driver.send_signal(signal.SIGKILL)
            driver.communicate("\n", timeout=60)
        until(lambda: not actors_in(namespace), lambda: f"left in Ray: {actors_in(namespace)}")
        until(lambda: not groups_in(namespace), lambda: f"left in Ray: {groups_in(namespace)}")

    def test_a_detached_scheduler_keeps_its_groups(self, namespace, tmp_path):
        run_driver(
            f"""
            scheduler = RayScheduler("kept", namespace={namespace!r}, detached=True)
            config = {{"high_priority_pg_specs": [{{"cpu": 1}}]}}
            scheduler.create_pool("pool", resources={{"cpu": 2}}, pg_pool_config=config)
            """,
            tmp_path,
        )
        (name,) = groups_in(namespace)
        scheduler = RayScheduler.attach("kept", namespace=namespace)
        answer = submit(scheduler, "t", 9.0, resources={"cpu": 1.0})
        assert runs(answer)["name"] == name
        scheduler.shutdown()
        assert groups_in(namespace) == {}

    @pytest.mark.smoke
    def test_a_killed_supervisor_takes_its_groups_over(self, pool, namespace):
        high, low = runs(submit(pool, "high", 9.0)), runs(submit(pool, "low"))
        handle = pool.list_agents()["agents"][0]["handle"]
        before = ids(namespace)
        orphan = ray.util.placement_group(
            [{"CPU": 1}], name=f"schedulemesh:mesh@{namespace}:group:orphan", lifetime="detached"
        )
        assert orphan.wait(30)
        kill_supervisor(pool)
        assert {a["name"] for a in pool.list_agents()["agents"]} == {"on-high", "on-low"}
        assert ray.get(handle.add.remote(1)) == 2, "the agents did not notice"
        assert ids(namespace) == before, "and the orphan is gone"
        pool.complete_task("low", end_agent=True)
        again = runs(submit(pool, "again"))
        assert (again["path"], again["id"]) == ("reused", low["id"])
        pool.delete_agent("on-high", destroy_pg=True)
        assert high["name"] not in groups_in(namespace)

    def test_a_supervisor_killed_during_group_creation_continues(self, unobserving, namespace):
        """A group that Ray cannot place yet, because somebody else has the node."""
        scheduler = unobserving
        make_pool(scheduler, high_priority_pg_specs=[], wait_timeout_s=60.0)
        other = ray.remote(num_cpus=8)(Plain).remote("other", {})
        ray.get(other.pid.remote())
        refs = [start_submitting(scheduler, f"t{i}") for i in range(2)]
        until(lambda: len(groups_in(namespace)) == 2, "Ray is not asked")
        made = ids(namespace)
        os.kill(supervisor_pid(scheduler), signal.SIGKILL)
        ray.kill(other)
        for ref in refs:
            assert isinstance(reply_of(ref).outcome, Accepted), reply_of(ref).outcome
        assert ids(namespace) == made, "they were taken over"
        assert {entry["state"] for entry in groups_in(namespace).values()} == {"CREATED"}
        assert same_groups_as_ray(scheduler, namespace)

    def test_an_agent_killed_in_its_group_leaves_it_free(self, pool, namespace):
        answer = submit(pool, "t", 9.0)
        group = runs(answer)
        os.kill(pool.list_agents()["agents"][0]["pid"], signal.SIGKILL)
        until(lambda: not pool.list_agents()["agents"], "it is still listed")
        assert group["name"] in groups_in(namespace)
        assert numbers(pool)["free"] == 2

    def test_a_start_that_is_called_off_leaves_its_group_free(self, pool, namespace, tmp_path):
        mark = tmp_path / "mark"
        ref = start_submitting(pool, "hung", actor_class=Hung, actor_args=["init", str(mark)])
        until(touched(mark), "it does not start")
        pool.delete_agent("on-hung")
        assert isinstance(reply_of(ref).outcome, Refused)
        until(lambda: numbers(pool)["free"] == 3, "its group is not free")
        assert runs(submit(pool, "next"))["path"] in ("reused", "created")


def ids(namespace):
    return {name: entry["placement_group_id"] for name, entry in groups_in(namespace).items()}


def supervisor_pid(scheduler):
    return scheduler.about()["pid"]


def kill_supervisor(scheduler):
    """Kill -9; it serves again when this returns."""
    pid = supervisor_pid(scheduler)
    os.kill(pid, signal.SIGKILL)
    until(lambda: supervisor_pid(scheduler) != pid, "it does not come back")


def start_submitting(scheduler, task_id, **more):
    """A submission that is not waited for: the reference of its reply."""
    given = {
        "task_id": task_id,
        "pool_name": "pool",
        "actor_class": Counter,
        "resources": ONE,
        "priority": 1.0,
        "agent_name": f"on-{task_id}",
        **more,
    }
    found = task_submission(scheduler._connection.caller, given)
    supervisor = scheduler.supervisor_handle()
    return supervisor.ask.remote(encode_request(found.request), found.refs)


def reply_of(ref):
    """The reply to it."""
    answered = ray.get(ref, timeout=60)
    return decode_answer(answered[0] if isinstance(answered, tuple) else answered, Response)
