"""Hosts that stand ready in reserved groups, on a fake backend."""

from __future__ import annotations

import asyncio
import functools

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.placement import GroupShape, GroupsSpec, Unplaced, WarmSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.facts import PoolEnsured
from schedulemesh.engine.messages.instructions import CreateGroup, StartAgent
from schedulemesh.engine.messages.stimuli import AgentReported, AgentStartFailed
from schedulemesh.engine.state.agents import Agent, Running, Starting, Submission
from schedulemesh.engine.state.groups import Group, GroupPhase
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.protocol.agents import AgentInit, Handled, ShippedClass, StartReport, pack
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.agents.start import AgentStart, packed_for_warm_host
from schedulemesh.runtime.backend import WarmHostRequest
from schedulemesh.runtime.groups import warm_pool as warm_hosts
from schedulemesh.runtime.groups.manager import Groups
from schedulemesh.runtime.groups.warm_pool import WarmPool
from tests.runtime.fake_backend import FakeBackend

CPU = parse_resources({"cpu": 1})
GPU = parse_resources({"gpu": 1})
SHIPPED = pack(ShippedClass(name="C", methods=(), code=b""))


class Stage:
    """One pool with one reserved group, its executor, and the tasks that they began."""

    def __init__(self, need=CPU, **warm):
        self.backend = FakeBackend()
        self.agents = Agents(self.backend, "mesh", "space")
        self.groups = Groups(self.backend, "mesh", "space")
        self.tasks = []
        self.ready = WarmPool(self.backend, self.agents, self.groups, self.spawn, self.class_bytes)
        self.bytes = {"k": SHIPPED, "other": SHIPPED}
        self.state = MeshState()
        self.need = need
        self.want(**warm)
        self.group = Group(
            group_id="g",
            pool_name="p",
            shape=GroupShape(bundles=(need,)),
            reserved=True,
            phase=GroupPhase.READY,
            node_ids=("n",),
        )
        self.state.groups.by_id["g"] = self.group

    def want(self, class_key="k", **warm):
        spec = GroupsSpec(warm=WarmSpec(class_key=class_key, **warm))
        self.state.evolve(PoolEnsured(spec=PoolSpec(name="p", groups=spec), at=0.0))

    def spawn(self, work):
        self.tasks.append(asyncio.ensure_future(work))

    async def class_bytes(self, key):
        return self.bytes.get(key)

    async def begin(self):
        order = CreateGroup(group_id="g", shape=self.group.shape, node_ids=("n",), wait_s=1.0)
        await self.groups.create(order)
        await self.reconcile()

    async def reconcile(self):
        self.ready.reconcile(self.state)
        await asyncio.gather(*self.tasks)

    def status(self):
        return self.ready.status(self.state, "p")

    def order(self, class_key="k", options="{}", need=None, **more):
        spec = AgentSpec(
            name="a",
            pool_name="p",
            resources=self.need if need is None else need,
            class_key=class_key,
            options=options,
        )
        return StartAgent(
            agent=spec, incarnation=7, node_id="n", state_key=None, group_id="g", **more
        )

    def start(self, order, ready):
        self.agents.expect([order])
        init = AgentInit(
            scheduler="mesh",
            namespace="n",
            agent_name="a",
            incarnation=7,
            mark=77,
            labels={},
            shipped=SHIPPED,
            arguments=None,
            saved=None,
        )
        return AgentStart(
            order=order,
            shipped=SHIPPED,
            init=init,
            packed=pack(init),
            packed_for_warm_host=packed_for_warm_host(init),
            refs=([], []),
            timeout_s=5.0,
            slot=self.groups.slot("g"),
            ready=ready,
        )


def story(stage=None):
    """Run an async test, with a stage that has begun."""

    def decorate(test):
        def wrapped(monkeypatch):
            monkeypatch.setattr(warm_hosts, "REPLACED_AFTER_S", 0.0)

            async def told():
                made = Stage(**(stage or {}))
                await made.begin()
                await test(made)

            asyncio.run(asyncio.wait_for(told(), 20.0))

        return wrapped

    return decorate


