"""A scheduler on a fake backend, which the commands reach as they would reach one over Ray."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from schedulemesh.cli import gateway, language, ray_gateway
from schedulemesh.core.agent_actor import AgentActor
from tests.command_runner import run_command
from tests.core.test_request_service import Connection, client
from tests.runtime.composition import InThread


class Worker(AgentActor):
    """A user's class."""


class Scheduler:
    """The public calls of the scheduler, and ways to fill it."""

    def __init__(self, service):
        self.calls = client(service)
        self.connection = Connection(service)

    def pool(self, name="研究", cpu=4, gpu=0, **more):
        assert self.calls.ensure_pool(name, resources={"cpu": cpu, "gpu": gpu}, **more)["success"]

    def submit(self, name, pool="研究", cpu=1, **more):
        answer = self.calls.submit_task_with_preemption(name, pool, Worker, {"cpu": cpu}, **more)
        assert answer["success"], answer
        return answer


@pytest.fixture(autouse=True)
def language_of_the_environment():
    """A command that was told another language does not decide about those of later tests."""
    language.speak(None)
    yield
    language.speak(None)


@pytest.fixture
def scheduler(tmp_path, monkeypatch):
    """A scheduler that the commands reach."""
    service = InThread(tmp_path / "j.sqlite")
    found = Scheduler(service)

    @contextmanager
    def connected(target):
        yield ray_gateway.RayGateway(found.connection)

    @contextmanager
    def attached(target):
        yield found.calls

    monkeypatch.setattr(gateway, "connection_to", connected)
    monkeypatch.setattr(ray_gateway, "attached", attached)
    yield found
    service.close()


@pytest.fixture
def cancels_at_once(scheduler):
    """No process hears a cancel here, so the end of each task would wait for all of that time."""
    scheduler.calls.update_preemption_policy(cancel_timeout=0.05)


@pytest.fixture
def run(monkeypatch):
    """Runs a command at a width."""

    def invoke(*words, width=80, **options):
        monkeypatch.setenv("COLUMNS", str(width))
        return run_command(words, **options)

    return invoke
