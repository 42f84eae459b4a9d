"""Requests over the supervisor's socket on a real Ray: what is acknowledged survives, and happens once."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
import ray

from schedulemesh.core import RayScheduler
from tests.integration.agents import Plain
from tests.integration.drivers import run_driver
from tests.integration.polling import supervisor_of

CLIENTS, EACH, KILLS = 8, 60, 3
#: No node has it, so tasks wait.
NEED = {"custom": {"nowhere": 1}}


class Counted:
    """Counts the requests of a scheduler object by whether the socket answers them."""

    def __init__(self, scheduler):
        self.here = Counter()
        channel = scheduler._connection._socket
        asked = channel.ask

        def ask(*args):
            answer = asked(*args)
            self.here[answer is not None] += 1
            return answer

        channel.ask = ask


@pytest.fixture
def scheduler(make_scheduler):
    made = make_scheduler(detached=True)
    made.create_pool("pool", resources={"cpu": 1, **NEED})
    return made


def test_requests_use_the_socket_and_those_with_references_use_ray(scheduler):
    counted = Counted(scheduler)
    scheduler.list_pools()
    assert counted.here == {True: 1}
    answer = scheduler.submit_task_with_preemption("t", "pool", Plain, resources={"cpu": 1})
    handles = [answer["agent"]["handle"]]
    handles += [agent["handle"] for agent in scheduler.list_agents()["agents"]]
    assert len({ray.get(handle.pid.remote()) for handle in handles}) == 1
    assert counted.here == {True: 3}
    waits = scheduler.submit_task_with_preemption("w", "pool", Plain, resources=NEED, queue=True)
    assert waits["state"] == "queued"
    assert counted.here == {True: 4}
    given = {"resources": NEED, "queue": True, "actor_args": [ray.put(1)]}
    assert scheduler.submit_task_with_preemption("r", "pool", Plain, **given)["state"] == "queued"
    assert counted.here == {True: 4}


def test_every_acknowledged_submission_exists_once_though_the_supervisor_is_killed(
    scheduler, namespace
):
    acknowledged, failed = [], []
    progress = threading.Condition()

    def submits(number):
        client = RayScheduler.attach("mesh", namespace=namespace)
        for n in range(EACH):
            task_id = f"{number}-{n}"
            try:
                answer = client.submit_task_with_preemption(
                    task_id, "pool", Plain, resources=NEED, queue=True
                )
            except Exception as error:  # noqa: BLE001  # shown below
                failed.append(repr(error))
                return
            with progress:
                acknowledged.append((task_id, answer["state"]))
                progress.notify_all()

    threads = [threading.Thread(target=submits, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for kill in range(1, KILLS + 1):
        with progress:
            enough = kill * CLIENTS * EACH // (KILLS + 1)
            progress.wait_for(lambda enough=enough: len(acknowledged) >= enough or failed, 120)
        os.kill(supervisor_of(namespace), signal.SIGKILL)
    for thread in threads:
        thread.join(120)
    assert failed == []
    assert Counter(acknowledged) == {
        (f"{number}-{n}", "queued"): 1 for number in range(CLIENTS) for n in range(EACH)
    }
    listed = Counter(task["task_id"] for task in scheduler.list_queue()["tasks"])
    assert listed == {task_id: 1 for task_id, _ in acknowledged}
    counted = Counted(scheduler)
    scheduler.list_pools()
    assert counted.here == {True: 1}


def test_only_the_user_of_the_supervisor_may_enter_the_folder_of_the_socket(scheduler):
    address = scheduler._connection.hello.socket
    folder = Path(address.folder)
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / address.name).is_socket()
    scheduler.shutdown()
    assert not (folder / address.name).exists()


def test_another_job_uses_the_socket_and_a_process_without_its_folder_uses_ray(
    scheduler, namespace, tmp_path
):
    source = f"""
        scheduler = RayScheduler.attach("mesh", namespace={namespace!r})
        channel = scheduler._connection._socket
        answers = []
        asked = channel.ask
        channel.ask = lambda *args: answers.append(asked(*args)) or answers[-1]
        print(len(scheduler.list_pools()["pools"]), answers[-1] is not None)
        channel.close()
        from msgspec.structs import replace
        channel._address = replace(channel._address, folder="/nowhere")
        print(len(scheduler.list_pools()["pools"]), answers[-1] is not None)
    """
    assert run_driver(source, tmp_path).split() == ["1", "True", "1", "False"]
