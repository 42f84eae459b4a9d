"""Large saved states are packed beside the event loop, on which everybody waits."""

from __future__ import annotations

import threading

import pytest

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.payloads import SINGLE_PROCESS, GangPayload
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.instructions import StartAgent
from schedulemesh.protocol.agents import AgentInit, key_of, pack, unpack
from schedulemesh.runtime import executor as executors
from schedulemesh.runtime.threads import LARGE_BYTES
from tests.runtime.composition import InThread

ONE = parse_resources({"cpu": 1})


@pytest.fixture
def service(tmp_path):
    begun = InThread(tmp_path / "j.sqlite")
    yield begun
    begun.close()


@pytest.mark.parametrize("size", [LARGE_BYTES, 10])
@pytest.mark.parametrize("world_size", [0, 2])
def test_the_state_of_an_agent_that_starts(service, monkeypatch, world_size, size):
    threads = []

    def seen_by(name):
        work = getattr(executors, name)

        def seen(*args):
            threads.append(threading.current_thread())
            return work(*args)

        monkeypatch.setattr(executors, name, seen)

    for name in ("pack", "states_of"):
        seen_by(name)
    parts = {"members": (b"0" * size, b"1" * size)} if world_size else {"state": b"0" * size}
    task = TaskSpec(task_id="t", pool_name="p")
    saved = pack(SavedState(task=task, agent_name="a", source="save_state", saved_at=1.0, **parts))
    agent = AgentSpec(
        name="a",
        pool_name="p",
        resources=ONE,
        class_key="c",
        bundles=(ONE,) * world_size,
        payload=GangPayload() if world_size else SINGLE_PROCESS,
    )
    order = StartAgent(
        agent=agent,
        incarnation=1,
        node_id="n",
        state_key=key_of(saved),
        group_id=None,
        world_size=world_size,
    )
    running = service.running
    service.do(running.reactor.keep({key_of(saved): saved}))
    starts = service.do(running.executor._agent_starts(order))
    assert len(threads) == (3 if world_size else 1)
    assert all((thread is service.thread) == (size < LARGE_BYTES) for thread in threads)
    states = [unpack(unpack(s.packed, AgentInit).saved, SavedState).state for s in starts]
    assert states == [b"0" * size, b"1" * size][: max(1, world_size)]
