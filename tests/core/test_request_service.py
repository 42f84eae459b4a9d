"""The service behind every public call, with a real engine and journal and a fake backend."""

from __future__ import annotations

import asyncio
import os
import threading
from types import SimpleNamespace

import pytest

from schedulemesh.api.preemption import EvaluatePreemption
from schedulemesh.client import states
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.core.client.task_request import Caller
from tests.engine.builders import differences
from tests.integration.request_fuzz import Fuzz, Witness
from tests.runtime.composition import InThread


class Connection:
    """What a client has, without Ray."""

    standing = False

    def __init__(self, service):
        self.service = service
        self.settings = service.running.settings
        self.caller = Caller(namespace="space", runtime_env={})
        self.shipped = set()

    def call(self, method, data, *refs, what):
        return self.service.do(self.service.service.ask(data, *refs))


def client(service):
    scheduler = RayScheduler.__new__(RayScheduler)
    scheduler._connection = Connection(service)
    return scheduler


@pytest.fixture
def service(tmp_path):
    """A service with an empty journal."""
    found = InThread(tmp_path / "j.sqlite")
    yield found
    found.close()


def test_no_value_breaks_anything_and_the_journal_reloads(service, tmp_path, monkeypatch):
    seed = int(os.environ.get("SCHEDULEMESH_SEED", "1"))
    # ``list`` asks whatever Ray runs on this machine, not the service.
    fuzz, witness = Fuzz(client(service), seed, without=("list",)), Witness(client(service))
    witness.start()
    try:
        for number in range(2_000):
            try:
                fuzz.call()
            except Exception as error:
                raise AssertionError(f"seed {seed}, call {number}") from error
    finally:
        witness.over.set()
        witness.join()
    assert witness.calls
    assert not witness.trouble, f"seed {seed}: {witness.trouble[:3]}"
    succeeded = sum(many for what, many in fuzz.counts.items() if what.endswith("success"))
    assert succeeded > 200, fuzz.counts

    assert differences(service.reloaded(), service.running.reactor.state) == [], f"seed {seed}"


def test_an_unexpected_engine_error_is_answered_and_affects_no_other_caller(service, monkeypatch):
    asked, other = client(service), client(service)
    monkeypatch.setitem(
        service.requests._handlers,
        EvaluatePreemption,
        lambda *_: (_ for _ in ()).throw(KeyError("unforeseen")),
    )
    answer = asked.evaluate_preemption(5.0, "p")
    assert (answer["success"], answer["reason"]) == (False, "internal_error")
    assert "KeyError" in answer["error"]
    assert other.create_pool("p", resources={"cpu": 1})["success"]


def test_a_task_that_runs_is_not_restored_beside_itself(service):
    asked = client(service)
    asked.create_pool("p", resources={"cpu": 2})
    assert asked.register_running_task("t", "somewhere", "p")["success"]
    refused = asked.restore_task({"task_id": "t"})
    assert (refused["success"], refused["reason"]) == (False, "duplicate_task")
    assert "already exists" in refused["error"]


def test_a_repeated_restore_gets_its_first_answer(service, monkeypatch):
    asked = client(service)
    asked.create_pool("p", resources={"cpu": 2})
    submitted = asked.submit_task_with_preemption("t", "p", AgentActor, {"cpu": 1})
    assert submitted["success"], submitted
    saved = asked.preempt_task("t")["preempted"][0]["saved_state"]
    same = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="the-same-request"))
    monkeypatch.setattr(states, "uuid", same)
    first, again = asked.restore_task(saved), asked.restore_task(saved)
    assert first["success"], first
    assert {**again, "agent": None} == {**first, "agent": None}
    assert again["agent"]["name"] == first["agent"]["name"]


def test_a_task_that_is_still_being_preempted_is_not_restored(service, monkeypatch):
    asked, ended = client(service), threading.Event()
    agents = type(service.running.agents)
    end = agents.end

    async def end_when_told(self, *agent):
        await asyncio.to_thread(ended.wait)
        await end(self, *agent)

    monkeypatch.setattr(agents, "end", end_when_told)
    asked.create_pool("p", resources={"cpu": 1})
    assert asked.submit_task_with_preemption("t", "p", AgentActor, {"cpu": 1})["success"]
    evicting = threading.Thread(target=asked.preempt_task, args=("t",))
    evicting.start()
    try:
        for _ in range(10_000):
            if asked.list_tasks()["tasks"][0]["phase"] == "preempting":
                break
        refused = asked.restore_task({"task_id": "t"})
        assert refused["reason"] == "already_being_preempted"
        assert "has ended" in refused["error"]
    finally:
        ended.set()
        evicting.join()
    # The quota that it freed is held for this client, and a restore may take it like a submission.
    restored = asked.restore_task({"task_id": "t"})
    assert restored["success"], restored


def owners(listing):
    return {row["task_id"]: row["owner"] for row in listing}


def test_every_listing_shows_the_owner_who_survives_eviction_and_restore(service, monkeypatch):
    asked = client(service)
    asked.create_pool("p", resources={"cpu": 1})
    low = {"resources": {"cpu": 1}, "priority": 1.0, "owner": "ada"}
    assert asked.submit_task_with_preemption("low", "p", AgentActor, **low)["success"]
    assert asked.register_running_task("else", "elsewhere", "p", owner="grace")["success"]
    assert owners(asked.list_tasks()["tasks"]) == {"low": "ada", "else": "grace"}
    (agent,) = asked.list_agents()["agents"]
    assert owners(agent["task_details"]) == {"low": "ada"}
    candidates = asked.evaluate_preemption(9.0, "p")["candidates"]
    assert owners(candidates) == {"low": "ada", "else": "grace"}
    monkeypatch.setenv("LOGNAME", "linus")
    high = asked.submit_task_with_preemption("high", "p", AgentActor, {"cpu": 1}, 9.0)
    assert owners(high["preempted"]) == {"low": "ada"}
    assert owners(asked.list_tasks()["tasks"]) == {"else": "grace", "high": "linus"}
    assert owners(asked.get_preemption_stats()["recent_preemptions"]) == {"low": "ada"}
    assert owners(asked.list_saved_states()["saved_states"]) == {"low": "ada"}
    saved = asked.get_saved_state("low")["saved_state"]
    assert saved["owner"] == "ada"
    assert asked.complete_task("high", end_agent=True)["success"]
    restored = asked.restore_task({**saved, "owner": "somebody else"})
    assert restored["success"], restored
    assert owners(asked.list_tasks()["tasks"]) == {"else": "grace", "low": "ada"}

    tasks = service.reloaded().running.by_id
    assert {task_id: task.spec.owner for task_id, task in tasks.items()} == {
        "else": "grace",
        "low": "ada",
    }