@story()
async def test_a_warm_host_runs_in_the_groups_first_bundle_without_resources(stage):
    (actor,) = stage.backend.actors
    assert isinstance(actor.request, WarmHostRequest)
    assert actor.request.slot == stage.groups.slot("g")
    assert actor.request.name.startswith("schedulemesh:mesh:ready:g:")
    assert stage.status() == {"ready": 1, "starting": 0, "errors": []}
    assert stage.ready.names() == {actor.request.name}
    await stage.reconcile()
    assert len(stage.backend.actors) == 1, "there are as many as wanted"


@story({"count": 2})
async def test_a_warm_host_is_used_once_and_replaced(stage):
    assert stage.status()["ready"] == 2
    first, second = stage.ready.take(stage.order()), stage.ready.take(stage.order())
    assert first.name != second.name
    assert stage.ready.take(stage.order()) is None
    await stage.reconcile()
    assert stage.status()["ready"] == 2
    assert len(stage.backend.actors) == 4


@story()
async def test_it_is_replaced_a_little_later(stage):
    warm_hosts.REPLACED_AFTER_S = 3600.0
    assert stage.ready.take(stage.order()) is not None
    await stage.reconcile()
    assert stage.status() == {"ready": 0, "starting": 0, "errors": []}


@story({"options": '{"a": 1}'})
async def test_only_an_agent_of_the_same_class_and_options_gets_it(stage):
    take = stage.ready.take
    same = {"options": '{"a": 1}'}
    assert take(stage.order()) is None
    assert take(stage.order("other", **same)) is None
    assert take(stage.order(adopt=True, **same)) is None, "that one lives already"
    assert take(stage.order(**same)) is not None


@story({"need": GPU})
async def test_with_gpus_it_sees_those_of_its_bundle_only(stage):
    assert [name for name, _ in stage.backend.probes] == ["accelerators"]
    (actor,) = stage.backend.actors
    mark = stage.agents.process_mark("space", actor.request.name)
    assert (actor.request.shipped, actor.request.mark) == (SHIPPED, mark)
    assert actor.request.accelerators == stage.backend.devices
    assert stage.ready.take(stage.order(need=parse_resources({"gpu": 0.5}))) is None
    assert stage.ready.take(stage.order()) is not None
    stage.group.agent = "a"
    await stage.reconcile()
    assert len(stage.backend.probes) == 1, "a bundle keeps its devices"
    assert stage.status()["ready"] == 1


def test_a_bundle_whose_gpus_are_in_use_is_not_probed():
    async def told():
        stage = Stage(need=GPU)
        stage.group.agent = "somebody"
        await stage.begin()
        assert (stage.backend.probes, stage.backend.actors) == ([], [])
        stage.group.agent = None
        stage.backend.devices = None  # somebody comes just then
        await stage.reconcile()
        assert (len(stage.backend.probes), stage.backend.actors) == (1, [])
        assert stage.status() == {"ready": 0, "starting": 0, "errors": []}

    asyncio.run(told())


@story()
async def test_unneeded_hosts_are_terminated(stage):
    stage.want("other")
    await stage.reconcile()
    old, new = stage.backend.actors
    assert (old.alive, new.alive) == (False, True)
    stage.group.phase = GroupPhase.ENDING
    await stage.reconcile()
    assert stage.backend.names() == set()
    assert stage.status() == {"ready": 0, "starting": 0, "errors": []}


@story()
async def test_a_group_that_is_left_has_no_hosts(stage):
    await stage.ready.leave("g")
    assert stage.backend.names() == set()
    await stage.reconcile()
    await stage.ready.remove_all()
    assert stage.backend.names() == set()


@story()
async def test_one_that_died_is_replaced(stage):
    stage.backend.actors[0].alive = False
    stage.ready.mark_dead(stage.ready.names())
    await stage.reconcile()
    assert stage.ready.names() == stage.backend.names()


def unloadable(actor):
    actor.answers["class_loaded"] = Handled(error="ModuleNotFoundError: nope")


