"""A backup in the journal's place while agents live, and supervisors killed before they first began."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import threading
import time

import psutil
import pytest
import ray

from schedulemesh.core import RayScheduler
from schedulemesh.errors import SchedulerUnavailableError
from tests.integration.agents import Counter
from tests.integration.polling import actors_in, process_exists, until


def about(scheduler):
    return scheduler.about()


def started(scheduler, name):
    answer = scheduler.create_agent(name, "pool", Counter, resources={"cpu": 0.5})
    assert answer["success"], answer
    return answer["agent"]["handle"]


def backup(path, copy):
    """As `sqlite3 mesh.sqlite ".backup copy.sqlite"`."""
    with (
        contextlib.closing(sqlite3.connect(path)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)


def put_back(scheduler, path, copy, *, forget):
    """Kill -9 the supervisor with the copy in its journal's place."""
    pid = about(scheduler)["pid"]
    os.kill(pid, signal.SIGSTOP)
    gone = ["-wal", "-shm", *([".newest"] if forget else [])]
    for suffix in gone:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(copy, path.with_name("new"))
    path.with_name("new").replace(path)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not process_exists(pid), "the supervisor still runs")


def test_agents_unknown_to_a_restored_backup_are_kept_and_known_ones_adopted(
    make_scheduler, tmp_path, namespace
):
    scheduler = make_scheduler(state_path=tmp_path, detached=True)
    scheduler.create_pool("pool", resources={"cpu": 2.0})
    old = started(scheduler, "old")
    assert ray.get(old.add.remote(41)) == 41
    path, copy = tmp_path / namespace / "mesh.sqlite", tmp_path / "copy.sqlite"
    backup(path, copy)
    young = started(scheduler, "young")
    pids = ray.get([old.pid.remote(), young.pid.remote()])
    before = about(scheduler)["epoch"]

    # Without a word of the operator an older copy is refused, and nobody is harmed.
    put_back(scheduler, path, copy, forget=False)
    with pytest.raises(SchedulerUnavailableError, match=r"remove mesh\.sqlite\.newest"):
        scheduler.list_pools()
    path.with_name("mesh.sqlite.newest").unlink()

    assert [agent["name"] for agent in scheduler.list_agents()["agents"]] == ["old"]
    assert about(scheduler)["epoch"] > before
    (orphan,) = scheduler.list_orphans()["orphans"]
    assert orphan["kind"] == "actor"
    assert ":young#" in orphan["name"]
    assert ray.get([old.pid.remote(), young.pid.remote()]) == pids, "both live on"

    # A new agent meets no old name, and one of the orphan's name is refused while that lives.
    third = started(scheduler, "third")
    assert ray.get(third.add.remote(1)) == 1
    again = scheduler.create_agent("young", "pool", Counter, resources={"cpu": 0.5})
    assert not again["success"]
    assert "lives as the orphan" in again["error"]

    # A known agent obeys: its state is saved, not lost.
    scheduler.register_running_task("task", "old", "pool", priority=1.0)
    evicted = scheduler.preempt_task(task_id="task")
    assert evicted["success"], evicted
    saved = scheduler.get_saved_state("task")["saved_state"]
    assert (saved["source"], saved["state"]) == ("save_state", {"count": 41})
    until(lambda: not process_exists(pids[0]), "the evicted agent still runs")

    # The restarted supervisor keeps orphans, too.
    os.kill(about(scheduler)["pid"], signal.SIGKILL)
    assert scheduler.list_orphans()["orphans"] == [orphan]
    assert process_exists(pids[1])
    assert scheduler.end_orphans([orphan["name"]]) == {"success": True, "ended": [orphan["name"]]}
    until(lambda: not process_exists(pids[1]), "the orphan still runs")
    assert scheduler.list_orphans()["orphans"] == []
    started(scheduler, "young")


def supervisors():
    """The processes of supervisors that live, those of former tests on their way out among them."""
    (raylet,) = ray._private.worker.global_worker.node.all_processes["raylet"]
    found = set()
    for child in psutil.Process(raylet.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error, IndexError):
            if child.cmdline()[0].startswith("ray::Supervisor"):
                found.add(child.pid)
    return found


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.06, 0.15])
def test_a_supervisor_killed_during_its_first_start_starts_again(namespace, tmp_path, after_s):
    made = []

    def make():
        made.append(RayScheduler("mesh", namespace=namespace, detached=True, state_path=tmp_path))

    known = supervisors()
    maker = threading.Thread(target=make)
    maker.start()
    (pid,) = until(lambda: supervisors() - known, "no supervisor was started")
    time.sleep(after_s)  # the moment of the kill: at once, and some way into its beginning
    os.kill(pid, signal.SIGKILL)
    maker.join(120)
    (scheduler,) = made
    assert about(scheduler)["pid"] != pid
    assert scheduler.create_pool("pool", resources={"cpu": 1.0})["success"]
    scheduler.shutdown()
    until(lambda: not actors_in(namespace), lambda: f"left in Ray: {actors_in(namespace)}")
