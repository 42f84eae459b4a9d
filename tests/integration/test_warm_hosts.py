"""Hosts that stand ready in reserved groups, on real Ray."""

from __future__ import annotations

import os
import signal

import pytest
import ray

from tests.integration.agents import Counter
from tests.integration.polling import actors_in, groups_in, until
from tests.integration.test_pg_pools import kill_supervisor

ONE = {"cpu": 1.0}


class _Then:
    """Becomes what the environment says when it is unpickled."""

    def __reduce__(self):
        return os.getenv, ("CUDA_VISIBLE_DEVICES", "unset")


class Seen(Counter):
    """Notes what it saw while its class was loaded, and where it was built."""

    at_load = _Then()

    def saw(self):
        return type(self).at_load, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("MARK")

    def where(self):
        return ray.get_runtime_context().get_node_id(), os.getpid()


class SeenAsync(Seen):
    """The same with an async method."""

    async def slow(self):
        return self.count

    async def restore_state(self, saved):
        self.count = saved["count"] + 100


class Raising(Counter):
    def __init__(self, name, labels):
        raise ValueError("not today")


class Exiting(Counter):
    def __init__(self, name, labels):
        os._exit(3)


def make_pool(scheduler, cls=Seen, need=None, groups=1, **warm):
    need = need or ONE
    answer = scheduler.create_pool(
        "pool",
        resources={"cpu": 8.0, "gpu": 2.0},
        pg_pool_config={
            "enable": True,
            "high_priority_pg_specs": [need] * groups,
            "warm": {"actor_class": cls, **warm},
        },
    )
    assert answer["success"], answer
    return scheduler


def warm(scheduler):
    return scheduler.pg_pool_stats("pool")["pools"]["pool"]["warm"]


def ready(scheduler, count=1):
    until(lambda: warm(scheduler)["ready"] == count, lambda: f"not ready: {warm(scheduler)}")
    return hosts_of(scheduler)


def hosts_of(scheduler):
    """The names of the actors that stand ready."""
    namespace = scheduler._connection.settings.namespace
    return {name for name in actors_in(namespace) if ":ready:" in name}


def submit(scheduler, task_id="t", cls=Seen, **more):
    return scheduler.submit_task_with_preemption(
        task_id=task_id,
        pool_name="pool",
        actor_class=cls,
        resources=more.pop("resources", ONE),
        priority=9.0,
        agent_name=f"on-{task_id}",
        **more,
    )


def built(answer):
    """The handle of an agent that came to a reserved group."""
    assert answer["success"], answer
    assert answer["placement_group"]["path"] == "reserved"
    return answer["agent"]["handle"]


def process_of(scheduler, name="on-t"):
    return next(a["pid"] for a in scheduler.list_agents()["agents"] if a["name"] == name)


@pytest.mark.smoke
def test_an_agent_built_in_a_warm_host_is_an_ordinary_agent(scheduler, namespace):
    make_pool(scheduler)
    (host,) = ready(scheduler)
    pid = ray.get(pid_of(host, namespace))
    agent = built(submit(scheduler, actor_args=[5], payload={"a": 1}))
    node_id, process = ray.get(agent.where.remote())
    assert process == pid == process_of(scheduler)
    assert node_id == scheduler.list_agents()["agents"][0]["node_id"]
    assert ray.get(agent.add.remote(2)) == 7
    assert "Seen" in repr(agent)
    # it is saved, evicted and restored, and found after the supervisor's death
    kill_supervisor(scheduler)
    assert ray.get(agent.add.remote(1)) == 8
    saved = scheduler.preempt_task("t")["preempted"][0]["saved_state"]
    assert saved["state"] == {"count": 8}
    until(lambda: host not in actors_in(namespace), "its process still runs")
    again = scheduler.restore_task(saved)
    assert ray.get(again["agent"]["handle"].add.remote(1)) == 9


def pid_of(host, namespace):
    return ray.get_actor(host, namespace).__ray_call__.remote(lambda _self: os.getpid())


def test_a_warm_host_is_used_once_and_replaced(scheduler):
    make_pool(scheduler, count=2)
    before = ready(scheduler, 2)
    built(submit(scheduler))
    scheduler.complete_task("t", end_agent=True)
    built(submit(scheduler, "u"))
    after = ready(scheduler, 2)
    assert len(after) == 3, "two that stand ready, and the agent's"
    assert len(after & before) == 1


def test_other_classes_and_named_agents_start_cold(scheduler):
    make_pool(scheduler)
    ready(scheduler)
    built(submit(scheduler, cls=Counter))
    assert warm(scheduler)["ready"] == 1
    scheduler.delete_agent("on-t")
    built(submit(scheduler, ray_options={"name": "worker"}))
    assert warm(scheduler)["ready"] == 1


@pytest.mark.parametrize("cls", [Seen, SeenAsync])
def test_a_warm_host_sees_only_the_gpus_of_its_bundle_before_the_class_is_loaded(scheduler, cls):
    make_pool(scheduler, cls, need={"cpu": 1.0, "gpu": 1}, groups=2)
    ready(scheduler, 2)
    need = {"cpu": 1.0, "gpu": 1}
    agents = [built(submit(scheduler, f"t{i}", cls, resources=need)) for i in range(2)]
    seen = [ray.get(agent.saw.remote()) for agent in agents]
    assert sorted(at_build for _, at_build, _ in seen) == ["0", "1"]
    assert all(at_load == at_build for at_load, at_build, _ in seen)
    (node,) = scheduler.cluster_snapshot()["nodes"]
    assert node["free"].get("gpu", 0) == 0
    assert len(hosts_of(scheduler)) >= 2


