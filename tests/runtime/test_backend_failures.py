"""Every instruction ends in its stimulus, whatever the backend does meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.api.agents import DeleteAgent
from schedulemesh.api.pools import CreatePool
from schedulemesh.api.preemption import ExecutePreemption
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.config.settings import JournalSettings
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Accepted
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.agents import Running
from schedulemesh.engine.state.invariants import check
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import PoolResponse, Response, decode_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.agents.references import NO_REFS
from schedulemesh.runtime.backend import NodeView
from tests.runtime import virtual_time
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import Control, FakeBackend, Verdict

CPUS = parse_resources({"cpu": 4})
CLASS = b"a class"
GROUPS = GroupsSpec(max_dynamic=9)


class Failures(Control):
    """The next calls of a name fail with these verdicts; all others are let through."""

    def __init__(self):
        self.next = {}

    def fail(self, **verdicts):
        self.next = {call: list(given) for call, given in verdicts.items()}

    def _verdict(self, call):
        return self.next[call].pop(0) if self.next.get(call) else Verdict.DONE

    async def turn(self, call, subject):
        return self._verdict(call)

    def refuses(self, call, subject):
        return self._verdict(call) is not Verdict.DONE

    @property
    def spent(self):
        return not any(self.next.values())


class Mesh:
    """A supervisor with one pool, on a cluster with one node."""

    def __init__(self, journal_file):
        self.failures = Failures()
        self.backend = FakeBackend(self.failures)
        self.backend.free = [NodeView(node_id="n", total=CPUS, free=CPUS, labels={})]
        self.journal_file = journal_file
        self.service = None

    async def begin(self, journal=None, **pool):
        self.service = supervisor(
            self.backend,
            self.journal_file,
            clock=virtual_time.clock(),
            journal=journal or JournalSettings(),
        )
        if pool:
            await self.ask(CreatePool(spec=PoolSpec(resources=CPUS, **pool)), PoolResponse)
        return self

    async def ask(self, request, kind=Response):
        answer = await self.service.ask(encode_request(request))
        return decode_answer(answer[0] if isinstance(answer, tuple) else answer, kind)

    def submitting(self, name, cpu=4, **more):
        agent = AgentSpec(
            name=name,
            pool_name="p",
            resources=parse_resources({"cpu": cpu}),
            class_key=key_of(CLASS),
        )
        submission = TaskSubmitted(agent=agent, request_id=f"submit {name}", **more)
        return SubmitTask(submission=submission, blobs={key_of(CLASS): CLASS})

    async def submit(self, name, **more):
        return (await self.ask(self.submitting(name, **more))).outcome

    async def started(self, name, **more):
        """A submission whose actor exists, and what its first report waits for."""
        loading, exists = asyncio.get_running_loop().create_future(), asyncio.Event()

        def start(actor):
            actor.stuck = loading
            exists.set()

        self.backend.start = start
        submitted = asyncio.ensure_future(self.submit(name, **more))
        await exists.wait()
        return submitted, loading

    async def crash(self):
        running = (await self.service.ready()).running
        running.executor.stop_all()
        await running.reactor.close(destroy=False)
        self.backend.restarted = True

    @property
    def reactor(self):
        return self.service._requests.running.reactor

    async def whole(self):
        """Everything that was to fail has failed, and nothing is left of the agents that were ended."""
        assert self.failures.spent, f"not called: {self.failures.next}"
        check(self.reactor.state)
        phases = {name: type(agent.phase) for name, agent in self.reactor.state.agents.items()}
        living = {name.rpartition(":")[2].partition("#")[0] for name in self.backend.names()}
        assert phases == dict.fromkeys(living, Running)
        await self.crash()


REFUSED, LOST = Verdict.REFUSED, Verdict.ANSWER_LOST


@pytest.fixture
def told(tmp_path):
    def run(story):
        mesh = Mesh(tmp_path / "mesh.sqlite")
        virtual_time.run(story(mesh))

    return run


@pytest.mark.parametrize("verdict", [REFUSED, LOST])
@pytest.mark.parametrize(
    "calls",
    [("terminate", "nodes"), ("actor_ended",), ("kill_actor",), ("kill_actor", "actor_ended")],
)
def test_the_end_of_an_agent_is_reported_once_it_is_known(told, calls, verdict):
    async def story(mesh):
        await mesh.begin(name="p")
        assert isinstance(await mesh.submit("a"), Accepted)
        mesh.failures.fail(**dict.fromkeys(calls, (verdict, verdict)))
        await mesh.ask(DeleteAgent(agent_name="a"))
        assert isinstance(await mesh.submit("b"), Accepted)
        await mesh.whole()

    told(story)


def test_an_agent_whose_place_cannot_be_asked_for_is_ended_all_the_same(told):
    async def story(mesh):
        await mesh.begin(name="p")
        submitted, _ = await mesh.started("a", choose_node=False)
        mesh.failures.fail(actor=(REFUSED, LOST, REFUSED))
        await mesh.ask(DeleteAgent(agent_name="a"))
        assert (await submitted).reason
        mesh.backend.start = lambda actor: None
        assert isinstance(await mesh.submit("b"), Accepted)
        await mesh.whole()

    told(story)


def test_a_start_in_a_group_whose_members_are_not_known_fails(told):
    async def story(mesh):
        await mesh.begin(name="p", groups=GROUPS)
        mesh.failures.fail(members=(REFUSED,))
        failed = await mesh.submit("a")
        assert "members was refused" in failed.error
        assert isinstance(await mesh.submit("b"), Accepted)
        await mesh.whole()

    told(story)


def test_a_group_whose_creation_lost_its_answer_is_found_once_the_backend_answers(told):
    async def story(mesh):
        await mesh.begin(name="p", groups=GROUPS)
        mesh.failures.fail(create_group=(LOST,), groups=(REFUSED, LOST))
        assert isinstance(await mesh.submit("a"), Accepted)
        assert len(mesh.backend.by_id) == 1
        await mesh.whole()

    told(story)


def test_a_start_that_a_former_supervisor_began_is_taken_over_once_the_actor_is_found(told):
    async def story(mesh):
        await mesh.begin(name="p")
        submitted, loading = await mesh.started("a")
        await mesh.crash()
        submitted.cancel()
        mesh.failures.fail(find_actor=(REFUSED, LOST))
        await mesh.begin()
        again = asyncio.ensure_future(mesh.submit("a"))
        await asyncio.sleep(5.0)  # virtual time
        loading.set_result(None)
        assert isinstance(await again, Accepted)
        assert len(mesh.backend.actors) == 1
        await mesh.whole()

    told(story)


def test_a_task_whose_state_cannot_be_kept_is_cancelled_all_the_same(told):
    async def story(mesh):
        await mesh.begin(JournalSettings(saved_state_bytes=1), name="p")
        task = TaskSpec(task_id="t", pool_name="p", priority=1.0)
        assert isinstance(await mesh.submit("a", task=task), Accepted)
        preemption = ExecutePreemption(task_id="t", agent_name="a", request_id="preempt")
        await mesh.ask(preemption)
        assert len(mesh.reactor.state.running) == 0
        await mesh.ask(DeleteAgent(agent_name="a"))
        await mesh.whole()

    told(story)


def test_an_agent_that_is_ended_before_its_process_is_started_gets_none(told):
    async def story(mesh):
        await mesh.begin(name="p")
        submitted = asyncio.ensure_future(mesh.submit("a"))
        requests = await mesh.service.ready()
        while not mesh.reactor.state.agents:  # noqa: ASYNC110  # no event tells it so early
            await asyncio.sleep(0)  # a round of the event loop
        # Without what a call from outside has around it, during which the process would be started.
        await requests.answer(DeleteAgent(agent_name="a"), NO_REFS)
        assert (await submitted).reason
        assert mesh.backend.actors == []
        assert isinstance(await mesh.submit("b"), Accepted)
        await mesh.whole()

    told(story)
