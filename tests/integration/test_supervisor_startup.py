"""A supervisor that cannot begin says why, begins once that is mended, and can be ended in every way."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from schedulemesh.api.pools import ListPools
from schedulemesh.core import RayScheduler
from schedulemesh.core.client.head import ScheduleMeshHead
from schedulemesh.engine.messages.facts import FORMAT_VERSION
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.protocol.answers import Listed, decode_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime import supervisor as service
from tests.integration.agents import Counter, Plain
from tests.integration.drivers import start_driver
from tests.integration.polling import actors_in, process_exists, supervisor_of, until


def sql(path, statement):
    """One statement beside the supervisor."""
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        return connection.execute(statement).fetchall()


def supervisor_pid(scheduler):
    return scheduler.about()["pid"]


def killed(scheduler, before):
    """Kill -9 its supervisor, once ``before`` has spoilt something."""
    _killed(supervisor_pid(scheduler), before)


def _killed(pid, before):
    os.kill(pid, signal.SIGSTOP)
    before()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not process_exists(pid), "the supervisor still runs")


def spoilt(scheduler, path, statement):
    """Kill -9 its supervisor, with a change of its journal that it does not see."""
    pid = supervisor_pid(scheduler)
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
        # It must not be stopped amid a write of its own: that would lock the journal until its end.
        connection.execute("BEGIN IMMEDIATE")
        _killed(pid, lambda: (connection.execute(statement), connection.commit()))


@pytest.fixture
def crippled(namespace, tmp_path):
    """A detached scheduler with an agent, its journal of a newer format, and its supervisor killed."""
    scheduler = RayScheduler("mesh", namespace=namespace, detached=True, state_path=tmp_path)
    scheduler.create_pool("pool", resources={"cpu": 2.0})
    agent = scheduler.create_agent("agent", "pool", Counter, resources={"cpu": 1.0})
    pid = ray.get(agent["agent"]["handle"].pid.remote())
    path = tmp_path / namespace / "mesh.sqlite"
    spoilt(scheduler, path, "UPDATE schedulemesh_meta SET value = 99")
    yield scheduler, path, pid
    until(lambda: not actors_in(namespace), lambda: f"left in Ray: {actors_in(namespace)}")
    until(lambda: not process_exists(pid), "the agent's process still runs")


def refuses(call):
    with pytest.raises(SchedulerUnavailableError, match=r"cannot begin.*has format 99.*stop --na"):
        call()


def test_the_error_says_why_and_shutdown_removes_the_scheduler(crippled, namespace):
    scheduler, path, pid = crippled
    refuses(scheduler.list_pools)
    refuses(lambda: RayScheduler.attach("mesh", namespace=namespace))
    refuses(lambda: RayScheduler("mesh", namespace=namespace, detached=True))
    assert process_exists(pid), "it is ended by those who ask only"
    assert scheduler.shutdown() == {"success": True}
    assert sql(path, "SELECT value FROM schedulemesh_meta") == [(99,)], "its journal is left alone"


def test_a_scheduler_that_cannot_start_is_stopped_from_the_command_line(crippled, namespace):
    scheduler, path, _ = crippled
    refuses(scheduler.list_pools)
    told = command("status", namespace)
    assert told.returncode == 5
    assert "has format 99" in told.stderr
    told = command("stop", namespace, "--yes")
    assert (told.returncode, told.stdout) == (0, "scheduler 'mesh' has ended\n"), told.stderr
    assert path.exists()
    assert command("stop", namespace, "--yes").returncode == 3


def test_a_scheduler_that_cannot_start_is_stopped_by_the_head(crippled, namespace):
    head = ScheduleMeshHead("mesh", namespace=namespace)
    health = head.health()
    assert (health["alive"], health["registered"]) == (False, True)
    assert "has format 99" in health["error"]
    assert head.stop() == {"success": True}
    assert head.stop() == {"success": True, "already_gone": True}


def test_it_starts_with_its_full_state_once_its_journal_is_repaired(crippled, namespace):
    scheduler, path, pid = crippled
    refuses(scheduler.list_pools)
    sql(path, f"UPDATE schedulemesh_meta SET value = {FORMAT_VERSION}")
    (agent,) = scheduler.list_agents()["agents"]
    assert agent["pid"] == ray.get(agent["handle"].pid.remote()) == pid
    assert ray.get(agent["handle"].add.remote(3)) == 3
    scheduler.shutdown()


def test_a_quick_repair_is_only_a_pause_for_callers(make_scheduler, tmp_path, namespace):
    scheduler = make_scheduler(state_path=tmp_path)
    scheduler.create_pool("pool", resources={"cpu": 2.0})
    folder = tmp_path / namespace
    killed(scheduler, lambda: folder.rename(tmp_path / "elsewhere"))
    asked = scheduler.supervisor_handle().ask.remote(encode_request(ListPools()))
    assert ray.wait([asked], timeout=service._PATIENCE_S / 5)[0] == []
    (tmp_path / "elsewhere").rename(folder)
    assert [pool["name"] for pool in decode_answer(ray.get(asked), Listed).rows] == ["pool"]


def test_repeated_attempts_leave_no_open_files(make_scheduler, tmp_path, namespace):
    """What is damaged shows only when the journal has been taken over."""
    scheduler = make_scheduler(state_path=tmp_path)
    scheduler.create_pool("pool", resources={"cpu": 2.0})
    path = tmp_path / namespace / "mesh.sqlite"
    spoilt(scheduler, path, "UPDATE schedulemesh_commits SET crc = crc + 1")

    def refused():
        with pytest.raises(SchedulerUnavailableError, match="commit 1 is not what was written"):
            scheduler.list_pools()

    def open_now():
        pid = supervisor_of(namespace)
        return [len(list(Path(f"/proc/{pid}/{kind}").iterdir())) for kind in ("fd", "task")]

    for _ in range(2):
        refused()
    files, threads = open_now()
    for _ in range(10):
        refused()

    def no_more():
        more_files, more_threads = open_now()
        return more_files <= files + 3 and more_threads <= threads + 3

    # The threads of the last attempt may still be ending when its caller has the error.
    until(no_more, lambda: f"{files} files and {threads} threads have become {open_now()}")
    sql(path, "UPDATE schedulemesh_commits SET crc = crc - 1")
    assert [pool["name"] for pool in scheduler.list_pools()["pools"]] == ["pool"]


def test_a_new_scheduler_that_cannot_start_leaves_its_name_free(namespace, tmp_path):
    (tmp_path / namespace).mkdir()
    spoilt = tmp_path / namespace / "mesh.sqlite"
    spoilt.write_bytes(b"no database")
    for detached in (False, True):
        with pytest.raises(
            SchedulerUnavailableError, match=r"is damaged.*make it again once that is mended$"
        ):
            RayScheduler("mesh", namespace=namespace, state_path=tmp_path, detached=detached)
        until(lambda: not actors_in(namespace), lambda: f"left in Ray: {actors_in(namespace)}")
    other = RayScheduler("mesh", namespace=namespace, state_path=tmp_path / "other")
    assert other.list_pools()["pools"] == []
    other.shutdown()
    assert spoilt.read_bytes() == b"no database"


OF_JOB = """
scheduler = RayScheduler("mesh", namespace={namespace!r}, state_path={folder!r})
scheduler.create_pool("pool", resources={{"cpu": 1}})
agent = scheduler.create_agent("agent", "pool", AgentActor)["agent"]["handle"]
about = scheduler.about()
print(about["pid"], ray.get(agent.__ray_call__.remote(lambda _self: os.getpid())), flush=True)
sys.stdin.readline()
"""


def test_a_non_detached_scheduler_that_cannot_start_ends_with_its_job(namespace, tmp_path):
    source = OF_JOB.format(namespace=namespace, folder=str(tmp_path / "state"))
    with start_driver(source, tmp_path) as driver:
        supervisor, agent = map(int, driver.stdout.readline().split())
        (tmp_path / "state").rename(tmp_path / "gone")
        os.kill(supervisor, signal.SIGKILL)
        driver.kill()
        driver.communicate(timeout=30)
    until(lambda: not actors_in(namespace), lambda: f"left in Ray: {actors_in(namespace)}")
    until(lambda: not process_exists(agent), "the agent's process still runs")
    assert (tmp_path / "gone" / namespace / "mesh.sqlite").exists()


def test_a_shutdown_is_completed_even_if_its_caller_dies(namespace):
    scheduler = RayScheduler("mesh", namespace=namespace, detached=True)
    scheduler.create_pool("pool", resources={"cpu": 1.0})
    scheduler.create_agent("agent", "pool", Plain)
    ray.get(scheduler.supervisor_handle().shutdown.remote())
    until(lambda: not actors_in(namespace), lambda: f"left in Ray: {actors_in(namespace)}")


def test_the_command_line_starts_shows_and_stops_a_detached_scheduler(namespace, tmp_path):
    told = command("start", namespace, "--state-path", str(tmp_path), "--health-interval", "5")
    assert told.returncode == 0, told.stderr
    assert "scheduler 'mesh' is alive (epoch 1, process" in told.stdout
    assert f"journal: {tmp_path / namespace / 'mesh.sqlite'}" in told.stdout
    mesh = RayScheduler.attach("mesh", namespace=namespace)
    mesh.create_pool("pool", resources={"cpu": 2.0})
    mesh.create_agent("agent", "pool", Plain, resources={"cpu": 1.0})
    assert "(epoch 1" in command("start", namespace).stdout, "the living one is found"
    told = command("status", namespace)
    assert told.returncode == 0
    for shown in ("epoch 1", "pool", "cpu 2", "agent", "running"):
        assert shown in told.stdout
    assert command("stop", namespace, answer="n\n").returncode == 1
    assert mesh.list_agents("pool")["agents"]
    told = command("stop", namespace, answer="y\n")
    assert told.returncode == 0
    assert "with 1 agents" in told.stdout
    until(lambda: not actors_in(namespace), lambda: f"left in Ray: {actors_in(namespace)}")
    assert list((tmp_path / namespace).iterdir()) == []


def command(word, namespace, *more, answer=None):
    """``schedulemesh word`` on this Ray."""
    address = ray.get_runtime_context().gcs_address
    options = ["--name", "mesh", "--namespace", namespace, "--address", address, *more]
    return subprocess.run(
        [sys.executable, "-m", "schedulemesh", word, *options],
        cwd=Path(__file__).parents[2],
        input=answer,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
