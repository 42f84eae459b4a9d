"""How processes die on a real cluster, as records tell it; and a supervisor that is killed repeatedly."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import ray

from tests.integration.polling import supervisor_of, until

#: Kills of the supervisor, and calls that it answers between two of them.
KILLS, CALLS = 5, 20


class Mortal:
    """An agent that ends as it is told."""

    def __init__(self, name, labels):
        pass

    def end(self, how):
        if how == "code":
            os._exit(3)
        if how == "exit":
            sys.exit(3)
        if how == "exit_actor":
            ray.actor.exit_actor()
        os.kill(os.getpid(), getattr(signal, how))


class Saves(Mortal):
    """The same, and it is asked for its state."""

    def save_state(self):
        return {}


class AsyncSaves(Saves):
    """The same with an event loop."""

    async def end(self, how):
        super().end(how)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "exited with code 3"),
        ("exit_actor", "called exit_actor()"),
        ("SIGTERM", "was ended by SIGTERM"),
        ("SIGKILL", "ended without notice to Ray: it was killed"),
        ("code", "or it called os._exit()"),
    ],
)
def test_the_record_of_a_task_says_how_its_process_ended(scheduler, how, words):
    scheduler.create_pool("pool", resources={"cpu": 1})
    answer = scheduler.submit_task_with_preemption("t", "pool", Mortal, {"cpu": 1})
    answer["agent"]["handle"].end.remote(how)
    (row,) = scheduler.wait("t", timeout=60)["tasks"]
    assert row["state"] == "lost", row
    assert words in row["error"]
    assert words in scheduler.explain("t")["error"]


@pytest.mark.parametrize("actor_class", [Saves, AsyncSaves])
@pytest.mark.parametrize(
    ("how", "words"), [("exit", "exited with code 3"), ("exit_actor", "called exit_actor()")]
)
def test_a_process_that_ends_itself_while_it_waits_for_commands_ends_at_once(
    scheduler, actor_class, how, words
):
    scheduler.create_pool("pool", resources={"cpu": 1})
    answer = scheduler.submit_task_with_preemption("t", "pool", actor_class, {"cpu": 1})
    # A command is carried out, and then the process waits for the next one.
    assert scheduler.save_task_state("t")["success"]
    answer["agent"]["handle"].end.remote(how)
    (row,) = scheduler.wait("t", timeout=60)["tasks"]
    assert row["state"] == "lost", row
    assert words in row["error"]


def test_a_death_without_a_supervisor_is_told_as_well(scheduler, namespace):
    scheduler.create_pool("pool", resources={"cpu": 1})
    answer = scheduler.submit_task_with_preemption("t", "pool", Mortal, {"cpu": 1})
    os.kill(supervisor_of(namespace), signal.SIGKILL)
    answer["agent"]["handle"].end.remote("exit")
    (row,) = scheduler.wait("t", timeout=60)["tasks"]
    assert "exited with code 3" in row["error"]


def test_a_supervisor_that_is_killed_as_soon_as_it_serves_again_forgets_nothing(
    scheduler, namespace
):
    scheduler.create_pool("pool", resources={"cpu": 1})
    pids, acknowledged = set(), []
    for _ in range(KILLS):
        pid = supervisor_of(namespace)
        pids.add(pid)
        os.kill(pid, signal.SIGKILL)
        for _ in range(CALLS):
            acknowledged.append(f"pool-{len(acknowledged)}")
            assert scheduler.create_pool(acknowledged[-1], resources={"cpu": 1})["success"]
    assert len(pids) == KILLS
    names = {pool["name"] for pool in scheduler.list_pools()["pools"]}
    assert set(acknowledged) <= names
    until(lambda: scheduler.about()["success"], "it does not serve any more")
