"""The HTTP API on a real Ray: it is found, outlives its supervisor, returns to its address, and ends."""

from __future__ import annotations

import os
import random
import signal
import socket

import httpx
import pytest

from schedulemesh.config.discovery import found
from schedulemesh.config.http import home_folder
from tests.integration.polling import actors_in, process_exists, until


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder in which commands find the address and the token."""
    monkeypatch.setenv("SCHEDULEMESH_HOME", str(tmp_path / "home"))
    return home_folder(os.environ)


@pytest.fixture
def scheduler(make_scheduler, home):
    """A scheduler with an HTTP API on a port that no outgoing connection takes while it is restarted."""
    made = make_scheduler(http=free_port())
    until(lambda: made.about()["http"], "the HTTP API does not serve")
    return made


@pytest.fixture
def client(scheduler, namespace, home):
    """A client with the token of the file."""
    told = found(home, namespace, "mesh")
    headers = {"authorization": f"Bearer {told.token}"}
    with httpx.Client(base_url=told.url, headers=headers, trust_env=False, timeout=30) as made:
        yield made


def free_port():
    """A free port below those that the system gives to outgoing connections."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no port is free")


def served(client, path="/api/v1/status"):
    """Whether this is answered; the answer."""
    try:
        answer = client.get(path)
    except httpx.TransportError:
        return None
    return answer.json() if answer.status_code == 200 else None


def test_it_serves_the_scheduler_and_ends_with_it(scheduler, namespace, home, client):
    status = served(client)
    about = scheduler.about()
    assert (status["name"], status["pid"]) == ("mesh", about["pid"])
    assert about["http"] == str(client.base_url).rstrip("/")
    told = found(home, namespace, "mesh")
    assert told.pid != about["pid"]
    scheduler.shutdown()
    until(lambda: not process_exists(told.pid), "the process of the HTTP API still runs")
    assert found(home, namespace, "mesh") is None
    assert actors_in(namespace) == []


def test_it_returns_to_its_address_with_its_token_after_it_was_killed(
    scheduler, namespace, home, client
):
    before = found(home, namespace, "mesh")
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: not process_exists(before.pid), "it still runs")
    assert until(lambda: served(client), "it does not serve again")["name"] == "mesh"
    after = found(home, namespace, "mesh")
    assert (after.url, after.token) == (before.url, before.token)
    assert after.pid != before.pid


def test_it_outlives_a_killed_supervisor(scheduler, namespace, home, client):
    before = found(home, namespace, "mesh")
    epoch = served(client)["epoch"]
    os.kill(scheduler.about()["pid"], signal.SIGKILL)
    status = until(lambda: served(client), "the new supervisor is not reached")
    assert status["epoch"] == epoch + 1
    assert found(home, namespace, "mesh") == before
    until(lambda: scheduler.about()["http"], "the new supervisor is not told the address")
