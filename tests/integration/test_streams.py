"""Streams on a real Ray: every client gets every event once and in order, whatever is killed meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading

import httpx
import pytest
import ray

from schedulemesh.config.discovery import found
from schedulemesh.config.http import home_folder
from schedulemesh.errors import SchedulerUnavailableError
from tests.integration.agents import Counter
from tests.integration.polling import process_exists, until
from tests.integration.test_http import free_port
from tests.server.sse import Stream

CLIENTS = 6


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder in which commands find the address and the token."""
    monkeypatch.setenv("SCHEDULEMESH_HOME", str(tmp_path / "home"))
    return home_folder(os.environ)


@pytest.fixture
def scheduler(make_scheduler, home):
    """A scheduler with an HTTP API and a pool that a task fills, so that others wait."""
    made = make_scheduler(http=free_port())
    until(lambda: made.about()["http"], "the HTTP API does not serve")
    made.ensure_pool("p", resources={"cpu": 1})
    assert made.submit_task_with_preemption("first", "p", Counter, {"cpu": 1})["success"]
    return made


class Client(threading.Thread):
    """Follows all events from the first on; where its stream is lost, it resumes after its last one."""

    def __init__(self, home, namespace):
        super().__init__(daemon=True)
        self._home, self._namespace = home, namespace
        self.rows, self.wrong, self.streams = [], [], 0
        self._over = threading.Event()
        self.start()

    def run(self):
        while not self._over.is_set():
            with contextlib.suppress(httpx.TransportError, StopIteration, AttributeError):
                self._follow()
            self._over.wait(0.05)

    def _follow(self):
        told = found(self._home, self._namespace, "mesh")
        last = {"last-event-id": str(self.rows[-1]["cursor"])} if self.rows else {}
        with Stream(told.url, told.token, headers=last, after=0) as stream:
            if stream.answer.status_code != 200:
                return
            self.streams += 1
            while not self._over.is_set():
                message = stream.next()
                if message.event == "message" and message.data is not None:
                    self.rows.append(message.data)
                elif message.event in ("gap", "ended"):
                    self.wrong.append(message)

    def end(self):
        self._over.set()

    stop = end


class Command(threading.Thread):
    """The command ``events --follow`` as a process."""

    def __init__(self, namespace, *more):
        super().__init__(daemon=True)
        where = ["--name", "mesh", "--namespace", namespace, *more]
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "schedulemesh",
                "events",
                "-F",
                "--after",
                "0",
                "-o",
                "json",
                *where,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.rows, self.wrong = [], []
        self.start()

    def run(self):
        for line in self.process.stdout:
            self.rows.append(json.loads(line))

    def end(self):
        """End it by Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        remarks = self.process.stderr.read()
        assert self.process.wait(30) == 130, remarks
        self.join(30)
        assert "Traceback" not in remarks

    def stop(self):
        """End it, however far it is."""
        self.process.kill()
        self.process.wait()
        self.join()
        self.process.stdout.close()
        self.process.stderr.close()


class Work(threading.Thread):
    """Submits tasks that wait, and cancels them, until it is ended."""

    def __init__(self, scheduler):
        super().__init__(daemon=True)
        self._scheduler, self._over = scheduler, threading.Event()
        self.done = 0
        self.start()

    def run(self):
        for number in itertools.count():
            if self._over.is_set():
                return
            # What was not answered may have been done.
            with contextlib.suppress(SchedulerUnavailableError):
                self.one(f"task-{number}")
                self.done += 1

    def one(self, task_id):
        answer = self._scheduler.submit_task_with_preemption(
            task_id, "p", Counter, {"cpu": 1}, queue=True
        )
        assert answer["success"], answer
        assert self._scheduler.cancel_task(task_id)["success"]

    def end(self):
        self._over.set()
        self.join(60)


@pytest.fixture
def following(scheduler, namespace, home, interruptible):
    """Clients that follow, while tasks are submitted; afterwards each has to have got everything."""
    address = ray.get_runtime_context().gcs_address
    with contextlib.ExitStack() as ends:
        clients = [Client(home, namespace) for _ in range(CLIENTS)]
        clients += [Command(namespace), Command(namespace, "--address", address)]
        for client in clients:
            ends.callback(client.stop)
        work = Work(scheduler)
        ends.callback(work.end)
        until(lambda: all(len(client.rows) > 5 for client in clients), "not all follow", 60)
        yield clients
        done = work.done
        until(lambda: work.done > done + 5, "nothing is done any more")
        work.end()
        _check(clients, scheduler)


def _written(scheduler):
    """All events that are in the history now."""
    found, rows = [], [None]
    while rows:
        rows = scheduler.events(found[-1]["cursor"] if found else 0, limit=10_000)["events"]
        found += rows
    return found


def _check(clients, scheduler):
    """Each client has got everything, once and in order."""
    last = _written(scheduler)[-1]["cursor"]
    until(
        lambda: all(client.rows[-1]["cursor"] >= last for client in clients),
        lambda: f"of {last} numbers came {[client.rows[-1]['cursor'] for client in clients]}",
        60,
    )
    for client in clients:
        client.end()
    # Taken before the whole history is read: their threads may go on and get what is written meanwhile.
    got = [list(client.rows) for client in clients]
    whole = _written(scheduler)
    cursors = [row["cursor"] for row in whole]
    assert cursors == sorted(set(cursors))
    for client, rows in zip(clients, got, strict=True):
        assert rows == whole[: len(rows)]
        assert client.wrong == []


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    until(lambda: not process_exists(pid), "it still runs")


def test_a_killed_http_process_costs_no_client_an_event(following, namespace, home):
    before = found(home, namespace, "mesh")
    kill(before.pid)
    streams = [client for client in following if isinstance(client, Client)]
    until(lambda: all(client.streams > 1 for client in streams), "not all clients resumed", 60)


def test_a_killed_supervisor_costs_no_client_an_event(following, scheduler):
    about = scheduler.about()
    kill(about["pid"])
    until(lambda: scheduler.about()["epoch"] > about["epoch"], "it was not restarted")
    began = ["supervisor_started", "supervisor_started"]
    for client in following:
        until(
            lambda client=client: (
                [r["kind"] for r in client.rows if r["kind"] == began[0]] == began
            ),
            "the restart is not in the stream",
            60,
        )
