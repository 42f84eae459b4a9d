"""How schedulers and agents end: with their job, on request, or not at all; and the journal at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest
import ray

from schedulemesh.core import RayScheduler
from schedulemesh.errors import (
    InvalidRequestError,
    SchedulerExistsError,
    SchedulerNotFoundError,
    SchedulerUnavailableError,
)
from schedulemesh.store.sql import SqlJournal
from tests.integration.agents import Counter, Plain
from tests.integration.drivers import run_driver, start_driver
from tests.integration.polling import (
    actors_in,
    assert_nothing_held,
    process_exists,
    quota,
    stopped,
    until,
)

JOB = """
scheduler = RayScheduler("of-job", namespace={namespace!r})
scheduler.create_pool("pool", resources={{"cpu": 1}})
agent = scheduler.create_agent("agent", "pool", AgentActor)["agent"]["handle"]
print(ray.get(agent.__ray_call__.remote(lambda _self: os.getpid())), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["ends", "killed"])
def test_a_non_detached_scheduler_ends_with_its_job(namespace, tmp_path, how):
    with start_driver(JOB.format(namespace=namespace), tmp_path) as driver:
        agent_pid = int(driver.stdout.readline())
        assert "schedulemesh:of-job" in actors_in(namespace)
        with pytest.raises(SchedulerExistsError, match="of-job"):
            RayScheduler("of-job", namespace=namespace)
        if how == "killed":
            driver.send_signal(signal.SIGKILL)
        driver.communicate("\n", timeout=60)
    assert driver.returncode == (-signal.SIGKILL if how == "killed" else 0)
    until(lambda: not actors_in(namespace), lambda: f"left in Ray: {actors_in(namespace)}")
    until(lambda: not process_exists(agent_pid), "the agent's process still runs")


@pytest.mark.smoke
def test_a_detached_scheduler_outlives_its_job_and_is_shared(namespace, tmp_path):
    run_driver(
        f"""
        scheduler = RayScheduler("shared", detached=True, namespace={namespace!r})
        scheduler.create_pool("pool", resources={{"cpu": 2}})
        scheduler.create_agent("agent", "pool", AgentActor, resources={{"cpu": 1}})
        scheduler.detach()
        """,
        tmp_path,
    )
    attached = RayScheduler.attach("shared", namespace=namespace)
    (agent,) = attached.list_agents("pool")["agents"]
    assert ray.get(agent["handle"].process.remote(payload="hi"))["payload"] == "hi"
    same = RayScheduler("shared", detached=True, namespace=namespace)
    same.create_agent("second", "pool", Plain, resources={"cpu": 1})
    assert len(attached.list_agents()["agents"]) == 2
    seen = run_driver(
        f"""
        scheduler = RayScheduler.attach("shared", namespace={namespace!r})
        print(sorted(a["name"] for a in scheduler.list_agents()["agents"]))
        """,
        tmp_path,
    )
    assert seen.strip() == "['agent', 'second']"
    same.detach()
    with pytest.raises(InvalidRequestError, match="detached"):
        same.list_agents()
    attached.shutdown()
    until(lambda: not actors_in(namespace), "something is left in Ray")
    with pytest.raises(SchedulerUnavailableError, match="shared"):
        attached.list_agents()


def test_an_orderly_shutdown_says_nothing(namespace, tmp_path, monkeypatch):
    """Ray would tell of every call that is open when a process ends, and that it will be repeated."""
    monkeypatch.setenv("SCHEDULEMESH_HOME", str(tmp_path / "home"))
    source = f"""
    scheduler = RayScheduler("quiet", namespace={namespace!r}, http="127.0.0.1:0")
    scheduler.create_pool("pool", resources={{"cpu": 1}})
    agent = scheduler.create_agent("agent", "pool", AgentActor)["agent"]["handle"]
    ray.get(agent.__ray_call__.remote(lambda _self: None))
    scheduler.shutdown()
    ray.shutdown()
    """
    with start_driver(source, tmp_path) as driver:
        assert driver.communicate(timeout=90) == ("", "")
    assert driver.returncode == 0
    assert actors_in(namespace) == []


def test_attaching_without_a_scheduler_says_how_to_start_one(namespace):
    with pytest.raises(SchedulerNotFoundError, match=r"state_path='/state'\)") as raised:
        RayScheduler.attach("nobody", namespace=namespace, state_path="/state")
    assert "'nobody'" in str(raised.value)
    assert actors_in(namespace) == []


