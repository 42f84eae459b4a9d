"""Whether Ray places an actor, and who has the room where it does not."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.resources import NOTHING, parse_resources
from schedulemesh.engine.messages.facts import Devices, NodeSeen
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.runtime.agents import placement_watch
from schedulemesh.runtime.agents.placement_watch import (
    external_use,
    no_room,
    seen_anew,
    unplaced,
)
from schedulemesh.runtime.backend import ActorView, NodeView
from tests.runtime.fake_backend import Control, FakeBackend, Verdict

PENDING = ActorView(node_id="n", has_process=False)
TWO = parse_resources({"cpu": 2})


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    for name in ("_FIRST_S", "_AGAIN_S", "_AGAIN_IN_GROUP_S", "_EVERY_S"):
        monkeypatch.setattr(placement_watch, name, 0.001)


def watched(backend, within_s):
    """Whether the watch says that Ray has no room for the actor."""

    async def story():
        try:
            await asyncio.wait_for(unplaced(backend, "actor", in_group=False), within_s)
        except (asyncio.TimeoutError, TimeoutError):
            return False
        return True

    return asyncio.run(story())


def goes_on(backend, looks):
    """Whether the watch has looked at Ray so many times and still says nothing."""

    async def story():
        loop, enough, waiting = asyncio.get_running_loop(), asyncio.Event(), backend.waiting

        def counted(actor):
            if len(backend.looks) >= looks:
                loop.call_soon_threadsafe(enough.set)
            return waiting(actor)

        backend.waiting = counted
        watch = asyncio.ensure_future(unplaced(backend, "actor", in_group=False))
        seen = asyncio.ensure_future(enough.wait())
        await asyncio.wait((watch, seen), return_when=asyncio.FIRST_COMPLETED)
        goes = not watch.done()
        watch.cancel()
        seen.cancel()
        return goes

    return asyncio.run(asyncio.wait_for(story(), 30.0))


def test_an_agent_that_waits_for_resources_twice_is_not_placed():
    backend = FakeBackend()
    backend.views["actor"] = PENDING
    backend.waiting = lambda actor: True
    assert watched(backend, 10.0)
    assert len(backend.looks) == 2


def test_one_whose_process_is_being_started_is_waited_for():
    backend = FakeBackend()
    backend.views["actor"] = PENDING
    assert goes_on(backend, looks=4)


def test_resources_that_just_became_free_are_waited_for():
    backend = FakeBackend()
    backend.views["actor"] = PENDING
    backend.waiting = lambda actor: len(backend.looks) % 2 == 1
    assert goes_on(backend, looks=6)


def test_a_start_continues_if_ray_does_not_respond(caplog):
    def broken(actor):
        raise RuntimeError("no answer")

    backend = FakeBackend()
    backend.views["actor"] = PENDING
    backend.waiting = broken
    assert goes_on(backend, looks=2)
    assert "cannot tell whether Ray has room" in caplog.text


class Clock:
    """A time that passes only while somebody sleeps, up to 20 s."""

    def __init__(self):
        self.now, self.over = 0.0, asyncio.Event()

    async def sleep(self, seconds):
        self.now += seconds
        if self.now > 20.0:
            self.over.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("asked_at", [0.0, 0.3, 0.49, 0.9])
@pytest.mark.parametrize(("room_at", "placed"), [(0.5, True), (100.0, False)])
def test_two_queries_about_a_group_are_not_answered_from_one_copy(
    monkeypatch, asked_at, room_at, placed
):
    """Ray's GCS asks for the queues once a second, and answers from that copy in between."""
    monkeypatch.undo()  # the real intervals, in a time that does not pass by itself
    clock, backend = Clock(), FakeBackend()
    monkeypatch.setattr(placement_watch.asyncio, "sleep", clock.sleep)
    backend.views["actor"] = PENDING

    def listed(actor):
        copied = asked_at + (clock.now - asked_at) // 1.0
        return 0.0 <= copied < room_at

    backend.waiting = listed

    async def story():
        watch = asyncio.ensure_future(unplaced(backend, "actor", in_group=True))
        over = asyncio.ensure_future(clock.over.wait())
        await asyncio.wait((watch, over), return_when=asyncio.FIRST_COMPLETED)
        given_up = watch.done()
        watch.cancel()
        over.cancel()
        return given_up

    assert asyncio.run(story()) is not placed
    assert clock.now > 20.0 if placed else clock.now < 4.0


def test_an_agent_with_a_process_is_not_checked_again():
    backend = FakeBackend()
    backend.waiting = lambda actor: True
    assert not watched(backend, 0.02)
    assert backend.looks == []


def eight_cpus():
    """A state with one node of eight CPUs, of which four are allocated, two of them to an incoming agent."""
    state = MeshState()
    report = NodeReport(node_id="n", total=parse_resources({"cpu": 8}))
    state.evolve(NodeSeen(report=report, at=0.0))
    for name in ("old", "new"):
        state.cluster.take("n", name, TWO, Devices())
    return state


def view(free, node_id="n"):
    total, left = parse_resources({"cpu": 8}), parse_resources({"cpu": free})
    return NodeView(node_id=node_id, total=total, free=left, labels={})


def test_external_usage_is_what_ray_has_assigned_to_others():
    node = eight_cpus().cluster.nodes["n"]
    assert external_use(node, view(1.0), TWO) == parse_resources({"cpu": 5})
    assert external_use(node, view(1.0), NOTHING) == parse_resources({"cpu": 3})
    assert external_use(node, view(8.0), NOTHING) == NOTHING


def test_external_usage_is_recorded_for_this_node_alone():
    state = eight_cpus()
    reports = seen_anew(state, [view(1.0), view(0.0, "other")], "n", TWO)
    assert [(r.node_id, r.external_usage) for r in reports] == [
        ("n", parse_resources({"cpu": 5})),
        ("other", None),
    ]


def test_the_refusal_names_the_holders_and_amounts():
    state = eight_cpus()
    state.evolve(NodeSeen(report=seen_anew(state, [view(1.0)], "n", TWO)[0], at=0.0))
    told = no_room(state.cluster.nodes["n"], TWO)
    assert "of cpu 8 there, other Ray work holds 5, ScheduleMesh 2, and it needs 2" in told


def test_an_actor_that_cannot_be_looked_at_is_not_said_to_lack_room():
    class Silent(Control):
        async def turn(self, call, subject):
            return Verdict.REFUSED if call == "actor" else Verdict.DONE

    assert not watched(FakeBackend(Silent()), 0.02)
