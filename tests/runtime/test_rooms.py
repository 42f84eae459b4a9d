"""The placement groups of agents with GPUs, as a whole supervisor on a fake backend keeps them."""

from __future__ import annotations

import asyncio
import functools

import pytest

from schedulemesh.api.agents import DeleteAgent
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.protocol.agents import key_of
from schedulemesh.runtime.agents.start import fills_group
from schedulemesh.runtime.backend import GroupMember, NodeView
from tests.core.test_request_service import client
from tests.engine.builders import Mesh
from tests.runtime import life as lives
from tests.runtime.composition import InThread
from tests.runtime.fake_backend import OWN_NODE
from tests.runtime.life import SOON_S
from tests.runtime.story import CALLS

TOTAL = parse_resources({"cpu": 8, "gpu": 2})


@pytest.fixture
def service(tmp_path):
    found = InThread(tmp_path / "j.sqlite")
    found.backend.free = [NodeView(node_id=OWN_NODE, total=TOTAL, free=TOTAL, labels={})]
    found.do(found.running.monitor.observe())
    yield found
    found.close()


@pytest.fixture
def calls(service):
    made = client(service)
    made.create_pool("p", resources={"cpu": 8, "gpu": 2})
    return made


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


def submit(calls, task_id, priority=1.0, **resources):
    return calls.submit_task_with_preemption(
        task_id, "p", AgentActor, resources=resources, priority=priority, agent_name=task_id
    )


def rooms(service):
    """The rooms in Ray, by their ids."""
    return {
        name: view.ray_id
        for name, view in service.do(service.running.executor.groups.living()).items()
    }


def room_of(service, name):
    return service.running.reactor.state.agents[name].process.room


def recovered(service, state):
    """The rooms are those that a former supervisor left."""
    executor = service.running.executor
    living = service.do(executor.groups.living())
    service.do(executor.rooms.recover(state, executor._agents, living))


def removals_done(service):
    """Once each room that was to be removed is gone."""

    async def done():
        while service.running.executor.rooms._removals:
            await asyncio.wait(service.running.executor.rooms._removals)

    service.do(done())


def test_an_agent_with_gpus_runs_in_a_room_and_leaves_none_behind(service, calls):
    assert submit(calls, "a", cpu=1, gpu=1)["success"]
    assert room_of(service, "a") in rooms(service)
    assert calls.complete_task("a", end_agent=True)["success"]
    removals_done(service)
    assert rooms(service) == {}


def test_an_agent_without_gpus_has_none(service, calls):
    assert submit(calls, "a", cpu=1)["success"]
    assert (room_of(service, "a"), rooms(service)) == ("", {})


def test_an_incoming_task_of_the_same_shape_gets_the_room_of_its_victim(service, calls):
    assert submit(calls, "low", cpu=1, gpu=2)["success"]
    before = rooms(service)
    assert submit(calls, "high", 9.0, cpu=1, gpu=2)["success"]
    removals_done(service)
    assert rooms(service) == before
    assert room_of(service, "high") in before


def test_of_another_shape_it_gets_a_room_of_its_own(service, calls):
    assert submit(calls, "low", cpu=1, gpu=2)["success"]
    before = rooms(service)
    assert submit(calls, "high", 9.0, cpu=1, gpu=1)["success"]
    removals_done(service)
    assert not before.keys() & rooms(service).keys()
    assert list(rooms(service)) == [room_of(service, "high")]


def test_where_ray_places_no_room_the_agent_runs_without_one(service, calls):
    service.backend.full.add(OWN_NODE)
    assert submit(calls, "a", cpu=1, gpu=1)["success"]
    removals_done(service)
    assert (room_of(service, "a"), rooms(service)) == ("", {})


def test_where_the_node_is_full_in_ray_the_start_fails_at_once(service, calls):
    service.backend.full.add(OWN_NODE)
    assert submit(calls, "a", cpu=1, gpu=1)["success"]
    full = NodeView(node_id=OWN_NODE, total=TOTAL, free=parse_resources({"cpu": 8}), labels={})
    service.backend.free = [full]
    refused = submit(calls, "b", cpu=1, gpu=1)
    assert refused["reason"] == "cluster_out_of_resources"


def test_the_next_supervisor_keeps_the_rooms_of_living_agents(service, calls):
    assert submit(calls, "low", cpu=1, gpu=2)["success"]
    assert submit(calls, "high", 9.0, cpu=1, gpu=2)["success"]
    removals_done(service)
    before = rooms(service)
    executor = service.running.executor
    executor.rooms._of.clear()
    recovered(service, service.running.reactor.state)
    removals_done(service)
    incarnation = service.running.reactor.state.agents["high"].incarnation
    assert executor.rooms.room_of("high", incarnation) in before
    assert rooms(service) == before