def test_a_killed_agent_releases_its_quota(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 1.0})
    agent = scheduler.submit_task_with_preemption(
        task_id="t", pool_name="pool", resources={"cpu": 1.0}, actor_class=Counter
    )["agent"]["handle"]
    assert quota(scheduler, "pool")["used"] == {"cpu": 1.0}
    os.kill(ray.get(agent.pid.remote()), signal.SIGKILL)
    until(lambda: not quota(scheduler, "pool")["used"], "the quota does not come back")
    assert_nothing_held(scheduler)
    again = scheduler.submit_task_with_preemption(
        task_id="t", pool_name="pool", resources={"cpu": 1.0}, actor_class=Counter
    )
    assert again["success"]


def test_an_agent_killed_through_its_handle_releases_its_quota(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 1.0})
    ray.kill(scheduler.create_agent("a", "pool", Plain)["agent"]["handle"])
    until(lambda: not scheduler.list_agents()["agents"], "the agent is still listed")
    assert_nothing_held(scheduler)


def test_the_journal_replays_to_the_live_state(scheduler, namespace, tmp_path):
    scheduler.create_pool("a", labels={"tier": "x"}, resources={"cpu": 2.0}, target_agents=2)
    scheduler.create_pool("b", resources={"cpu": 1.0})
    scheduler.update_preemption_policy(cross_pool_priority_threshold=2.0)

    def submit(task_id, pool, priority, **more):
        answer = scheduler.submit_task_with_preemption(
            task_id=task_id,
            pool_name=pool,
            resources={"cpu": 1.0},
            priority=priority,
            actor_class=Counter,
            agent_name=f"on-{task_id}",
            **more,
        )
        assert answer["success"], answer

    submit("dry", "a", 5.0, dry_run=True)
    submit("low", "b", 1.0)
    submit("one", "a", 5.0)
    submit("two", "a", 5.0)
    submit("borrower", "a", 5.0)
    scheduler.register_running_task("elsewhere", "unknown", "nowhere", payload=1)
    scheduler.complete_task("one", end_agent=True)

    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    folder = session / "schedulemesh" / namespace
    copy = tmp_path / "copy"
    # What former tests held may still be on its way out; after that, nothing changes any more.
    until(
        lambda: scheduler.cluster_snapshot()["nodes"][0]["free"]["cpu"] == 6.0,
        lambda: str(scheduler.cluster_snapshot()),
    )
    with stopped(scheduler.about()["pid"]):  # it writes now and then, and its files come and go
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*-shm"))
    journal = SqlJournal(copy / "mesh.sqlite")
    try:
        state = journal.load().fold()
        saved = journal.blob(state.preempted["low"].state_key)
        code = journal.blob(state.agents["on-two"].spec.class_key)
    finally:
        journal.close()
    assert saved is not None
    assert code is not None
    for pool in scheduler.list_pools()["pools"]:
        account = state.ledger.accounts[pool["name"]]
        for kind in ("free", "reserved", "used", "lent", "borrowed"):
            assert getattr(account, kind).public() == pool[kind], (pool["name"], kind)
    agents = {a["name"]: (a["state"], a["pid"]) for a in scheduler.list_agents()["agents"]}
    folded = {name: (agent.phase.value, agent.process.pid) for name, agent in state.agents.items()}
    assert folded == agents
    assert set(agents) == {"on-two", "on-borrower"}
    tasks = {t["task_id"]: t["phase"] for t in scheduler.list_tasks()["tasks"]}
    assert {t: found.phase.value for t, found in state.running.by_id.items()} == tasks
    assert state.policy.public() == scheduler.get_preemption_policy()["policy"]
    node = scheduler.cluster_snapshot()["nodes"][0]
    assert state.cluster.nodes[node["node_id"]].free.public() == node["free"]


def test_a_shut_down_scheduler_leaves_no_journal(make_scheduler, namespace):
    scheduler = make_scheduler()
    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    folder = session / "schedulemesh" / namespace
    assert (folder / "mesh.sqlite").exists()
    scheduler.shutdown()
    assert list(folder.iterdir()) == []
    # and its name is free again
    fresh = make_scheduler()
    assert fresh.list_pools()["pools"] == []


