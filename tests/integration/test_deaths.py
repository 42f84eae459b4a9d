"""How processes die on a real cluster, as records tell it; and a supervisor that is killed repeatedly."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading

import pytest
import ray

from schedulemesh.errors import ScheduleMeshError
from tests.integration.agents import Counter
from tests.integration.polling import supervisor_of, until

#: Kills of the supervisor, clients that call it meanwhile, and calls of each that are answered between two.
KILLS, CLIENTS, CALLS = 5, 3, 10


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


class Callers:
    """Clients that make calls, one after the other each, until the block ends."""

    def __init__(self, scheduler, count):
        self.scheduler, self.over = scheduler, threading.Event()
        #: What was acknowledged, by client, and what a call answered else.
        self.acknowledged, self.refused = [[] for _ in range(count)], []
        self.threads = [threading.Thread(target=self.call, args=(n,)) for n in range(count)]

    def call(self, number):
        acknowledged = self.acknowledged[number]
        while not self.over.is_set():
            name = f"pool-{number}-{len(acknowledged)}"
            try:
                answer = self.scheduler.create_pool(name, resources={"cpu": 1})
                read = self.scheduler.list_tasks()
            except ScheduleMeshError as error:
                self.refused.append(error)
                return
            if not (answer["success"] and read["success"]):
                self.refused.append((answer, read))
            acknowledged.append(name)

    def until_answered(self, count):
        """Return when so many calls of each client were answered, or one was refused."""

        def answered():
            return min(map(len, self.acknowledged)) >= count or self.refused

        until(answered, lambda: f"answered were {[*map(len, self.acknowledged)]} calls")

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()


def test_a_supervisor_that_is_killed_five_times_a_minute_still_serves(scheduler, namespace):
    """It is killed as soon as it serves again, with calls of three clients under way each time: all of these
    are answered, nothing that was acknowledged is lost, what runs goes on, and what waits starts.
    """
    scheduler.create_pool("pool", resources={"cpu": 1})
    counter = scheduler.submit_task_with_preemption("counts", "pool", Counter, {"cpu": 1})
    handle = counter["agent"]["handle"]
    agent_pid = ray.get(handle.pid.remote())
    waiting = scheduler.submit_task_with_preemption(
        "waits", "pool", Counter, {"cpu": 1}, queue=True, run="add"
    )
    assert waiting["state"] == "queued"
    pids = set()
    with Callers(scheduler, CLIENTS) as callers:
        for kill in range(1, KILLS + 1):
            callers.until_answered(kill * CALLS)
            assert ray.get(handle.add.remote()) == kill
            pids.add(supervisor_of(namespace))
            os.kill(supervisor_of(namespace), signal.SIGKILL)
        callers.until_answered((KILLS + 1) * CALLS)
    assert callers.refused == []
    assert len(pids) == KILLS
    names = {pool["name"] for pool in scheduler.list_pools()["pools"]}
    assert names == {"pool", *itertools.chain(*callers.acknowledged)}
    assert ray.get(handle.pid.remote()) == agent_pid
    assert [task["task_id"] for task in scheduler.list_tasks()["tasks"]] == ["counts", "waits"]
    assert scheduler.complete_task("counts", end_agent=True)["success"]
    (row,) = scheduler.wait("waits", timeout=60)["tasks"]
    assert (row["state"], row.get("failures", 0)) == ("completed", 0)