def test_a_class_that_cannot_be_loaded_is_reported_and_not_retried_forever():
    async def told():
        stage = Stage()
        stage.backend.start = unloadable
        await stage.begin()
        for _ in range(3):
            await stage.reconcile()
        assert len(stage.backend.actors) == 1
        assert stage.backend.names() == set()
        assert stage.status()["errors"] == ["ModuleNotFoundError: nope"]
        stage.backend.start = lambda actor: None
        stage.ready.forgive("p")
        await stage.reconcile()
        assert stage.status() == {"ready": 1, "starting": 0, "errors": []}

    asyncio.run(told())


def test_what_fails_otherwise_is_tried_again_but_not_for_ever():
    async def told():
        stage = Stage()

        def dead(actor):
            actor.alive = False

        stage.backend.start = dead
        await stage.begin()
        for _ in range(5):
            stage.ready._not_before.clear()
            await stage.reconcile()
        assert len(stage.backend.actors) == 3
        assert stage.status()["errors"][0].startswith("failed 3 times, lastly: ")

    asyncio.run(told())


def test_one_whose_start_fails_in_an_unexpected_way_is_replaced():
    async def told():
        stage, report = Stage(), FakeBackend.warm_host_report

        async def fails_once(handle):
            stage.backend.warm_host_report = functools.partial(report, stage.backend)
            raise ZeroDivisionError

        stage.backend.warm_host_report = fails_once
        await stage.begin()
        stage.ready._not_before.clear()
        await stage.reconcile()
        assert [actor.alive for actor in stage.backend.actors] == [False, True]
        assert (stage.status()["ready"], stage.status()["starting"]) == (1, 0)

    asyncio.run(told())


def test_missing_bytes_are_an_error():
    async def told():
        stage = Stage(class_key="unknown")
        await stage.begin()
        assert "not stored any more" in stage.status()["errors"][0]

    asyncio.run(told())


@story()
async def test_an_agent_is_built_by_a_ready_host_and_has_its_address(stage):
    order = stage.order()
    ready = stage.ready.take(order)
    reported = await stage.agents.start(stage.start(order, ready))
    assert isinstance(reported, AgentReported)
    assert (reported.actor_namespace, reported.actor_name) == ("space", ready.name)
    (actor,) = stage.backend.actors
    assert [method for method, _ in actor.calls] == ["class_loaded", "build_agent"]
    starting = Starting(submission=Submission())
    agent = Agent(
        spec=order.agent, incarnation=7, phase=starting, place=Unplaced(), admitted_at=0.0
    )
    assert stage.agents.where(agent) == ("space", ready.name), "before the state has it"
    agent.enter(Running(started_at=0.0, actor_name="other", actor_namespace="elsewhere"))
    assert stage.agents.where(agent) == ("elsewhere", "other")
    await stage.agents.end("a", 7)
    assert not actor.alive


@story()
async def test_one_that_died_unseen_leaves_the_start_to_a_process_of_its_own(stage):
    order = stage.order()
    ready = stage.ready.take(order)
    ready.handle.alive = False
    reported = await stage.agents.start(stage.start(order, ready))
    assert isinstance(reported, AgentReported)
    assert reported.actor_name == "schedulemesh:mesh:a#7"
    assert stage.backend.actors[-1].request.resources == CPU


@story()
async def test_an_agent_that_is_ended_while_it_is_built_is_not_made_again(stage):
    order = stage.order()
    ready = stage.ready.take(order)
    ready.handle.stuck = asyncio.get_running_loop().create_future()
    start = asyncio.ensure_future(stage.agents.start(stage.start(order, ready)))
    await asyncio.sleep(0)
    end = asyncio.ensure_future(stage.agents.end("a", 7))
    await asyncio.sleep(0)
    ready.handle.stuck.set_result(None)
    assert isinstance(await start, AgentStartFailed)
    await end
    assert len(stage.backend.actors) == 1


@story()
async def test_a_constructor_that_raises_fails_the_start(stage):
    order = stage.order()
    ready = stage.ready.take(order)
    ready.handle.answers["build_agent"] = StartReport(node_id="n", pid=1, error="ValueError: no")
    failed = await stage.agents.start(stage.start(order, ready))
    assert (failed.reason, failed.error) == ("agent_start_failed", "agent 'a': ValueError: no")
    assert failed.detail == ""
    assert stage.backend.names() == set()