def test_a_scheduler_does_not_start_empty_while_its_agents_run(make_scheduler, namespace):
    scheduler = make_scheduler(detached=True)
    scheduler.create_pool("pool", resources={"cpu": 1.0})
    handle = scheduler.create_agent("a", "pool", Plain)["agent"]["handle"]
    pid = ray.get(handle.pid.remote())
    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    folder = session / "schedulemesh" / namespace
    ray.kill(scheduler.supervisor_handle())
    until(lambda: "schedulemesh:mesh" not in actors_in(namespace), "it still runs")
    kept = folder.rename(folder.with_name("kept"))
    with pytest.raises(SchedulerUnavailableError, match=r"(?s)does not start empty.*:mesh:a#1"):
        RayScheduler("mesh", namespace=namespace, detached=True)
    assert process_exists(pid)
    # it does, once the journal is back
    shutil.rmtree(folder, ignore_errors=True)
    kept.rename(folder)
    again = RayScheduler("mesh", namespace=namespace, detached=True)
    (agent,) = again.list_agents()["agents"]
    assert agent["pid"] == ray.get(agent["handle"].pid.remote()) == pid
    again.shutdown()


def test_shutdown_during_an_agent_start_leaves_nothing(make_scheduler, namespace, tmp_path):
    """A shutdown in the midst of a start that hangs."""
    import threading

    from tests.integration.agents import Hung
    from tests.integration.polling import touched

    scheduler = make_scheduler()
    scheduler.create_pool("pool", resources={"cpu": 1.0})
    mark = tmp_path / "mark"
    answers = []

    def submit():
        try:
            scheduler.create_agent("a", "pool", Hung, actor_args=["init", str(mark)])
        except SchedulerUnavailableError as error:
            answers.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    until(touched(mark), "it does not start")
    RayScheduler.attach("mesh", namespace=namespace).shutdown()
    thread.join(30)
    assert len(answers) == 1
    until(lambda: not actors_in(namespace), lambda: f"left in Ray: {actors_in(namespace)}")


@contextlib.contextmanager
def unwritable_journal(namespace):
    """Every commit of the scheduler "mesh" fails for a while."""
    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    path = session / "schedulemesh" / namespace / "mesh.sqlite"

    def sql(statement):
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection, connection:
            connection.execute(statement)

    sql(
        "CREATE TRIGGER full BEFORE UPDATE ON schedulemesh_journals "
        "BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    )
    yield
    sql("DROP TRIGGER full")


def test_an_unwritable_journal_refuses_changes_until_it_recovers(scheduler, namespace):
    """The disk is full for a while: reads go on, changes are refused, nothing half done stays."""
    scheduler.create_pool("pool", resources={"cpu": 1.0})
    with unwritable_journal(namespace):
        refusals = [
            scheduler.create_pool("other", resources={"cpu": 1.0}),
            scheduler.register_running_task("t", "a", "pool"),
            scheduler.update_preemption_policy(min_preempt_score=1.0),
            scheduler.create_agent("a", "pool", Plain),
            scheduler.submit_task_with_preemption("t", "pool", Plain),
            scheduler.complete_task("t"),
        ]
        assert [r["reason"] for r in refusals] == ["journal_unavailable"] * len(refusals)
        assert [p["name"] for p in scheduler.list_pools()["pools"]] == ["pool"]
        assert_nothing_held(scheduler)
    until(
        lambda: scheduler.create_pool("other", resources={"cpu": 1.0})["success"],
        "the journal does not come back",
    )
    assert scheduler.create_agent("a", "pool", Plain)["success"]


def test_saving_and_restoring_are_refused_while_the_journal_cannot_be_written(scheduler, namespace):
    scheduler.create_pool("pool", resources={"cpu": 2.0})
    for task_id in ("runs", "evicted"):
        scheduler.submit_task_with_preemption(
            task_id=task_id, pool_name="pool", resources={"cpu": 1.0}, actor_class=Counter
        )
    saved = scheduler.preempt_task("evicted")["preempted"][0]["saved_state"]
    with unwritable_journal(namespace):
        refusals = [scheduler.restore_task(saved), scheduler.save_task_state("runs")]
        assert [r["reason"] for r in refusals] == ["journal_unavailable"] * 2
        assert [t["task_id"] for t in scheduler.list_tasks()["tasks"]] == ["runs"]
    until(lambda: scheduler.save_task_state("runs")["success"], "the journal does not come back")
    assert scheduler.restore_task(saved)["state_restored"]
