"""The quick starts of the overview, as printed, on a Ray that has an ``accelerator``."""

from __future__ import annotations

import os

import ray

from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.simple import SimpleScheduler, SimpleTaskSpec
from tests.integration.polling import actors_in, quota, until


class MyDemoActor:
    def __init__(self, name, labels):
        self.name, self.labels = name, labels


class Moded(AgentActor):
    def mode(self):
        return os.environ.get("MODE")


def nothing_in_the_default_namespace():
    return not actors_in("schedulemesh")


def test_the_simple_scheduler():
    assert ray.is_initialized()
    simple = SimpleScheduler()
    simple.ensure_pool(
        name="demo-pool",
        labels={"stage": "demo"},
        resources={"cpu": 2.0, "memory": 2048.0},
    )
    simple.configure_preemption(
        enable_label_preemption=True,
        label_preemption_rules={"stage": {"demo": ["batch"]}},
    )
    answer = simple.submit(
        task_id="job-demo-1",
        pool="demo-pool",
        actor_class=MyDemoActor,
        resources={"cpu": 1.0},
        labels={"stage": "demo"},
        priority=10.0,
    )
    assert answer["success"]
    assert answer["agent"]["resources"] == {"cpu": 1.0}

    spec = SimpleTaskSpec(
        task_id="job-demo-2",
        pool="demo-pool",
        actor_class=MyDemoActor,
        resources={"cpu": 1.0},
        estimated_duration=5.0,
        payload={"n": 1},
    )
    assert simple.submit_spec(spec)["success"]
    stats = simple.stats()
    assert stats["pools"]["demo-pool"]["used"] == {"cpu": 2.0}
    assert stats["running_tasks"] == simple.get_preemption_stats()["running_tasks"] == 2
    simple.shutdown()
    assert ray.is_initialized(), "a Ray that was there before is left alone"
    until(nothing_in_the_default_namespace, "something is left in Ray")


def test_the_ray_scheduler():
    scheduler = RayScheduler(name="demo-mesh")
    pool = scheduler.create_pool(
        name="demo-pool",
        labels={"stage": "demo"},
        resources={"cpu": 2.0, "memory": 2048.0, "gpu": 0.0, "custom": {"accelerator": 1.0}},
        target_agents=2,
    )
    assert pool["success"]
    agent_a = scheduler.create_agent(
        name="agent-a",
        pool="demo-pool",
        actor_class=AgentActor,
    )
    half = {"cpu": 1.0, "memory": 1024.0, "custom": {"accelerator": 0.5}}
    assert agent_a["agent"]["resources"] == half
    agent_b = scheduler.create_agent(
        name="agent-b",
        pool="demo-pool",
        actor_class=Moded,
        resources={"cpu": 0.5, "memory": 512.0, "gpu": 0.0, "custom": {"accelerator": 0.25}},
        ray_options={"max_restarts": 1, "runtime_env": {"env_vars": {"MODE": "test"}}},
    )
    assert ray.get(agent_b["agent"]["handle"].mode.remote()) == "test"

    agents = scheduler.list_agents("demo-pool")
    assert [a["name"] for a in agents["agents"]] == ["agent-a", "agent-b"]
    listed = agents["agents"][1]
    assert listed["resources"] == {"cpu": 0.5, "memory": 512.0, "custom": {"accelerator": 0.25}}
    assert listed["ray_options"]["max_restarts"] == 1
    assert listed["ray_options"]["runtime_env"]["env_vars"]["MODE"] == "test"
    assert listed["labels"] == {"pool": "demo-pool", "stage": "demo"}
    assert scheduler.list_agents("other-pool")["reason"] == "pool_not_found"
    assert len(scheduler.list_agents()["agents"]) == 2

    handle = agent_a["agent"]["handle"]
    answer = ray.get(handle.invoke.remote("process", payload="hello"))
    assert answer["payload"] == "hello"
    assert answer["agent"] == "agent-a"

    assert scheduler.delete_agent("agent-b")["success"]
    assert scheduler.delete_agent("agent-b", force=True)["already_gone"] is True
    assert quota(scheduler, "demo-pool")["used"] == half
    assert actors_in("schedulemesh") == [
        "schedulemesh:demo-mesh",
        "schedulemesh:demo-mesh:agent-a#1",
    ]

    scheduler.shutdown()
    until(nothing_in_the_default_namespace, "something is left in Ray")
