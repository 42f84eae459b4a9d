"""What an agent leaves on its node is gone before somebody else gets its place: no two on one device."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
import ray

from tests.integration.agents import Counter
from tests.integration.polling import process_exists, until

ONE = {"cpu": 1.0}


class Parent(Counter):
    """Starts processes that want to outlive it."""

    def __init__(self, name, labels, at_once=False):
        super().__init__(name, labels)
        self.started = self.start() if at_once else []

    def start(self):
        """The ids of a daemon by double fork, a child without an environment, and an ordinary one."""
        import subprocess

        cleared = subprocess.Popen(["env", "-i", "setsid", "sleep", "600"])
        ordinary = subprocess.Popen(["sleep", "600"], start_new_session=True)
        return [self._daemon(), cleared.pid, ordinary.pid]

    def _daemon(self):
        import time

        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            grandchild = os.fork()
            if grandchild == 0:
                time.sleep(600)  # there to be killed
                os._exit(0)
            os.write(writing, str(grandchild).encode())
            os._exit(0)
        os.waitpid(child, 0)
        pid = int(os.read(reading, 32))
        os.close(reading)
        os.close(writing)
        return pid

    def children(self):
        return self.started


class Broken(Parent):
    """Its constructor fails, after it has started them; ``mark`` is a file that names them."""

    def __init__(self, name, labels, mark):
        super().__init__(name, labels)
        Path(mark).write_text(" ".join(map(str, self.start())))
        raise ValueError("no")


class IncomingAgent(Counter):
    """Sees, before anything else, which of these processes live."""

    def __init__(self, name, labels, pids):
        from tests.integration.polling import process_exists

        super().__init__(name, labels)
        self.seen = [pid for pid in pids if process_exists(pid)]

    def living(self):
        return self.seen


@pytest.fixture
def pool(scheduler):
    """A pool of one CPU."""
    scheduler.create_pool("pool", resources=ONE)
    return scheduler


def submit(scheduler, task_id, cls, priority=1.0, **more):
    return scheduler.submit_task_with_preemption(
        task_id, "pool", cls, resources=ONE, priority=priority, agent_name=f"on-{task_id}", **more
    )


def started(scheduler, task_id, cls, priority=1.0, **more):
    answer = submit(scheduler, task_id, cls, priority, **more)
    assert answer["success"], answer
    return answer["agent"]["handle"]


def parent(scheduler, task_id="old", **more):
    """The ids of an agent's process and of all that it started."""
    handle = started(scheduler, task_id, Parent, **more)
    pids = [ray.get(handle.pid.remote()), *ray.get(handle.start.remote())]
    assert all(map(process_exists, pids))
    return pids


def processes_seen_by_the_incoming_agent(scheduler, pids, priority=9.0):
    incoming = started(scheduler, "new", IncomingAgent, priority, actor_kwargs={"pids": pids})
    return ray.get(incoming.living.remote())


def test_an_evicted_agents_children_have_exited_before_the_incoming_agent_starts(pool):
    assert processes_seen_by_the_incoming_agent(pool, parent(pool)) == []


def test_a_stopped_agents_process_has_exited_before_the_incoming_agent_starts(pool):
    """The whole eviction takes seconds less than Ray alone needs to end such a process."""
    pool.update_preemption_policy(save_timeout=0.5, cancel_timeout=0.5)
    pids = parent(pool)
    os.kill(pids[0], signal.SIGSTOP)
    assert processes_seen_by_the_incoming_agent(pool, pids) == []


def test_a_killed_agents_children_have_exited_before_its_quota_is_free(pool):
    pids = parent(pool)
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: not pool.list_agents()["agents"], "it is still listed")
    assert [pid for pid in pids if process_exists(pid)] == []
    assert processes_seen_by_the_incoming_agent(pool, pids) == []


def test_a_killed_agents_children_have_exited_when_it_is_rebuilt(pool):
    pids = parent(pool)
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: not pool.list_agents()["agents"], "it is still listed")
    assert pool.ensure_agent_health()["rebuilt"] == ["on-old"]
    assert not any(map(process_exists, pids))


def test_the_children_of_an_agent_that_ray_restarts_have_exited_before_it_is_constructed(pool):
    handle = started(pool, "old", Parent, ray_options={"max_restarts": 1, "max_task_retries": -1})
    children = ray.get(handle.start.remote())
    os.kill(ray.get(handle.pid.remote()), signal.SIGKILL)
    assert ray.get(handle.add.remote()) == 1
    assert not any(map(process_exists, children))


def test_the_children_of_a_failed_constructor_have_exited(pool, tmp_path):
    mark = tmp_path / "children"
    answer = submit(pool, "old", Broken, actor_kwargs={"mark": str(mark)})
    assert (answer["success"], answer["reason"]) == (False, "agent_start_failed")
    assert not any(process_exists(int(pid)) for pid in mark.read_text().split())


def test_agent_and_supervisor_killed_at_once_leave_no_children(pool):
    pids = parent(pool)
    supervisor = pool.about()["pid"]
    os.kill(supervisor, signal.SIGKILL)
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: not pool.list_agents()["agents"], "it is still listed")
    assert not any(map(process_exists, pids))


def test_other_agents_keep_their_children(pool):
    pool.resize_pool("pool", resources={"cpu": 2.0})
    neighbour = parent(pool, "neighbour", priority=99.0)
    assert processes_seen_by_the_incoming_agent(pool, [], priority=1.0) == []
    pool.delete_agent("on-new")
    assert all(map(process_exists, neighbour))


def test_deleting_a_stopped_agent_returns_when_its_process_has_exited(pool):
    pids = parent(pool)
    os.kill(pids[0], signal.SIGSTOP)
    done = threading.Event()

    def delete():
        pool.delete_agent("on-old")
        done.set()

    threading.Thread(target=delete, daemon=True).start()
    until(
        lambda: done.is_set() or "on-old" in {a["name"] for a in pool.list_agents()["agents"]},
        "neither listed nor ended",
    )
    assert done.wait(30.0)
    assert not any(map(process_exists, pids))


def test_shutting_down_leaves_no_children(scheduler):
    scheduler.create_pool("pool", resources=ONE)
    pids = parent(scheduler)
    scheduler.shutdown()
    assert not any(map(process_exists, pids))
