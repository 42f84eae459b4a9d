"""A whole supervisor on a backend that delays, reorders and fails calls, and crashes in between.

Hypothesis chooses what clients, the cluster and the backend do. Time is virtual, so a story that failed is
the same when it is told again. HYPOTHESIS_EXAMPLES sets how many stories are told.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schedulemesh.domain.agent import AgentSpec, GangSpec
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.lease import LeaseSpec
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import NOTHING, parse_resources, sum_of
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Accepted, Queued, Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.agents import Running
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.engine.state.invariants import check
from schedulemesh.protocol import queue_requests as q
from schedulemesh.protocol import requests as r
from schedulemesh.protocol.agents import KeptResult, RunReport, key_of, pack, unpack
from schedulemesh.protocol.answers import Response, decode_answer
from schedulemesh.protocol.lease_requests import ReleaseLease
from schedulemesh.protocol.task_requests import CancelTask
from schedulemesh.runtime.backend import BackendError, GroupMember, NodeView
from schedulemesh.runtime.gangs import every_process
from tests.engine.builders import differences
from tests.runtime import virtual_time
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import FakeBackend, HeldCalls, Verdict

CLASS = b"a class"
RAISED = RunReport(kept=b"", reason=TaskEndReason.RUN_RAISED, error="it raised")
NODE = parse_resources({"cpu": 4})
NODES = ("n1", "n2")
POOLS = {"p": 4, "q": 3, "g": 4}
NAMES = tuple(f"a{number}" for number in range(6))
#: The calls that are held together.
HOLDS = (
    ("agent_report",),
    ("create_group", "group", "groups"),
    ("terminate", "nodes", "demand"),
    ("actor_ended", "kill"),
    ("actor", "find_actor", "living_actors"),
    ("members", "remove_group", "end_members", "group_in_use"),
    ("probe_class", "preserve_state"),
    ("run_task",),
)
CALLS = {call for calls in HOLDS for call in calls}
#: Virtual seconds in which all that was begun ends, once nothing is held.
SETTLES_S = 120.0

#: What may happen: how often, and with which arguments.
EVENTS = {
    "submit": (
        14,
        {
            "name": NAMES,
            "pool": sorted(POOLS),
            "cpu": (1, 2, 4),
            "priority": (1.0, 5.0, 9.0),
            "pinned": (True, True, False),
            "replicas": (None, None, 1, 2, 3),
            "most": (0, 0, 4),
            "parts": (0, 0, 0, 1, 2),
            "queue": (False, True, True),
            "run": ("", "", "train"),
            "retries": (0, 2),
            "on_preempted": ("drop", "requeue"),
        },
    ),
    "change_queued": (
        3,
        {
            "name": NAMES,
            "change": ({"held": True}, {"held": False}, {"priority": 7.0}, {"to_front": True}),
        },
    ),
    "cancel": (2, {"name": NAMES}),
    "cancel_many": (1, {"count": (1, 3)}),
    "runs_raise": (2, {"raising": (True, False, False)}),
    "release_lease": (2, {"name": NAMES}),
    "holder_uses": (2, {"which": range(9)}),
    "complete": (3, {"name": NAMES, "end_agent": (True, True, False)}),
    "delete": (3, {"name": NAMES}),
    "preempt": (3, {"name": NAMES, "whole": (True, False)}),
    "resize": (1, {"pool": sorted(POOLS), "cpu": (1, 2, 4, 6)}),
    "actor_dies": (2, {"which": range(9)}),
    "node_is_lost": (1, {"node": NODES}),
    "node_returns": (3, {"node": NODES}),
    "group_fails": (1, {"which": range(9)}),
    "hold": (4, {"calls": HOLDS}),
    "release": (3, {"calls": HOLDS}),
    "let": (12, {"which": range(9), "verdict": tuple(Verdict)}),
    "let_all": (2, {"verdict": tuple(Verdict)}),
    "refuse_starts": (1, {"calls": ((), (), ("start_agent",), ("kill_actor",))}),
    "wait": (10, {"seconds": (0.0, 0.1, 0.6, 3.0, 40.0)}),
    "crash": (1, {}),
}


def happenings(seed, count):
    """So many events, drawn from a seed: the beginning of a longer story is the shorter one."""
    draw = random.Random(seed)
    weights = [weight for weight, _ in EVENTS.values()]
    for _ in range(count):
        (name,) = draw.choices([*EVENTS], weights)
        yield name, {key: draw.choice(values) for key, values in EVENTS[name][1].items()}


def view(name):
    return NodeView(node_id=name, total=NODE, free=NODE, labels={})


class Story:
    """A supervisor, its clients, and the cluster."""

    def __init__(self, journal_file):
        self.journal_file = journal_file
        self.held = HeldCalls(*_all_calls())
        self.backend = FakeBackend(self.held)
        self.backend.free = [view(name) for name in NODES]
        self.backend.start = self.started
        self.service = None
        #: The requests without an answer.
        self.open: dict[asyncio.Task, bytes] = {}
        self.number = 0
        #: Whether the runs of processes that are started from now on raise.
        self.raising = False
        #: The tasks whose submission was accepted, or acknowledged as queued.
        self.acknowledged: set[str] = set()
        #: What must never happen and did.
        self.broken: list[str] = []

    async def begin(self):
        self.open_service()
        groups = GroupsSpec(max_dynamic=9)
        for name, cpu in POOLS.items():
            spec = PoolSpec(
                name=name,
                resources=parse_resources({"cpu": cpu}),
                groups=groups if name == "g" else None,
            )
            self.ask(r.CreatePool(spec=spec))
        await self.wait(0.1)

    def open_service(self):
        self.service = supervisor(
            self.backend, self.journal_file, clock=virtual_time.clock(), monitor_interval_s=1.0
        )
        self.ask(r.ListPools())

    # what clients do

    def ask(self, request):
        self._send(r.encode_request(request))

    def _send(self, data):
        task = asyncio.ensure_future(self._answered(self.service, data))
        self.open[task] = data

    async def _answered(self, service, data):
        """Ask until the supervisor can recover, as clients do."""
        while True:
            try:
                answer = await service.ask(data)
            except BackendError:
                await asyncio.sleep(0.5)  # virtual time
                continue
            encoded = answer[0] if isinstance(answer, tuple) else answer
            assert b"internal_error" not in encoded, encoded
            self.note(r.decode_request(data), encoded)
            self.open.pop(asyncio.current_task(), None)
            return

    def note(self, request, encoded):
        """What an answer promises."""
        if isinstance(request, r.SubmitTask):
            outcome = decode_answer(encoded, Response)
            if not isinstance(outcome, Refused) and isinstance(outcome.outcome, Accepted | Queued):
                self.acknowledged.add(request.submission.task.task_id)

    def next(self):
        self.number += 1
        return f"r{self.number}"

    async def submit(self, name, pool, cpu, priority, pinned, replicas, most, queue, run, **how):
        """A single agent, a gang, elastic or not, or a lease; it may wait, and run by itself."""
        if how["parts"]:
            self.submit_lease(name, pool, priority, how["parts"], queue=queue)
            return
        bundles = (parse_resources({"cpu": cpu}),) * (replicas or 1)
        agent = AgentSpec(
            name=name,
            pool_name=pool,
            resources=sum_of(bundles),
            class_key=key_of(CLASS),
            bundles=bundles if replicas else (),
            gang=GangSpec(strategy="SPREAD", replicas=most) if replicas else None,
        )
        task = TaskSpec(
            task_id=f"t-{name}",
            pool_name=pool,
            priority=priority,
            run=run,
            max_retries=how["retries"],
            on_preempted=how["on_preempted"],
        )
        submission = TaskSubmitted(
            agent=agent,
            task=task,
            request_id=self.next(),
            choose_node=bool(pinned or pool == "g" or replicas),
            queue=queue,
        )
        self.ask(r.SubmitTask(submission=submission, blobs={key_of(CLASS): CLASS}))

    def submit_lease(self, name, pool, priority, parts, *, queue):
        """A lease of one or two groups, with a short time from its notice to its end."""
        bundles = (parse_resources({"cpu": 1}),) * 2
        agent = AgentSpec(
            name=name,
            pool_name=pool,
            resources=sum_of(bundles),
            bundles=bundles,
            lease=LeaseSpec(parts=parts, strategy="SPREAD", grace_s=2.0),
        )
        task = TaskSpec(task_id=f"t-{name}", pool_name=pool, priority=priority)
        submission = TaskSubmitted(
            agent=agent, task=task, request_id=self.next(), choose_node=True, queue=queue
        )
        self.ask(r.SubmitTask(submission=submission))

    async def release_lease(self, name):
        self.ask(ReleaseLease(task_id=f"t-{name}", request_id=self.next()))

    async def holder_uses(self, which):
        """The holder of a lease, or somebody else, runs something in a group."""
        groups = sorted(self.backend.by_id)
        if groups:
            ray_id = groups[which % len(groups)]
            member = GroupMember(name="", namespace="", node_id="", pid=7, actor_id=self.next())
            self.backend.foreign.setdefault(ray_id, []).append(member)

    async def complete(self, name, end_agent):
        request = r.CompleteTask(task_id=f"t-{name}", end_agent=end_agent, request_id=self.next())
        self.ask(request)

    async def delete(self, name):
        self.ask(r.DeleteAgent(agent_name=name))

    async def preempt(self, name, whole):
        if whole:
            self.ask(r.PreemptTask(agent_name=name, request_id=self.next()))
        else:
            task_id = f"t-{name}"
            self.ask(r.ExecutePreemption(task_id=task_id, agent_name=name, request_id=self.next()))

    async def change_queued(self, name, change):
        request = q.ChangeQueuedTask(task_id=f"t-{name}", request_id=self.next(), **change)
        self.ask(request)

    async def cancel(self, name):
        self.ask(CancelTask(task_id=f"t-{name}", request_id=self.next()))

    async def cancel_many(self, count):
        self.ask(q.CancelTasks(task_ids=tuple(f"t-{name}" for name in NAMES[:count])))

    async def resize(self, pool, cpu):
        self.ask(r.ResizePool(name=pool, resources=parse_resources({"cpu": cpu})))

    # what the cluster does

    def started(self, actor):
        """An actor is created: nothing else of its agent is alive, and its node has room."""
        actor.answers["run_task"] = RAISED if self.raising else returned(actor.request.name)
        living = [other for other in self.backend.actors if other.alive]
        names = Counter(agent_of(other) for other in living)
        if names[agent_of(actor)] > 1:
            self.broken.append(f"{agent_of(actor)} has two processes")
        if all(node.node_id != actor.node_id for node in self.backend.free):
            return
        used = NOTHING
        for other in living:
            if other.node_id == actor.node_id:
                used = used + other.request.resources
        if used.beyond(NODE):
            self.broken.append(f"{actor.node_id} is full: {used}")

    async def runs_raise(self, raising):
        self.raising = raising

    async def actor_dies(self, which):
        living = [actor for actor in self.backend.actors if actor.alive]
        if living:
            living[which % len(living)].alive = False

    async def node_is_lost(self, node):
        self.backend.free = [one for one in self.backend.free if one.node_id != node]
        for actor in self.backend.actors:
            if actor.node_id == node:
                actor.alive = False
        for ray_id, group in list(self.backend.by_id.items()):
            if node in group.node_ids:
                self._reschedule(ray_id)

    def _reschedule(self, ray_id):
        group = self.backend.by_id[ray_id]
        self.backend.by_id[ray_id] = msgspec.structs.replace(group, state="RESCHEDULING")

    async def node_returns(self, node):
        if all(one.node_id != node for one in self.backend.free):
            self.backend.free.append(view(node))

    async def group_fails(self, which):
        groups = sorted(self.backend.by_id)
        if groups:
            ray_id = groups[which % len(groups)]
            for actor in self.backend.actors:
                if actor.request.slot is not None and actor.request.slot.ray_id == ray_id:
                    actor.alive = False
            self._reschedule(ray_id)

    # what the backend does

    async def hold(self, calls):
        self.held.through -= set(calls)

    async def release(self, calls):
        self.held.through |= set(calls)

    async def let(self, which, verdict):
        if self.held.pending:
            self.held.pending[which % len(self.held.pending)].let(verdict)
            await asyncio.sleep(0)

    async def let_all(self, verdict):
        for call in reversed(self.held.pending):
            call.let(verdict)

    async def refuse_starts(self, calls):
        self.held.refused = set(calls)

    async def wait(self, seconds):
        await asyncio.sleep(seconds)  # virtual time

    async def crash(self):
        """The supervisor's process dies; clients repeat what was not answered to the next one. One that has
        not recovered yet has nothing to lose.
        """
        recovery = self.service._recovery
        if self.service._requests is None or (recovery is not None and not recovery.done()):
            return
        requests, self.open = self.open, {}
        running = self.service._requests.running
        running.executor.stop_all()
        for task in requests:
            task.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await running.reactor.close(destroy=False)
        self.backend.restarted = True
        self.open_service()
        for data in requests.values():
            self._send(data)

    # what must be true

    def sound(self):
        """After every event."""
        assert not self.broken
        if self.service._requests is not None:
            check(self.service._requests.running.reactor.state)
        for task in self.open:
            assert not task.done(), task

    async def settled(self):
        """Once nothing is held, all that was begun has ended, and the state is what exists."""
        self.held.refused = set()
        self.held.through |= CALLS
        await self.let_all(Verdict.DONE)
        await asyncio.sleep(SETTLES_S)  # virtual time
        assert not self.broken
        assert not self.held.pending
        assert not self.open, f"not answered: {list(self.open.values())}"
        running = self.service._requests.running
        state = running.reactor.state
        check(state)
        phases = {name: type(agent.phase) for name, agent in state.agents.items()}
        assert phases == dict.fromkeys(phases, Running)
        processes = every_process(state, state.agents.values())
        assert self.backend.living() == {running.agents.where(one) for one in processes}
        assert {view.name for view in self.backend.by_id.values()} == {
            running.groups.name(group_id) for group_id in state.groups.by_id
        }
        assert all(g.phase is GroupPhase.READY for g in state.groups.by_id.values())
        await self.tasks_are_kept(running.reactor)
        await running.reactor.flushed()
        refolded = running.reactor._journal.load().fold()
        refolded.queue.advance(running.reactor.now())
        assert differences(refolded, state) == []
        running.executor.stop_all()
        await running.reactor.close(destroy=False)

    async def tasks_are_kept(self, reactor):
        """No acknowledged task is unknown, no run was forgotten, each result is that of a run of its task."""
        state = reactor.state
        known = state.running.by_id.keys() | state.queue.by_id.keys() | state.ended.keys()
        assert self.acknowledged <= known
        assert not [task for task in state.running.by_id.values() if task.spec.run]
        for task_id, ended in state.ended.items():
            if ended.result_key is not None:
                kept = unpack(await reactor.blob(ended.result_key), KeptResult)
                runs = [kept.value] if kept.value is not None else list(kept.members)
                names = [agent_named(run.decode()) for run in runs]
                agent = task_id.removeprefix("t-")
                ranks = [f"{agent}-{rank}" for rank in range(len(names))]
                assert names in ([agent], ranks), ended


def returned(actor_name):
    """The report of a run that returned; it names the process."""
    return RunReport(kept=pack(KeptResult(value=actor_name.encode())))


def agent_of(actor):
    """The agent of an actor, by the actor's name."""
    return agent_named(actor.request.name)


def agent_named(actor_name):
    return actor_name.rpartition(":")[2].partition("#")[0]


def _all_calls():
    return CALLS | {
        "recall",
        "keep",
        "request_capacity",
        "job_runs",
        "waits_for_room",
        "left_behind",
        "class_loaded",
        "build_agent",
        "restore_state",
        "accelerators",
    }


async def told(journal_file, seed, count):
    story = Story(journal_file)
    await story.begin()
    for name, arguments in happenings(seed, count):
        await getattr(story, name)(**arguments)
        await asyncio.sleep(0.01)  # virtual time
        story.sound()
    await story.settled()


@settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "60")),
    deadline=None,
    derandomize="HYPOTHESIS_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 80))
def test_whatever_the_backend_does_the_state_becomes_what_exists(seed, count):
    with tempfile.TemporaryDirectory() as folder:
        virtual_time.run(told(Path(folder) / "mesh.sqlite", seed, count))