def test_a_room_in_which_nothing_runs_is_removed_by_the_next_supervisor(service, calls):
    assert submit(calls, "a", cpu=1, gpu=1)["success"]
    executor = service.running.executor
    executor.rooms._of.clear()
    state = service.running.reactor.state
    agent = state.agents.pop("a")
    service.do(executor._agents.end("a", agent.incarnation))
    recovered(service, state)
    removals_done(service)
    state.agents["a"] = agent
    assert rooms(service) == {}


def test_the_next_supervisor_starts_nothing_in_a_room_that_ray_has_not_placed(lived):
    async def story(life):
        life.backend.full = {"n"}
        life.submit("a", gpu=1)
        await asyncio.sleep(0.1)  # virtual time
        assert [view.state for view in life.backend.by_id.values()] == ["PENDING"]
        await life.crash()
        life.backend.full = set()
        await asyncio.sleep(SOON_S)  # virtual time
        (actor,) = [actor for actor in life.backend.actors if actor.alive]
        assert actor.node_id == "n"
        assert [view.state for view in life.backend.by_id.values()] == ["CREATED"]

    lived(story)


def test_no_room_is_created_for_an_agent_that_has_ended_before_its_start(lived):
    async def story(life):
        await life.submit("earlier", gpu=1)
        life.hold("remove_group")
        await life.ask(DeleteAgent(agent_name="earlier"))
        life.submit("a", gpu=2)
        await asyncio.sleep(0.5)  # virtual time: its start waits until the room is removed
        await life.ask(DeleteAgent(agent_name="a"))
        assert life.running.reactor.state.agents == {}
        life.held.through |= CALLS
        (await life.held.next("remove_group")).let()
        await asyncio.sleep(SOON_S)  # virtual time
        assert life.backend.by_id == {}

    lived(story)


def queue(life, name):
    """Queue a task for an agent with all GPUs of the node."""
    agent = AgentSpec(
        name=name,
        pool_name="p",
        resources=parse_resources({"gpu": 2}),
        class_key=key_of(lives.CLASS),
    )
    task = TaskSpec(task_id=name, pool_name="p")
    stimulus = TaskSubmitted(agent=agent, task=task, request_id=name, queue=True, choose_node=True)
    return life.ask(SubmitTask(submission=stimulus, blobs={key_of(lives.CLASS): lives.CLASS}))


def test_an_agent_that_has_ended_empties_no_room_that_another_one_has(lived):
    async def story(life):
        await life.submit("earlier", gpu=2)
        (ray_id,) = life.backend.by_id
        member = GroupMember(name="", namespace="", node_id="n", pid=7, actor_id="stays")
        life.backend.foreign[ray_id] = [member]
        life.backend.undying.add("stays")
        for name in ("ended", "next"):
            await queue(life, name)
        life.ask(DeleteAgent(agent_name="earlier"))
        await asyncio.sleep(1.0)  # virtual time: its room is being emptied
        life.backend.foreign.clear()
        life.ask(DeleteAgent(agent_name="ended"))
        await asyncio.sleep(10.0)  # virtual time
        assert [actor.alive for actor in life.backend.actors] == [False, True]
        assert list(life.backend.by_id) == [ray_id]
        assert life.running.reactor.state.agents["next"].process.room == "room:earlier#1"

    lived(story)


def test_a_room_that_is_being_created_is_handed_to_nobody(lived):
    async def story(life):
        life.hold("create_group")
        for name in ("ended", "next"):
            await queue(life, name)
        creation = await life.held.next("create_group")
        life.held.through |= CALLS
        life.ask(DeleteAgent(agent_name="ended"))
        await asyncio.sleep(0.1)  # virtual time
        creation.let()
        await asyncio.sleep(SOON_S)  # virtual time
        (room,) = life.backend.by_id.values()
        (actor,) = [actor for actor in life.backend.actors if actor.alive]
        assert life.running.reactor.state.agents["next"].process.room == "room:next#2"
        assert room.name.endswith(":room:next#2")
        assert actor.request.slot.ray_id == room.ray_id

    lived(story)


@pytest.mark.parametrize(
    ("how", "fills"),
    [
        ({"gpu": 1}, True),
        ({"cpu": 1}, False),
        ({"bundles": [{"gpu": 1}]}, True),
        ({"bundles": [{"cpu": 1}, {"gpu": 1}]}, False),
        ({"bundles": [{"gpu": 1}] * 2, "payload": GangPayload()}, True),
        ({"bundles": [{"cpu": 1}] * 2, "payload": GangPayload()}, False),
    ],
)
def test_an_agent_that_leaves_no_gpu_to_others_fills_its_group(how, fills):
    assert fills_group(Mesh().submission("a", **how).agent) is fills
