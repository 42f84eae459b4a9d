"""Classes of every kind that plain Ray runs: generators, async, decorated; names, references, options."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
import ray

from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.agent.metrics_agent import MetricsReportingAgent
from tests.integration.agents import Counter, Plain
from tests.integration.polling import until


@pytest.fixture
def pool(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 4.0, "gpu": 2.0}, target_agents=4)
    return scheduler


def made(scheduler, cls, name="agent", **more):
    answer = scheduler.create_agent(name, "pool", cls, **{"resources": {"cpu": 1.0}, **more})
    assert answer["success"], answer
    return answer["agent"]["handle"]


class Sync(Plain):
    kind = "sync"

    def numbers(self, n):
        for i in range(n):
            yield 2 * i

    @ray.method(num_returns=2)
    def two(self):
        return 1, 2

    @staticmethod
    def fixed(n=3):
        return n

    @classmethod
    def named(cls, *, suffix):
        return cls.kind + suffix

    def __call__(self, x):
        return x + 1

    def _private(self):
        return "private"


class Async(Plain):
    async def double(self, n):
        await asyncio.sleep(0)
        return 2 * n

    async def numbers(self, n):
        for i in range(n):
            yield i

    def plain(self):
        return "plain"

    async def wait_for_cancel(self):
        self.event = asyncio.Event()
        await self.event.wait()
        return "cancelled"

    async def waits(self):
        return hasattr(self, "event")

    def warned(self):
        return ray._private.worker.blocking_get_inside_async_warned

    async def cancel(self, task_id):
        self.event.set()
        return {"success": True}

    async def save_state(self):
        return {"async": True}


def test_sync_methods_of_every_kind(pool):
    agent = made(pool, Sync)
    assert [ray.get(ref) for ref in agent.numbers.remote(3)] == [0, 2, 4]
    assert ray.get(list(agent.two.remote())) == [1, 2]
    assert ray.get(agent.fixed.remote()) == 3
    assert ray.get(agent.fixed.remote(4)) == 4
    assert ray.get(agent.named.remote(suffix="!")) == "sync!"
    assert ray.get(agent._private.remote()) == "private"
    with pytest.raises(TypeError):
        agent.numbers.remote()
    with pytest.raises(AttributeError):
        agent.nonsense.remote()
    assert "Sync" in repr(agent)


def test_async_methods_of_every_kind(pool):
    agent = made(pool, Async)
    assert ray.get([agent.double.remote(i) for i in range(3)]) == [0, 2, 4]
    assert [ray.get(ref) for ref in agent.numbers.remote(3)] == [0, 1, 2]
    assert ray.get(agent.plain.remote()) == "plain"


def test_an_async_agent_is_saved_and_cancelled_on_its_loop(pool):
    pool.update_preemption_policy(cancel_timeout=60.0)  # its process may be slow
    agent = made(pool, Async)
    waiting = agent.wait_for_cancel.remote()
    until(lambda: ray.get(agent.waits.remote()), "it does not wait")
    pool.register_running_task("t", "agent", "pool")
    answer = pool.execute_preemption("t", "agent")
    assert answer["cancel_success"] is True
    assert answer["saved_state"]["state"] == {"async": True}
    assert answer["saved_state"]["consistent"] is False
    assert ray.get(waiting) == "cancelled"
    assert ray.get(agent.warned.remote()) is False, "Ray warns of a loop that nobody blocks"


class AsyncSteps(MetricsReportingAgent):
    """Works in steps as a coroutine; each ends with a safe point."""

    def __init__(self, name, labels):
        super().__init__(name, labels)
        self.steps, self.stop = 0, False

    async def work(self):
        while not self.stop:
            self.steps += 1
            self.report_metrics(steps=self.steps)
            await self.safe_point()
            await asyncio.sleep(0.01)  # the step itself
        return self.steps

    async def done(self):
        return self.steps

    def save_state(self):
        return self.steps

    def cancel(self, task_id):
        self.stop = True
        return {"success": True}


class AsyncStepsSavedOnLoop(AsyncSteps):
    async def save_state(self):
        await asyncio.sleep(0.01)  # what is saved takes its time
        return self.steps

    async def cancel(self, task_id):
        self.stop = True
        return {"success": True}


@pytest.mark.parametrize("cls", [AsyncSteps, AsyncStepsSavedOnLoop])
def test_an_async_agent_with_safe_points_is_checkpointed_and_evicted(pool, cls):
    pool.update_preemption_policy(cancel_timeout=60.0)  # its process may be slow
    agent = made(pool, cls)
    working = agent.work.remote()
    until(lambda: ray.get(agent.done.remote()) > 0, "it does not work")
    pool.register_running_task("t", "agent", "pool")
    saved = pool.save_task_state("t")
    assert saved["success"], saved
    assert saved["saved_state"]["state"] > 0
    until(
        lambda: ray.get(agent.done.remote()) > saved["saved_state"]["state"] + 1,
        "it does not go on after a checkpoint",
    )
    answer = pool.execute_preemption("t", "agent")
    assert (answer["cancel_success"], answer["state_saved"]) == (True, True)
    assert answer["saved_state"]["state"] <= ray.get(working, timeout=30)


class AsyncRestored(Async):
    async def restore_state(self, saved):
        await asyncio.sleep(0)
        self.restored = saved

    async def what(self):
        return self.restored


def test_an_async_agent_is_restored_before_any_other_method(pool):
    answer = pool.submit_task_with_preemption("t", "pool", AsyncRestored, resources={"cpu": 1.0})
    assert answer["success"], answer
    saved = pool.preempt_task("t")["preempted"][0]["saved_state"]
    again = pool.restore_task(saved)
    assert again["state_restored"], again
    assert ray.get(again["agent"]["handle"].what.remote()) == {"async": True}


@ray.remote(num_cpus=1, max_restarts=2)
class Decorated:
    def __init__(self, name, labels):
        self.name = name

    def who(self):
        return self.name


def test_a_decorated_class_is_unwrapped_and_its_options_merged(pool):
    agent = made(pool, Decorated)
    assert ray.get(agent.who.remote()) == "agent"
    (listed,) = pool.list_agents()["agents"]
    assert listed["ray_options"] == {"max_restarts": 2}
    made(pool, Decorated, "other", ray_options={"max_restarts": 0})
    assert pool.list_agents()["agents"][1]["ray_options"] == {"max_restarts": 0}
    with pytest.raises(ValueError, match="num_cpus"):
        made(pool, Decorated, "third", resources={"cpu": 2.0})


def test_a_ray_name_is_found_in_the_callers_namespace(pool):
    agent = made(pool, Counter, ray_options={"name": "my-counter"})
    found = ray.get_actor("my-counter")
    assert ray.get(found.add.remote(2)) == 2
    assert ray.get(agent.add.remote(1)) == 3
    pool.delete_agent("agent")
    # This process has the name in a cache until Ray tells it that the actor is dead.
    until(lambda: not is_named("my-counter"), "it has the name still")


def is_named(name):
    """Whether Ray finds an actor of this name in the namespace of this process."""
    try:
        ray.get_actor(name)
    except ValueError:
        return False
    return True


def test_a_ray_name_that_is_taken_is_a_refusal(pool):
    made(pool, Counter, ray_options={"name": "taken"})
    answer = pool.create_agent(
        "other", "pool", Counter, resources={"cpu": 1.0}, ray_options={"name": "taken"}
    )
    assert (answer["success"], answer["reason"]) == (False, "agent_start_failed")
    assert "taken" in answer["error"]
    assert [a["name"] for a in pool.list_agents()["agents"]] == ["agent"]
    assert ray.get(ray.get_actor("taken").add.remote()) == 1


def test_references_as_arguments(pool):
    whole, nested = ray.put("whole"), ray.put("nested")
    answer = pool.submit_task_with_preemption(
        task_id="t",
        pool_name="pool",
        resources={"cpu": 1.0},
        actor_class=Plain,
        actor_args=[whole, [nested]],
        actor_kwargs={"also": whole},
    )
    assert answer["restartable"] is False
    (first, second), kwargs = ray.get(answer["agent"]["handle"].given.remote())
    assert first == kwargs["also"] == "whole"
    assert ray.get(second[0]) == "nested"

    plain = pool.submit_task_with_preemption(
        task_id="u",
        pool_name="pool",
        resources={"cpu": 1.0},
        actor_class=Plain,
        actor_args=[whole],
    )
    assert plain.get("restartable", True)
    # a task with references within its arguments cannot be built again, and says so
    saved = pool.preempt_task("t")["preempted"][0]["saved_state"]
    refused = pool.restore_task(saved)
    assert (refused["success"], refused["reason"]) == (False, "not_restartable")


def test_concurrency_groups_and_max_concurrency(pool):
    class Grouped(Plain):
        @ray.method(concurrency_group="io")
        def beside(self):
            return "beside"

    agent = made(pool, Grouped, ray_options={"concurrency_groups": {"io": 1}})
    assert ray.get(agent.beside.remote()) == "beside"

    busy = made(pool, AgentActor, "busy", ray_options={"max_concurrency": 2})
    working = busy.process.remote(task_id="long", simulated_duration=60.0)
    assert ray.get(busy.cancel.remote("long"))["success"]
    assert ray.get(working)["status"] == "cancelled"


def test_gpu_shares_are_kept_per_device(pool):
    class OnGpu(Plain):
        def gpus(self):
            return ray.get_runtime_context().get_accelerator_ids()["GPU"]

    for name in ("a", "b"):
        agent = made(pool, OnGpu, name, resources={"gpu": 0.5})
        assert len(ray.get(agent.gpus.remote())) == 1
    made(pool, OnGpu, "c", resources={"gpu": 1.0})
    refused = pool.create_agent("d", "pool", OnGpu, resources={"gpu": 1.0})
    assert not refused["success"]


def test_an_agent_that_ray_restarted_is_still_controlled(pool):
    agent = made(pool, Counter, ray_options={"max_restarts": 1, "max_task_retries": 2})
    pool.register_running_task("t", "agent", "pool")
    pid = ray.get(agent.pid.remote())
    os.kill(pid, 9)
    until(lambda: ray.get(agent.pid.remote()) != pid, "Ray does not restart it")
    ray.get(agent.add.remote(5))
    answer = pool.execute_preemption("t", "agent")
    assert answer["saved_state"]["state"] == {"count": 5}, answer


def test_an_agents_process_does_not_load_the_supervisor(pool):
    class Modules(Plain):
        def loaded(self):
            return sorted(sys.modules)

    loaded = ray.get(made(pool, Modules).loaded.remote())
    assert "schedulemesh.core.backend.supervisor_actor" in loaded  # the class behind the handle
    heavy = ("sqlalchemy", "schedulemesh.engine.engine", "schedulemesh.runtime.supervisor")
    assert [name for name in heavy if name in loaded] == []
