"""Agents that die, hang or fall silent: found, removed, and rebuilt from their saved state."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
import ray

from schedulemesh.core.client.head import ScheduleMeshHead
from schedulemesh.errors import InvalidRequestError
from tests.integration.agents import Counter, Plain
from tests.integration.polling import actors_in, process_exists, quota, until

ONE = {"cpu": 1.0}


class AsyncCounter(Counter):
    """The same, on an event loop."""

    async def later(self, n: int = 1) -> int:
        return self.add(n)


@pytest.fixture
def pool(scheduler):
    """A pool of two CPUs."""
    scheduler.create_pool("pool", resources={"cpu": 2.0})
    return scheduler


def started(scheduler, task_id, cls=Counter, **more):
    answer = scheduler.submit_task_with_preemption(
        task_id, "pool", cls, resources=ONE, agent_name=f"on-{task_id}", **more
    )
    assert answer["success"], answer
    return answer["agent"]["handle"]


def agent_of(scheduler, task_id):
    (found,) = (a for a in scheduler.list_agents()["agents"] if task_id in a["tasks"])
    return found


def killed(scheduler, task_id):
    """Kill -9 its agent, and wait until it is removed."""
    pid = agent_of(scheduler, task_id)["pid"]
    os.kill(pid, signal.SIGKILL)
    until(
        lambda: pid not in {a["pid"] for a in scheduler.list_agents()["agents"]},
        "it is still listed",
    )


def test_healthy_agents_are_left_alone(pool):
    started(pool, "t")
    pool.register_running_task("elsewhere", "unknown", "pool")
    checked = pool.ensure_agent_health(timeout=120)
    nothing = {"rebuilt": [], "removed": [], "details": []}
    assert checked == {"success": True, "checked": 1, "healthy": 1, **nothing}
    for wrong in (0, -1.0, "soon", None, True):
        with pytest.raises(InvalidRequestError, match="timeout"):
            pool.ensure_agent_health(timeout=wrong)


def test_a_dead_agent_is_rebuilt_from_its_last_saved_state(pool):
    handle = started(pool, "t")
    ray.get(handle.add.remote(7))
    assert pool.save_task_state("t")["saved_state"]["state"] == {"count": 7}
    ray.get(handle.add.remote(100))
    killed(pool, "t")
    assert not quota(pool, "pool")["used"]
    (row,) = pool.list_saved_states()["saved_states"]
    assert (row["task_id"], row["status"], row["pool_name"]) == ("t", "lost", "pool")
    done = pool.ensure_agent_health()
    assert (done["checked"], done["healthy"], done["rebuilt"]) == (1, 0, ["on-t"])
    (detail,) = done["details"]
    assert detail == {
        "agent_name": "on-t",
        "pool_name": "pool",
        "problem": "dead",
        "tasks": ["t"],
        "action": "rebuilt",
        "state_restored": True,
    }
    again = agent_of(pool, "t")["handle"]
    assert ray.get(again.add.remote(0)) == 7
    assert quota(pool, "pool")["used"] == ONE
    assert pool.ensure_agent_health()["rebuilt"] == []


def test_a_hanging_agent_is_terminated_and_rebuilt(pool):
    """A process that is stopped answers neither its calls nor a ping."""
    started(pool, "t")
    started(pool, "well")
    pid = agent_of(pool, "t")["pid"]
    os.kill(pid, signal.SIGSTOP)
    done = pool.ensure_agent_health(timeout=0.001)
    assert (done["checked"], done["healthy"], done["rebuilt"]) == (2, 1, ["on-t"])
    assert done["details"][0]["problem"] == "silent"
    until(lambda: not process_exists(pid), "the one that hung still runs")
    assert ray.get(agent_of(pool, "t")["handle"].add.remote(0)) == 0


def test_an_agent_that_reported_recently_is_not_probed(pool):
    started(pool, "t")
    pid = agent_of(pool, "t")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert pool.ensure_agent_health(timeout=3600)["healthy"] == 1
    finally:
        os.kill(pid, signal.SIGCONT)


def test_an_agent_that_cannot_be_rebuilt_is_reported_once_and_can_be_restored_later(pool):
    ray.get(started(pool, "t").add.remote(3))
    pool.save_task_state("t")
    killed(pool, "t")
    for name in ("a", "b"):
        pool.create_agent(name, "pool", Plain, resources=ONE)
    done = pool.ensure_agent_health()
    assert (done["rebuilt"], done["removed"]) == ([], ["on-t"])
    assert "lacks cpu 1" in done["details"][0]["error"]
    assert pool.ensure_agent_health()["details"] == []
    pool.delete_agent("a")
    answer = pool.restore_task(pool.get_saved_state("t")["saved_state"])
    assert answer["state_restored"], answer
    assert ray.get(answer["agent"]["handle"].add.remote(0)) == 3


def test_periodic_health_checks_rebuild_agents(make_scheduler):
    scheduler = make_scheduler(health_interval_s=0.5)
    scheduler.create_pool("pool", resources={"cpu": 2.0})
    started(scheduler, "t")
    pid = agent_of(scheduler, "t")["pid"]
    os.kill(pid, signal.SIGKILL)

    def back():
        agents = scheduler.list_agents()["agents"]
        return [a for a in agents if a["state"] == "running" and a["pid"] != pid]

    until(back, "nobody makes it again")
    assert ray.get(agent_of(scheduler, "t")["handle"].add.remote()) == 1


@pytest.mark.parametrize("cls", [Counter, AsyncCounter])
def test_an_agent_restarted_by_ray_gets_its_last_saved_state(pool, cls):
    handle = started(pool, "t", cls, ray_options={"max_restarts": 2, "max_task_retries": -1})
    ray.get(handle.add.remote(5))
    pool.save_task_state("t")
    ray.get(handle.add.remote(50))
    first = agent_of(pool, "t")
    os.kill(first["pid"], signal.SIGKILL)
    assert ray.get(handle.add.remote(1)) == 6
    second = until(
        lambda: (found := agent_of(pool, "t"))["restarts"] == 1 and found, "its life is not known"
    )
    assert second["pid"] == ray.get(handle.pid.remote()) != first["pid"]
    assert second["node_id"] == first["node_id"]
    assert quota(pool, "pool")["used"] == ONE
    # the new life is controlled as the first was, and its state is its own
    saved = pool.preempt_task("t")["preempted"][0]["saved_state"]
    assert (saved["state"], saved["source"]) == ({"count": 6}, "save_state"), saved
    # manually freed quota is held for the client that freed it, for some seconds
    assert quota(pool, "pool")["reserved"] == ONE
    assert pool.list_agents()["agents"] == pool.list_tasks()["tasks"] == []


def test_an_agent_that_ray_no_longer_restarts_is_dead(pool):
    handle = started(pool, "t", ray_options={"max_restarts": 1})
    pid = agent_of(pool, "t")["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: agent_of(pool, "t")["restarts"] == 1, "its life is not known")
    with contextlib.suppress(ray.exceptions.RayActorError):
        ray.get(handle.add.remote(1))
    killed(pool, "t")
    assert pool.ensure_agent_health()["rebuilt"] == ["on-t"]


def test_an_orphan_is_terminated_when_the_supervisor_recovers(pool, namespace):
    class Orphan:
        def pid(self):
            return os.getpid()

    started(pool, "t")
    orphan = ray.remote(Orphan).options(
        name="schedulemesh:mesh:lost#1", namespace=namespace, lifetime="detached", num_cpus=0
    )
    pid = ray.get(orphan.remote().pid.remote())
    os.kill(pool.about()["pid"], signal.SIGKILL)
    assert [a["name"] for a in pool.list_agents()["agents"]] == ["on-t"]
    until(lambda: not process_exists(pid), "the orphan still runs")
    assert "schedulemesh:mesh:lost#1" not in actors_in(namespace)
    assert ray.get(agent_of(pool, "t")["handle"].add.remote()) == 1


def test_a_head_runs_and_reports_its_health(namespace, tmp_path):
    head = ScheduleMeshHead("mesh", namespace=namespace, state_path=tmp_path)
    assert head.health()["alive"] is False
    told = [head.start(), head.start(), head.health()]
    times = [about.pop("time") for about in told]
    assert times == sorted(times)
    about = told[0]
    assert all(other == about for other in told)
    assert about["alive"]
    assert about["journal"] == str(tmp_path / namespace / "mesh.sqlite")
    assert about["node_id"] == ray.get_runtime_context().get_node_id()
    assert about["detached"]
    assert head.stop() == {"success": True}
    until(lambda: not actors_in(namespace), lambda: f"left in Ray: {actors_in(namespace)}")
    assert list((tmp_path / namespace).iterdir()) == []
