"""The members of a gang as a whole supervisor has them: their deaths, their commands, their tasks."""

from __future__ import annotations

import asyncio
import functools

import pytest

from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import EndState, TaskPhase, TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.protocol.agents import (
    AgentInit,
    Command,
    CommandResult,
    RunReport,
    StartReport,
    key_of,
    pack,
    unpack,
)
from schedulemesh.runtime.backend import ActorView, BackendError, NodeView
from tests.runtime import life as lives
from tests.runtime.fake_backend import FakeBackend

ONE = parse_resources({"cpu": 1})
RAISED = RunReport(kept=b"", reason=TaskEndReason.RUN_RAISED, error="connection reset")
#: Virtual seconds in which Ray finds out that a node has died.
FOUND_OUT_S = 14.6


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


class Hosts:
    """The processes that answer commands: by actor, those that poll."""

    def __init__(self, life):
        self.life = life
        self.inits = {}
        self.silent = set()
        self.heard = []
        self.polling = []
        life.backend.start = self.begun

    def begun(self, actor):
        init = unpack(actor.request.init, AgentInit)
        self.inits[init.agent_name] = init
        if init.rank == 0:
            actor.stuck = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.1, actor.stuck.set_result, None)
        else:
            actor.answers["run_task"] = RAISED
        self.poll(init)

    def poll(self, init):
        self.polling.append(asyncio.ensure_future(self._serve(init)))

    async def _serve(self, init):
        service, received = self.life.service, []
        while True:
            own = (init.agent_name, init.incarnation, init.key)
            commands = unpack(await service.poll(*own, None, received), list[Command])
            received = [command.command_id for command in commands]
            for command in commands:
                if init.agent_name not in self.silent:
                    self.heard.append((init.agent_name, command.kind))
                    await service.command_done(command.command_id, pack(CommandResult()))

    def end(self):
        for task in self.polling:
            task.cancel()


def submit_gang(life, *, queue=False, **task):
    """A gang of two that runs by itself; its rank 1 fails."""
    agent = AgentSpec(
        name="g",
        pool_name="p",
        resources=ONE + ONE,
        class_key=key_of(lives.CLASS),
        bundles=(ONE, ONE),
        payload=GangPayload(strategy="SPREAD"),
    )
    stimulus = TaskSubmitted(
        agent=agent,
        task=TaskSpec(task_id="t", pool_name="p", priority=1.0, **task),
        request_id="gang",
        choose_node=True,
        queue=queue,
    )
    return life.ask(SubmitTask(submission=stimulus, blobs={key_of(lives.CLASS): lives.CLASS}))


def two_nodes(life):
    life.backend.free = [
        NodeView(node_id=name, total=lives.NODE, free=lives.NODE, labels={}) for name in ("n", "m")
    ]


@pytest.mark.parametrize(
    ("peer", "state"),
    [("dies", EndState.LOST), ("lives", EndState.FAILED), ("stands still", EndState.FAILED)],
)
def test_a_gang_is_lost_where_a_member_fails_because_the_node_of_another_has_died(
    lived, peer, state
):
    async def story(life):
        two_nodes(life)
        await asyncio.sleep(2.0)  # virtual time
        hosts = Hosts(life)
        if peer != "lives":
            hosts.silent.add("g-0")
        await submit_gang(life, run="train")
        await asyncio.sleep(FOUND_OUT_S)  # virtual time
        ended = life.running.reactor.state.ended
        assert ("t" in ended) == (peer == "lives")
        if peer == "dies":
            actor = life.backend.actors[0]
            life.backend.lost_with_node.add(actor.request.name)
            actor.alive = False
        await asyncio.sleep(60.0)  # virtual time
        assert ended["t"].state is state, ended["t"]
        hosts.end()

    lived(story)


def test_what_a_member_submits_is_submitted_from_inside_the_task_of_its_gang(lived):
    async def story(life):
        await asyncio.sleep(2.0)  # virtual time
        hosts = Hosts(life)
        await submit_gang(life)
        assert {name: init.task_id for name, init in hosts.inits.items()} == {
            "g-0": "t",
            "g-1": "t",
        }
        hosts.end()

    lived(story)


