"""A gang as its processes: what the runtime does to each of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from schedulemesh.domain.agent import AgentSpec, MemberProcess
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import AgentPayload, GangPayload, MemberSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.instructions import StartAgent
from schedulemesh.engine.messages.stimuli import AgentReported, AgentStartFailed
from schedulemesh.protocol.agents import AgentInit, RunReport, pack, unpack
from schedulemesh.runtime.agents.gangs import (
    member_orders,
    member_specs,
    processes_of,
    start_together,
    states_of,
)
from schedulemesh.runtime.agents.start import AgentStart, start_failed
from schedulemesh.runtime.agents.task_runs import TaskRunner
from tests.engine.builders import Mesh, node, pool

ONE, TWO = (parse_resources({"cpu": amount}) for amount in (1, 2))
GANG = AgentSpec(
    name="g",
    pool_name="p",
    resources=ONE + TWO,
    class_key="c",
    arguments_key="args",
    bundles=(ONE, TWO),
    payload=GangPayload(),
    options='{"name": "mine"}',
)


def test_each_member_is_an_agent_of_its_own():
    first, second = member_specs(GANG)
    assert (first.name, second.name) == ("g-0", "g-1")
    assert (first.resources, second.resources) == (ONE, TWO)
    assert (second.class_key, second.arguments_key) == ("c", "args")
    assert isinstance(second.payload, AgentPayload)
    assert second.bundles == ()


def test_members_that_differ_have_their_own_class_and_arguments():
    own = (MemberSpec(class_key="a"), MemberSpec(class_key="b", arguments_key="x"))
    found = member_specs(AgentSpec(**{**fields(GANG), "payload": GangPayload(members=own)}))
    assert [(m.class_key, m.arguments_key) for m in found] == [("a", None), ("b", "x")]


def fields(spec):
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


def test_a_single_process_stays_as_it_is():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("n1", cpu=2)])
    mesh.run("a", cpu=1)
    agent = mesh.state.agents["a"]
    assert processes_of(mesh.state, agent) == (agent,)


@pytest.mark.parametrize("ending", [False, True])
def test_processes_are_where_their_bundles_are(ending):
    mesh = Mesh(pool("p", cpu=4), nodes=[node("n1", cpu=2), node("n2", cpu=2)])
    gang = GangPayload(strategy="STRICT_SPREAD")
    mesh.submit("g", bundles=[{"cpu": 1}] * 2, payload=gang)
    mesh.make_all()
    starting = processes_of(mesh.state, mesh.state.agents["g"])
    assert [one.process for one in starting] == [None, None]
    mesh.report("g")
    if ending:
        mesh.delete("g")
    agent = mesh.state.agents["g"]
    group = mesh.state.groups.by_id[agent.group_id]
    found = processes_of(mesh.state, agent)
    assert tuple(one.node_id for one in found) == group.node_ids
    assert [one.spec.name for one in found] == ["g-0", "g-1"]
    assert all(one.process is not None for one in found)


def saved(**parts):
    return pack(
        SavedState(
            task=TaskSpec(task_id="t"), agent_name="g", source="save_state", saved_at=1.0, **parts
        )
    )


def test_each_member_gets_its_own_part_of_the_saved_state():
    whole = saved(members=(b"zero", None, b"two"))
    own = states_of(whole, 4)
    assert unpack(own[0], SavedState).state == b"zero"
    assert unpack(own[2], SavedState).state == b"two"
    assert unpack(own[2], SavedState).members == ()
    assert own[1] is None
    assert own[3] is None


def test_what_a_preserver_saved_is_for_all_members():
    whole = saved(state=b"all")
    assert states_of(whole, 2) == [whole, whole]
    assert states_of(None, 2) == [None, None]


class FakeAgents:
    """Starts processes as it is told, and notes which were ended."""

    def __init__(self, failing=(), *, lost=False):
        self.failing = set(failing)
        #: Whether the node of the others has died.
        self.lost = lost
        self.ended = []
        self.running = {}

    async def start(self, start):
        name, incarnation = start.key
        if name in self.failing:
            return start_failed(start.order, "broken", Reason.AGENT_START_TIMEOUT)
        self.running[name] = asyncio.Event()
        if self.failing:
            await self.running[name].wait()
            return start_failed(start.order, "its process died", room_lost=self.lost)
        return AgentReported(
            agent_name=name, incarnation=incarnation, pid=len(self.running), actor_name=f"@{name}"
        )

    async def end(self, name, incarnation):
        self.ended.append(name)
        if name in self.running:
            self.running[name].set()


def started(agents):
    order = StartAgent(
        agent=GANG, incarnation=7, node_id="n", state_key=None, group_id="pg", world_size=2
    )
    orders = member_orders(order)
    assert [one.incarnation for one in orders] == [7, 7]
    starts = [
        AgentStart(order=o, shipped=b"", init=init(o), packed=b"", refs=([], []), timeout_s=1)
        for o in orders
    ]
    return asyncio.run(start_together(agents, order, starts))


def init(order):
    return AgentInit(
        scheduler="s",
        namespace="n",
        agent_name=order.agent.name,
        incarnation=order.incarnation,
        labels={},
        shipped=b"",
        arguments=None,
        saved=None,
    )


def test_a_gang_has_started_when_all_members_have():
    result = started(FakeAgents())
    assert isinstance(result, AgentReported)
    assert result.agent_name == "g"
    assert result.members == (
        MemberProcess(pid=1, actor_name="@g-0"),
        MemberProcess(pid=2, actor_name="@g-1"),
    )


def test_a_member_that_fails_ends_all_and_gives_the_reason():
    agents = FakeAgents(failing=["g-1"])
    result = started(agents)
    assert isinstance(result, AgentStartFailed)
    assert result.agent_name == "g"
    assert result.reason == Reason.AGENT_START_TIMEOUT
    assert "'g-1': broken" in result.error
    assert set(agents.ended) == {"g-0", "g-1"}


def test_a_member_that_fails_because_the_node_of_another_has_died_means_that_room_is_lost():
    result = started(FakeAgents(failing=["g-1"], lost=True))
    assert isinstance(result, AgentStartFailed)
    assert (result.agent_name, result.room_lost) == ("g", True)
    assert "'g-0': its process died" in result.error


class Ranks:
    """The runs of a gang's members: rank 1 fails; whether all processes live."""

    def __init__(self, live):
        self.live = live

    async def run(self, name, incarnation, order):
        if name == "g-1":
            return RunReport(kept=b"", reason=TaskEndReason.RUN_RAISED, error="connection reset")
        return await asyncio.Event().wait()

    async def all_live(self, processes, within_s):
        assert within_s > 15.0, "Ray needs as long to learn that a node has died"
        assert [process.spec.name for process in processes] == ["g-0", "g-1"]
        return self.live


@pytest.mark.parametrize("live", [True, False])
def test_a_member_that_fails_because_another_is_dead_ends_no_run(live):
    mesh = Mesh(pool("p", cpu=4), nodes=[node("n1", cpu=4)])
    mesh.submit("g", bundles=[{"cpu": 1}] * 2, payload=GangPayload(), run="train", class_key="c")
    mesh.make_all()
    mesh.report("g")
    (order,) = mesh.runs["g"]
    reported = []

    async def report(stimulus, blobs):
        reported.append(stimulus)

    reactor = SimpleNamespace(state=mesh.state, result_bytes=1000, report=report)
    code = SimpleNamespace(argument_bytes=lambda key: asyncio.sleep(0))
    asyncio.run(TaskRunner(Ranks(live), reactor, code).run(order))
    assert [one.error for one in reported] == ["rank 1: connection reset"] * live
