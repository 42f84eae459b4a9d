"""A supervisor on a cluster with one node, whose calls to the backend are held as a test says."""

from __future__ import annotations

import asyncio

import msgspec

from schedulemesh.api.pools import CreatePool
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.backend import NodeView
from tests.runtime import virtual_time
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import FakeBackend, HeldCalls
from tests.runtime.story import CALLS, all_calls

NODE = parse_resources({"cpu": 4, "gpu": 2})
CLASS = b"a class"
#: Virtual seconds in which what is in progress comes to an end.
SOON_S = 5.0


class Life:
    """A supervisor on a cluster with one node whose calls are held as the test says."""

    def __init__(self, journal_file):
        self.held = HeldCalls(*all_calls())
        self.backend = FakeBackend(self.held)
        self.backend.free = [NodeView(node_id="n", total=NODE, free=NODE, labels={})]
        self.journal_file = journal_file
        self.requests = set()
        self.begin()

    def begin(self):
        self.service = supervisor(
            self.backend, self.journal_file, clock=virtual_time.clock(), monitor_interval_s=1.0
        )

    @property
    def running(self):
        return self.service._requests.running

    def ask(self, request):
        asked = asyncio.ensure_future(self.service.ask(encode_request(request)))
        self.requests.add(asked)
        return asked

    def submit(self, name, pool="p", request="first", options="{}", **resources):
        agent = AgentSpec(
            name=name,
            pool_name=pool,
            resources=parse_resources(resources),
            class_key=key_of(CLASS),
            options=options,
        )
        stimulus = TaskSubmitted(
            agent=agent, task=None, request_id=f"{request}-{name}", choose_node=True
        )
        return self.ask(SubmitTask(submission=stimulus, blobs={key_of(CLASS): CLASS}))

    async def crash(self):
        running = self.running
        running.executor.stop_all()
        for task in self.requests:
            task.cancel()
        self.service._answer_nothing_more()
        await asyncio.gather(*self.requests, return_exceptions=True)
        self.requests.clear()
        await running.reactor.close(destroy=False)
        self.backend.restarted = True
        self.begin()
        await self.service.ready()

    async def end(self):
        self.held.through |= CALLS
        for call in list(self.held.pending):
            call.let()
        await asyncio.sleep(SOON_S)  # virtual time
        self.running.executor.stop_all()
        for task in self.requests:
            task.cancel()
        self.service._answer_nothing_more()
        await asyncio.gather(*self.requests, return_exceptions=True)
        await self.running.reactor.close(destroy=False)

    def hold(self, *calls):
        self.held.through -= set(calls)

    def incarnation(self, name):
        return self.running.reactor.state.agents[name].incarnation


def run(journal_file, story):
    """Tell a story of a supervisor with a pool ``p`` of all that the node has."""

    async def whole():
        life = Life(journal_file)
        groups = GroupsSpec(max_dynamic=9)
        pool = PoolSpec(name="p", resources=NODE)
        grouped = PoolSpec(name="g", resources=NODE, groups=groups)
        for spec in (pool, grouped):
            await life.ask(CreatePool(spec=spec))
        await story(life)
        await life.end()

    virtual_time.run(whole())


def rescheduling(group):
    """A placement group that Ray took from its nodes."""
    return msgspec.structs.replace(group, state="RESCHEDULING")