@pytest.mark.parametrize("held", ["agent_report", "find_actor"])
def test_members_whose_start_is_taken_over_hear_commands_at_once(lived, held):
    async def story(life):
        await asyncio.sleep(2.0)  # virtual time
        hosts = Hosts(life)
        life.hold("agent_report")
        submit_gang(life)
        await life.held.next("agent_report")
        hosts.end()
        life.hold(held)
        await life.crash()
        for init in hosts.inits.values():
            hosts.poll(init)
        await asyncio.sleep(1.0)  # virtual time
        life.held.through |= {"agent_report", held}
        for call in list(life.held.pending):
            call.let()
        await asyncio.sleep(1.0)  # virtual time
        commands = life.running.agents.commands
        incarnation = life.incarnation("g")
        pings = (commands.execute(name, incarnation, "ping", 1.0) for name in ("g-0", "g-1"))
        assert all(await asyncio.gather(*pings))
        assert set(hosts.heard) == {("g-0", "ping"), ("g-1", "ping")}
        hosts.end()

    lived(story)


class LostNode:
    """The node of rank 0 dies while its gang is started, at which the other rank fails at once."""

    def __init__(self, life, *, known_after_s, lingers=False):
        self.life, self.known_after_s = life, known_after_s
        #: Whether the cleaner there answers for a moment longer than its node lives.
        self.lingers = lingers
        self.node_id = ""
        life.backend.start = self.begun
        life.backend.node_cleaner = self.cleaner
        life.backend.kill_actor = self.kill

    def begun(self, actor):
        init = unpack(actor.request.init, AgentInit)
        if self.node_id:
            return  # it is started again, on the node that lives
        actor.stuck = asyncio.get_running_loop().create_future()
        if init.rank == 1:
            report = StartReport(node_id=actor.node_id, pid=2, error="RuntimeError: no rank 0")
            actor.answers["agent_report"] = report
            asyncio.get_running_loop().call_later(1.0, self.die, actor)

    def die(self, survivor):
        first = self.life.backend.actors[0]
        self.node_id = first.node_id
        # Its process was not there yet, so that nothing of it has to be ended on its node.
        self.life.backend.views[first] = ActorView(node_id=first.node_id, has_process=False)
        for cleaner in self.life.backend.cleaners:
            self.fail(cleaner)
        survivor.stuck.set_result(None)
        loop = asyncio.get_running_loop()
        loop.call_later(self.known_after_s, self.found_out)

    def kill(self, actor):
        actor.alive = False
        if not actor.stuck.done():
            actor.stuck.set_result(None)

    def found_out(self):
        backend = self.life.backend
        backend.free = [view for view in backend.free if view.node_id != self.node_id]

    def cleaner(self, node_id):
        cleaner = FakeBackend.node_cleaner(self.life.backend, node_id)
        self.fail(cleaner)
        return cleaner

    def fail(self, cleaner):
        if cleaner.node_id == self.node_id and self.lingers:
            cleaner.lives = False
        elif cleaner.node_id == self.node_id:
            cleaner.raises = BackendError("the actor is dead")


@pytest.mark.parametrize("lingers", [False, True])
@pytest.mark.parametrize("known_after_s", [0.5, 14.6])
def test_a_gang_whose_node_dies_while_it_starts_waits_again_and_has_not_failed(
    lived, known_after_s, lingers
):
    async def story(life):
        two_nodes(life)
        await asyncio.sleep(2.0)  # virtual time
        LostNode(life, known_after_s=known_after_s, lingers=lingers)
        submit_gang(life, queue=True)
        await asyncio.sleep(45.0)  # virtual time
        state = life.running.reactor.state
        assert "t" not in state.ended
        task = state.running.by_id["t"]
        assert (task.phase, task.attempts.failures) == (TaskPhase.RUNNING, 0)

    lived(story)


@pytest.mark.parametrize("answers", [True, False])
def test_a_gang_that_fails_in_its_start_by_itself_has_failed(lived, answers):
    async def story(life):
        two_nodes(life)
        await asyncio.sleep(2.0)  # virtual time
        node = LostNode(life, known_after_s=1e9)
        if answers:
            node.fail = lambda cleaner: None
        submit_gang(life, queue=True)
        await asyncio.sleep(4.0)  # virtual time
        ended = life.running.reactor.state.ended
        assert ("t" in ended) == answers
        await asyncio.sleep(45.0)  # virtual time
        assert (ended["t"].state, ended["t"].reason) == (EndState.FAILED, "not_started")
        assert "rank 0" in ended["t"].error

    lived(story)