def test_a_share_of_the_bundles_gpu_starts_cold(scheduler):
    make_pool(scheduler, need={"gpu": 1})
    ready(scheduler)
    agent = submit(scheduler, resources={"gpu": 0.5})
    assert agent["success"], agent
    assert ray.get(agent["agent"]["handle"].saw.remote())[1] in ("0", "1")
    assert warm(scheduler)["ready"] == 1


def test_an_async_class_with_a_runtime_env(scheduler):
    env = {"env_vars": {"MARK": "here"}}
    make_pool(scheduler, SeenAsync, runtime_env=env)
    # Now, because a while after its use another one begins to start beside it.
    (host,) = ready(scheduler)
    agent = built(submit(scheduler, cls=SeenAsync, ray_options={"runtime_env": env}))
    assert ray.get(agent.saw.remote())[2] == "here"
    assert ray.get(agent.slow.remote()) == 0
    scheduler.register_running_task("u", "on-t", "pool")
    assert scheduler.execute_preemption("u", "on-t")["saved_state"]["state"] == {"count": 0}
    saved = scheduler.preempt_task("t")["preempted"][0]["saved_state"]
    until(lambda: host not in hosts_of(scheduler), "it still runs")
    again = scheduler.restore_task(saved)
    assert again["success"], again
    assert ray.get(again["agent"]["handle"].add.remote(1)) == 101


def test_references_are_resolved(scheduler):
    make_pool(scheduler)
    ready(scheduler)
    agent = built(submit(scheduler, actor_args=[ray.put(41)]))
    assert ray.get(agent.add.remote(1)) == 42


def test_a_class_that_cannot_be_loaded_says_so(scheduler, tmp_path, monkeypatch):
    (tmp_path / "gone_module.py").write_text("class Gone:\n    def __init__(self, *a): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import gone_module

    make_pool(scheduler, gone_module.Gone)
    (tmp_path / "gone_module.py").unlink()
    until(lambda: warm(scheduler)["errors"], "it does not say so")
    assert "gone_module" in warm(scheduler)["errors"][0]
    # The error is known before Ray has ended the host.
    until(lambda: not hosts_of(scheduler), lambda: f"left: {hosts_of(scheduler)}")
    assert (warm(scheduler)["ready"], warm(scheduler)["starting"]) == (0, 0)
    built(submit(scheduler, cls=Counter))


def test_a_constructor_that_raises_or_exits_is_a_refusal(scheduler):
    for cls, word in ((Raising, "not today"), (Exiting, "its process ended")):
        scheduler.ensure_pool(
            "pool",
            resources={"cpu": 8.0},
            pg_pool_config={"high_priority_pg_specs": [ONE], "warm": {"actor_class": cls}},
        )
        ready(scheduler)
        answer = submit(scheduler, cls=cls)
        assert (answer["success"], answer["reason"]) == (False, "agent_start_failed")
        assert word in answer["error"]
        until(lambda: scheduler.pg_pool_stats()["free"] == 1, "the group is not free")


def test_a_killed_warm_host_is_replaced_and_the_start_succeeds(scheduler, namespace):
    make_pool(scheduler)
    (host,) = ready(scheduler)
    os.kill(ray.get(pid_of(host, namespace)), signal.SIGKILL)
    built(submit(scheduler))
    until(lambda: hosts_of(scheduler) and host not in hosts_of(scheduler), "it is not replaced")


def test_warm_hosts_of_a_previous_supervisor_are_orphans(scheduler, namespace):
    make_pool(scheduler, groups=2)
    before = ready(scheduler, 2)
    agent = built(submit(scheduler))
    kill_supervisor(scheduler)
    assert ray.get(agent.add.remote(1)) == 1
    mine = {a["pid"] for a in scheduler.list_agents()["agents"]}
    assert mine == {ray.get(agent.where.remote())[1]}
    ready(scheduler, 2)
    # Ray may end the others later than new ones are ready.
    until(lambda: len(hosts_of(scheduler) & before) == 1, "not the agent's own alone is left")
    assert ray.get(agent.add.remote(1)) == 2


def test_a_new_warm_class_replaces_the_previous_one(scheduler, namespace):
    make_pool(scheduler)
    (host,) = ready(scheduler)
    scheduler.resize_pool("pool", pg_pool_config={"warm": {"actor_class": Counter, "count": 2}})
    until(lambda: host not in actors_in(namespace), "the first class's host stays")
    ready(scheduler, 2)
    scheduler.resize_pool("pool", pg_pool_config={"warm": None})
    until(lambda: not hosts_of(scheduler), "they stay")


def test_removing_a_group_terminates_its_warm_host(scheduler, namespace):
    make_pool(scheduler)
    ready(scheduler)
    built(submit(scheduler))
    ready(scheduler)
    scheduler.delete_agent("on-t", destroy_pg=True)
    assert groups_in(namespace) == {}
    until(lambda: not hosts_of(scheduler), "it stands ready nowhere")
