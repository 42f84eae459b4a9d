"""Stories of a whole supervisor on a backend that delays, reorders and fails calls, and crashes in between.

A seed decides what clients, agents, the cluster and the backend do. Callers are cancelled; processes save
slowly, too much, at safe points or not at all, or preservers save for them; they wait for room, or cannot be
killed. Jobs have drivers, and these have work in Ray that outlives them. Nodes and pools are drained. One
pool has a warm host. A supervisor may live on when its successor has begun. Time is virtual, so that a story
is the same whenever it is told.

Tasks start after others, are arrays, have owners with limits, alternatives on nodes with labels, limits in
time, and members in one rack (story_tasks.py). Each durable step is checked (story_record.py).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import msgspec

from schedulemesh.api.agents import DeleteAgent
from schedulemesh.api.nodes import CordonNode, Drain
from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import CreatePool, DeletePool, ListPools, RenamePool, ResizePool
from schedulemesh.api.states import RegisterStateHandlers, SaveTaskState
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.config.settings import JournalSettings
from schedulemesh.core.agent.safe_points import SafePoints
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.placement import GroupShape, GroupsSpec, WarmSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import NOTHING, parse_resources
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.engine.messages import facts
from schedulemesh.engine.messages.outcomes import Accepted, Queued, Refused
from schedulemesh.engine.messages.queue_facts import TaskQueued
from schedulemesh.engine.state.agents import Running, Starting
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.engine.state.invariants import check
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.metrics.catalogue import LOOP_OVERDUE
from schedulemesh.protocol.agents import (
    AgentInit,
    Command,
    CommandResult,
    Handled,
    KeptResult,
    RunReport,
    StartReport,
    key_of,
    pack,
    unpack,
)
from schedulemesh.protocol.answers import Response, SavedBytes, decode_answer
from schedulemesh.protocol.requests import decode_request, encode_request
from schedulemesh.runtime.agents.gangs import every_process
from schedulemesh.runtime.backend import (
    ActorView,
    BackendError,
    GroupMember,
    NodeView,
    WarmHostRequest,
)
from schedulemesh.runtime.queries import saved_key
from schedulemesh.store.sql import SqlJournal
from tests.engine.builders import differences
from tests.runtime import virtual_time
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import OWN_NODE, FakeActor, FakeBackend, HeldCalls, Verdict
from tests.runtime.story_disk import FAILURES, StoryDisk, StoryJournal, check_stored
from tests.runtime.story_jobs import LOOK_S, Drivers, JobEvents
from tests.runtime.story_record import NODE_LABELS, Record
from tests.runtime.story_tasks import CLASS, OWNER_LIMITS, TASK_EVENTS, TaskEvents

PRESERVER = b"a preserver"
RAISED = RunReport(kept=b"", reason=TaskEndReason.RUN_RAISED, error="it raised")
NODE = parse_resources({"cpu": 4, "gpu": 2})
NODES = tuple(NODE_LABELS)
#: The node of the supervisor, which has nothing for others and is never lost without it.
SUPERVISOR_NODE = NodeView(node_id=OWN_NODE, total=NOTHING, free=NOTHING, labels={})
POOLS = {"p": 4, "q": 3, "g": 4, "w": 2}
#: Pools that lend each other what is idle.
COHORT = ("p", "q")
#: Which of the limits the owners of some pools have, and the pools that are fair.
OF_OWNERS, FAIR = {"p": 1, "g": 2}, ("q", "g")
#: The groups of some pools.
GROUPS = {
    "g": GroupsSpec(max_dynamic=9),
    "w": GroupsSpec(
        reserved=(GroupShape(bundles=(parse_resources({"cpu": 1}),)),),
        max_dynamic=9,
        entitled_above=0.5,
        warm=WarmSpec(class_key=key_of(CLASS)),
    ),
}
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
    ("end_jobs", "terminate_workers"),
)
CALLS = {call for calls in HOLDS for call in calls}
#: The calls that fail together for a while.
LOOKS = (
    ("nodes",),
    ("living_actors",),
    ("groups",),
    ("usage", "demand"),
    ("keep",),
    ("left_behind",),
)
#: Virtual seconds in which all that was begun ends, once nothing is held; and those for which nothing goes on
#: before a story is at its end.
SETTLES_S, QUIET_S = 120.0, 3.0
#: The phases of groups for which nothing goes on: those that are ready, and reserved ones without a node.
SETTLED = (GroupPhase.READY, GroupPhase.PLANNED)
#: What facts show.
FACTS = {
    facts.AgentStarted: "an agent started",
    facts.NodeLost: "a node was lost",
    facts.EvictionStarted: "an eviction began",
    facts.SavingFailed: "an eviction could not save",
    facts.TaskPreempted: "a task was evicted",
    facts.AgentEnded: "an agent ended",
    TaskQueued: "a task was queued",
}
#: The loops that must not be overdue at the end.
LOOPS = {"cluster_monitor", "health", "leases"}
#: Virtual seconds after which a process gets the room for which it waits, by its place among all processes.
#: Those that wait in vain are given up after 0.75 s, in a placement group after 2.5 s.
ROOM_S = (0.3, 0.7, 0.7, 2.0, None)
#: Virtual seconds between two safe points of a process that has any, by its place among all processes.
SAFE_POINTS_S = (0.3, 40.0, 0.3, 40.0, 40.0)
#: Bytes that a saved state may have.
STATE_BYTES = 4000
#: Virtual seconds that a run takes, by the place of its process among all processes.
RUN_S = (0.0, 0.5, 2.0, 8.0, 30.0)
#: Facts after which a snapshot replaces them.
SNAPSHOT_FACTS = 30
#: Virtual seconds that each part of a snapshot takes, of which there are some twenty.
SLICES_S = (0.0, 0.01, 0.1, 0.5)
#: Virtual seconds that a process takes to save whose class comes to its safe points rarely.
SLOW_S = 20.0

#: What may happen: how often, and with which arguments.
EVENTS = {
    **TASK_EVENTS,
    "runs_raise": (2, {"raising": (True, False, False)}),
    "holder_uses": (2, {"which": range(9)}),
    "delete_while_it_starts": (4, {"rounds": (0, 1, 3, 6)}),
    "cancel_caller": (2, {"which": range(9)}),
    "cancel_next_caller": (6, {"rounds": range(1, 9)}),
    "driver_ends": (5, {"which": range(9), "returned": (True, True, False)}),
    "evict_driver": (6, {"which": range(9), "how": ("preempt", "preempt", "task", "cancel")}),
    "driver_saves": (3, {"which": range(9)}),
    "driver_takes_more": (1, {"which": range(9)}),
    "saving": (
        14,
        {
            "how": (
                "quick",
                *("safe point", "slow", "too large", "fails", "never") * 2,
                "safe point",
            )
        },
    ),
    "preserve": (3, {"pool": sorted(POOLS), "preserved": (True, True, False)}),
    "commands_are_lost": (3, {"times": (1, 2)}),
    "look_fails": (3, {"calls": LOOKS, "times": (1, 3)}),
    "not_killable": (3, {"node": NODES, "times": (1, 5)}),
    "no_room": (18, {"node": NODES, "full": (True, True, False)}),
    "drain": (
        2,
        {
            "what": ("node", "node", "pool"),
            "which": range(4),
            "drained": (True, False, False),
            "deadline_s": (None, 3.0, 60.0),
        },
    ),
    "cordon": (1, {"node": NODES, "cordoned": (True, False, False)}),
    "change_policy": (
        1,
        {
            "fields": (
                {"preemption_grace_s": 0.0},
                {"preemption_grace_s": 2.0},
                {"over_claim_s": 0.0},
                {"over_claim_s": 60.0},
                {"cancel_timeout": 0.5},
                {"cancel_timeout": 10.0},
                {"topology_levels": []},
                *[{"topology_levels": ["rack"]}] * 3,
            )
        },
    ),
    "rename_pool": (1, {"pool": sorted(POOLS), "back": (True, True, False)}),
    "delete_pool": (
        1,
        {"pool": sorted(POOLS), "drain": (True, False), "again": (True, True, False)},
    ),
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
    "wait": (24, {"seconds": (0.0, 0.1, 0.6, 3.0, 10.0, 40.0)}),
    "snapshots_take": (4, {"slice_s": SLICES_S}),
    "disk_fails": (4, {"call": FAILURES, "times": (1, 1, 3)}),
    "crash": (1, {"killed": (True, False)}),
    "succeed": (1, {}),
}


def happenings(seed, count):
    """So many events, drawn from a seed: the beginning of a longer story is the shorter one."""
    draw = random.Random(seed)
    weights = [weight for weight, _ in EVENTS.values()]
    for _ in range(count):
        (name,) = draw.choices([*EVENTS], weights)
        yield name, {key: draw.choice(values) for key, values in EVENTS[name][1].items()}


def view(name):
    return NodeView(node_id=name, total=NODE, free=NODE, labels=NODE_LABELS[name])


class StoryCalls(HeldCalls):
    """Also fails some calls of a name."""

    def __init__(self, seen, *through):
        super().__init__(*through)
        self.seen = seen
        #: How many of the next calls fail.
        self.failing = Counter()
        #: By node, how many of the next attempts to end what agents have started do not end it.
        self.unkillable = Counter()

    async def turn(self, call, subject):
        if self.failing[call]:
            self.failing[call] -= 1
            self.seen["a look of the monitor failed"] += 1
            return Verdict.REFUSED
        if call == "terminate" and self.unkillable[subject]:
            self.seen["a process could not be killed"] += 1
        verdict = await super().turn(call, subject)
        if verdict is Verdict.REFUSED:
            self.seen["a call was refused"] += 1
        if verdict is Verdict.ANSWER_LOST:
            self.seen["an answer was lost"] += 1
        if verdict is Verdict.UNEXPECTED:
            self.seen["a call failed in an unexpected way"] += 1
        return verdict


class StoryBackend(FakeBackend):
    """Also says which object a warm host has built, and has the drivers of jobs."""

    def __init__(self, control, drivers):
        super().__init__(control)
        self.built = lambda actor, init: None
        self._drivers = drivers
        #: By process, when its run returns.
        self._runs_until = {}

    async def run_task(self, handle, order):
        job = None
        if not isinstance(handle.request, WarmHostRequest):
            job = unpack(handle.request.init, AgentInit).job
        if job is not None:
            nodes = {one.node_id for one in self.free}
            driver = self._drivers.begin(handle, job, nodes)
            if driver is not None:
                await self._drivers.ended(driver)
                handle.answers["run_task"] = driver.report
        else:
            await self._returned(handle)
        return await super().run_task(handle, order)

    async def _returned(self, actor):
        """Return once the run of a process would, or the process is dead."""
        now = asyncio.get_running_loop().time
        until = self._runs_until.setdefault(actor, now() + RUN_S[actor.pid % len(RUN_S)])
        while actor.alive and self._drivers.run_on and now() < until:  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(LOOK_S)

    async def end_jobs(self, owner):
        return await self.take("end_jobs", owner, lambda: self._drivers.remains(owner))

    async def usage(self):
        return await self.take("usage", "", self._drivers.usage)

    async def build_agent(self, handle, init, refs):
        report = await super().build_agent(handle, init, refs)
        self.built(handle, unpack(init, AgentInit))
        return report


class Story(JobEvents, TaskEvents):
    """A supervisor, its clients, the processes of agents, and the cluster."""

    GROUPED = frozenset(GROUPS)

    def __init__(self, journal_file, opened=SqlJournal, quiet_s=QUIET_S):
        self.journal_file, self.opened = journal_file, opened
        #: Virtual seconds for which nothing goes on at the end.
        self.quiet_s = quiet_s
        #: How often what has happened.
        self.seen = Counter()
        self.held = StoryCalls(self.seen, *all_calls())
        #: What must never happen and did.
        self.broken: list[str] = []
        self.drivers = Drivers(self.seen, self.broken)
        self.record = Record(self.seen, self.broken)
        self.disk = StoryDisk(self.seen)
        self.backend = StoryBackend(self.held, self.drivers)
        self.backend.unkillable = self.held.unkillable
        self.backend.free = [SUPERVISOR_NODE, *map(view, NODES)]
        self.backend.start = self.started
        self.backend.built = self.built
        self.backend.handled = self.handled
        self.backend.waiting = lambda actor: actor in self.waiting
        self.service = None
        #: The journal as the present supervisor has it.
        self.journal: StoryJournal | None = None
        #: Former supervisors that live on.
        self.former = []
        #: The recovery of the present supervisor.
        self.recovering: asyncio.Task | None = None
        #: The requests without an answer.
        self.open: dict[asyncio.Task, bytes] = {}
        self.number = 0
        #: Whether the runs of processes that are started from now on raise.
        self.raising = False
        #: The tasks whose submission was accepted, or acknowledged as queued.
        self.acknowledged: set[str] = set()
        #: After how many rounds of the loop the next client goes away; 0: it stays.
        self.rounds = 0
        #: The client that goes away.
        self.leaving: asyncio.Task | None = None
        #: After how many rounds of the loop the next agent that starts is deleted; None: it is not.
        self.deleting_after: int | None = None
        self.deleting: asyncio.Task | None = None
        #: How processes save from now on.
        self.how = "quick"
        #: How often any process has saved: a later state is a higher number.
        self.saves = 0
        #: By task, the newest state that was acknowledged as saved in its present life.
        self.checkpoints: dict[str, int] = {}
        #: The actors for which their node has no room, which have no process yet.
        self.waiting: list[FakeActor] = []
        #: How many of the next answers to polls are lost that bring commands.
        self.answers_lost = 0
        #: The processes that poll for commands, and their open polls.
        self.hosts: set[asyncio.Task] = set()
        self.polls: set[asyncio.Task] = set()

    async def begin(self):
        asyncio.get_running_loop().snapshot_work = self.disk.work
        self.open_service()
        for name in POOLS:
            self.create_pool(name)
        self.ask(ChangePolicy(changes={"topology_levels": ["rack"]}, client="me"))
        await self.wait(0.1)

    def create_pool(self, name):
        spec = PoolSpec(
            name=name,
            resources=parse_resources({"cpu": POOLS[name], "gpu": 2}),
            groups=GROUPS.get(name),
            cohort="c" if name in COHORT else None,
            owner_limits=parse_owner_limits(OWNER_LIMITS[OF_OWNERS.get(name, 0)]),
            owner_order="fair" if name in FAIR else "none",
        )
        self.ask(CreatePool(spec=spec, blobs={key_of(CLASS): CLASS} if name == "w" else {}))

    def open_service(self):
        self.service = supervisor(
            self.backend,
            self.journal_file,
            clock=virtual_time.clock(distinct=True),
            monitor_interval_s=1.0,
            health_interval_s=15.0,
            journal=JournalSettings(saved_state_bytes=STATE_BYTES, snapshot_facts=SNAPSHOT_FACTS),
            opened=self.open_journal,
        )
        # Its process does so itself: clients may go away before they have asked for anything.
        self.recovering = asyncio.ensure_future(self.recovered(self.service))
        self.ask(ListPools())

    def open_journal(self, *address, **how):
        """A journal on the story's disk."""
        self.journal = StoryJournal(self.opened(*address, **how), self.disk, self.record, self.seen)
        return self.journal

    @property
    def reactor(self):
        """That of the present supervisor, which has recovered."""
        return self.service._requests.running.reactor

    async def recovered(self, service):
        """Recover; where the disk failed meanwhile, at the next call that anybody makes."""
        while True:
            try:
                await service.recover()
                break
            except SchedulerUnavailableError:
                self.seen["a recovery failed"] += 1
                await asyncio.sleep(0.5)  # virtual time
        service._requests.running.reactor.observers.add(self.observed)

    def observed(self, step):
        """What has become true."""
        self.seen["steps"] += 1
        for fact in step.facts:
            if (what := FACTS.get(type(fact))) is not None:
                self.seen[what] += 1

    # what clients do

    def ask(self, request):
        self._send(encode_request(request))

    def _send(self, data):
        task = asyncio.ensure_future(self._answered(self.service, data))
        self.open[task] = data
        rounds, self.rounds = self.rounds, 0
        if rounds:
            self.leaving = asyncio.ensure_future(self._go_away(task, rounds))

    async def _answered(self, service, data):
        """Ask until the supervisor can recover, as clients do."""
        while True:
            try:
                answer = await service.ask(data)
            except (BackendError, SchedulerUnavailableError):
                await asyncio.sleep(0.5)  # virtual time
                continue
            encoded = answer[0] if isinstance(answer, tuple) else answer
            if b"internal_error" in encoded:
                # Only its own caller is refused where what a request asks for fails in an unexpected way.
                assert b"failed in an unexpected way" in encoded, encoded
                self.seen["a request failed in an unexpected way"] += 1
                self.open.pop(asyncio.current_task(), None)
                return
            self.note(decode_request(data), encoded)
            self.open.pop(asyncio.current_task(), None)
            return

    def note(self, request, encoded):
        """What an answer promises."""
        if isinstance(request, SubmitTask):
            outcome = decode_answer(encoded, Response)
            if not isinstance(outcome, Refused) and isinstance(outcome.outcome, Accepted | Queued):
                task_id = request.submission.task.task_id
                self.seen["a submission was accepted"] += 1
                self.acknowledged.add(task_id)
                self.forget_checkpoints(task_id)
            elif not isinstance(outcome, Refused):
                self.seen[f"a submission was refused: {outcome.outcome.reason.value}"] += 1
        elif isinstance(request, SaveTaskState):
            answer = decode_answer(encoded, SavedBytes)
            saved = None if isinstance(answer, Refused) else answer.state
            if saved is not None and (number := number_of(unpack(saved, SavedState))) is not None:
                self.seen["a checkpoint was acknowledged"] += 1
                newest = max(number, self.checkpoints.get(request.task_id, 0))
                self.checkpoints[request.task_id] = newest

    def forget_checkpoints(self, task_id):
        """A task of this id may have begun anew, or an array, with its members."""
        for other in [one for one in self.checkpoints if is_of(one, task_id)]:
            del self.checkpoints[other]

    def next(self):
        self.number += 1
        return f"r{self.number}"

    async def holder_uses(self, which):
        """The holder of a lease, or somebody else, runs something in a group."""
        groups = sorted(self.backend.by_id)
        if groups:
            ray_id = groups[which % len(groups)]
            member = GroupMember(name="", namespace="", node_id="", pid=7, actor_id=self.next())
            self.backend.foreign.setdefault(ray_id, []).append(member)

    async def delete_while_it_starts(self, rounds):
        """Delete an agent that starts, or the next one that does, after so many rounds of the loop."""
        reactor = None if self.service._requests is None else self.service._requests.running.reactor
        agents = {} if reactor is None else reactor.state.agents
        starting = [name for name, agent in agents.items() if isinstance(agent.phase, Starting)]
        if starting:
            self.delete_starting(starting[0])
        else:
            self.deleting_after = rounds

    async def _delete_after(self, name, rounds):
        for _ in range(rounds):
            await asyncio.sleep(0)
        if self.service._requests is not None:
            agent = self.service._requests.running.reactor.state.agents.get(name)
            if agent is not None and isinstance(agent.phase, Starting):
                self.delete_starting(name)

    def delete_starting(self, name):
        self.seen["an agent was deleted while it started"] += 1
        self.ask(DeleteAgent(agent_name=name))

    async def cancel_caller(self, which):
        """A client goes away, and does not repeat what it asked for."""
        if self.open:
            self._leaves(list(self.open)[which % len(self.open)])

    async def drain(self, what, which, drained, deadline_s):
        """A node or a pool is drained, or its drain ends."""
        names = NODES if what == "node" else sorted(POOLS)
        place = {"node_id" if what == "node" else "pool_name": names[which % len(names)]}
        deadline_s = deadline_s if drained else None
        self.ask(Drain(drained=drained, deadline_s=deadline_s, client="me", **place))

    async def cordon(self, node, cordoned):
        self.ask(CordonNode(node_id=node, cordoned=cordoned))

    async def change_policy(self, fields):
        self.ask(ChangePolicy(changes=fields, client="me"))

    async def rename_pool(self, pool, back):
        """A pool gets another name, or its first one again."""
        names = (f"{pool}2", pool) if back else (pool, f"{pool}2")
        self.ask(RenamePool(name=names[0], new_name=names[1], request_id=self.next()))

    async def delete_pool(self, pool, drain, again):
        """A pool is deleted, and created again."""
        self.ask(DeletePool(name=pool, drain=drain, client="me", request_id=self.next()))
        if again:
            self.create_pool(pool)

    async def resize(self, pool, cpu):
        self.ask(ResizePool(name=pool, resources=parse_resources({"cpu": cpu})))

    async def cancel_next_caller(self, rounds):
        """The next client goes away after so many rounds of the loop, while its step is written."""
        self.rounds = rounds

    async def _go_away(self, task, rounds):
        for _ in range(rounds):
            await asyncio.sleep(0)
        if task in self.open:
            self.seen["a caller went away while its step was written"] += 1
        self._leaves(task)

    def _leaves(self, task):
        """A client goes away. Nobody learns whether a task that it submitted has begun anew."""
        data = self.open.pop(task, None)
        if data is not None:
            self.seen["a caller went away"] += 1
            task.cancel()
            request = decode_request(data)
            if isinstance(request, SubmitTask):
                self.forget_checkpoints(request.submission.task.task_id)

    # what processes do

    async def saving(self, how):
        self.how = how

    def host(self, actor):
        """A process that polls for commands until it is dead."""
        init = unpack(actor.request.init, AgentInit)
        able = ("save_state", "cancel")
        if init.job is not None:
            able = ("on_preemption_notice", "cancel")
        report = StartReport(node_id=actor.node_id, pid=actor.pid, capabilities=able)
        actor.answers["agent_report"] = report
        host = asyncio.ensure_future(self._serve(actor, init))
        self.hosts.add(host)

    async def _serve(self, actor, init):
        process = Process(self, SAFE_POINTS_S[actor.pid % len(SAFE_POINTS_S)])
        received = []
        while actor.alive:
            service = self.service
            own = (init.agent_name, init.incarnation, init.key)
            poll = asyncio.ensure_future(service.poll(*own, None, received))
            self.polls.add(poll)
            await asyncio.wait({poll})
            self.polls.discard(poll)
            if poll.cancelled() or poll.exception() is not None:
                await asyncio.sleep(1.0)  # virtual time
                continue
            commands = unpack(poll.result(), list[Command])
            if commands and self.answers_lost:
                self.answers_lost -= 1
                self.seen["commands were lost on their way"] += 1
                continue
            received = [command.command_id for command in commands]
            for command in commands:
                driver = self.drivers.of(actor)
                if driver is None:
                    result = await self._carried_out(command, process)
                else:
                    result = await driver.carry_out(command)
                if actor.alive and service is self.service:
                    await service.command_done(command.command_id, pack(result))
        process.end()

    async def _carried_out(self, command, process):
        if command.kind in ("resume", "cancel"):
            process.points.release()
        if command.kind != "save":
            return CommandResult()
        if self.how == "safe point":
            return await process.save(command)
        if self.how == "never":
            self.seen["a save hung"] += 1
            await asyncio.sleep(command.within_s)  # virtual time
        if self.how == "slow":
            self.seen["a save was slow"] += 1
            await asyncio.sleep(SLOW_S)  # virtual time
        if self.how == "fails":
            self.seen["a save failed"] += 1
            return CommandResult(error="it raised", success=False)
        return self.saved(too_large=self.how == "too large")

    async def preserve(self, pool, preserved):
        """Have a preserver save the states of a pool's tasks, or not any more."""
        request = RegisterStateHandlers(
            pool_name=pool,
            preserver_key=key_of(PRESERVER) if preserved else None,
            blobs={key_of(PRESERVER): PRESERVER} if preserved else {},
            request_id=self.next(),
        )
        self.ask(request)

    def handled(self, work):
        """What a worker of its own answers."""
        if work != "preserve_state":
            return Handled()
        if self.how in ("fails", "too large"):
            return Handled(error="it raised", too_large=self.how == "too large")
        self.seen["a preserver saved a state"] += 1
        return Handled(data=self.saved().data)

    def saved(self, *, too_large=False):
        """The next state."""
        self.saves += 1
        self.seen["a state was above the limit"] += too_large
        data = str(self.saves).encode()
        return CommandResult(data=data.zfill(2 * STATE_BYTES) if too_large else data)

    # what the cluster does

    def started(self, actor):
        """An actor is created: nothing else of its agent is alive, and its node has room."""
        if isinstance(actor.request, WarmHostRequest):
            return
        actor.answers["run_task"] = RAISED if self.raising else returned(actor.request.name)
        rounds, self.deleting_after = self.deleting_after, None
        if rounds is not None:
            name = unpack(actor.request.init, AgentInit).agent_name
            self.deleting = asyncio.ensure_future(self._delete_after(name, rounds))
        living = [other for other in self.backend.actors if other.alive]
        self.record.actor_starts(
            unpack(actor.request.init, AgentInit), {agent_of(other) for other in living}
        )
        names = Counter(agent_of(other) for other in living)
        if names[agent_of(actor)] > 1:
            self.broken.append(f"{agent_of(actor)} has two processes")
        if actor.node_id in self.backend.full:
            self.wait_for_room(actor)
            return
        self.host(actor)
        if actor.node_id == OWN_NODE:
            return  # wherever its options say
        if all(node.node_id != actor.node_id for node in self.backend.free):
            return
        used = self.drivers.used_on(actor.node_id)
        for other in living:
            if isinstance(other.request, WarmHostRequest):
                continue
            if other.node_id == actor.node_id and other not in self.waiting:
                used = used + other.request.resources
        if used.beyond(NODE):
            self.broken.append(f"{actor.node_id} is full: {used}")

    def built(self, actor, init):
        """A warm host has become an agent."""
        self.seen["an agent began in a warm host"] += 1
        actor.answers["run_task"] = RAISED if self.raising else returned(f"{init.agent_name}#")
        self.hosts.add(asyncio.ensure_future(self._serve(actor, init)))

    def wait_for_room(self, actor):
        """Ray keeps an actor waiting, until others of its node end or it is killed."""
        self.seen["a process waited for room"] += 1
        actor.stuck = asyncio.get_running_loop().create_future()
        self.backend.views[actor] = ActorView(node_id=actor.node_id, has_process=False)
        self.waiting.append(actor)
        if (after_s := ROOM_S[actor.pid % len(ROOM_S)]) is not None:
            asyncio.get_running_loop().call_later(after_s, self.place, actor)

    def give_room(self):
        """Processes begin that have waited for it, on nodes that have room."""
        for actor in [one for one in self.waiting if one.node_id not in self.backend.full]:
            self.place(actor)

    def place(self, actor):
        """A process begins that has waited for room, unless it has been given up."""
        if actor in self.waiting:
            self.waiting.remove(actor)
            del self.backend.views[actor]
            actor.stuck.set_result(None)
            if actor.alive:
                self.seen["a process got its room late"] += 1
                self.host(actor)

    async def runs_raise(self, raising):
        self.raising = raising

    async def actor_dies(self, which):
        living = [actor for actor in self.backend.actors if actor.alive]
        if living:
            living[which % len(living)].alive = False

    def end_actors_of(self, agent_name):
        """The processes of an agent die."""
        for actor in self.backend.actors:
            if agent_of(actor) == agent_name:
                actor.alive = False

    async def node_is_lost(self, node):
        self.backend.free = [one for one in self.backend.free if one.node_id != node]
        self.drivers.lose(node)
        for actor in self.backend.actors:
            if actor.node_id == node:
                actor.alive = False
                self.backend.lost_with_node.add(actor.request.name)
        for ray_id, group in list(self.backend.by_id.items()):
            if node in group.node_ids:
                self._reschedule(ray_id)

    def _reschedule(self, ray_id):
        group = self.backend.by_id[ray_id]
        self.backend.by_id[ray_id] = msgspec.structs.replace(group, state="RESCHEDULING")

    async def node_returns(self, node):
        if all(one.node_id != node for one in self.backend.free):
            self.backend.free.append(view(node))

    async def look_fails(self, calls, times):
        self.held.failing.update(dict.fromkeys(calls, times))

    async def commands_are_lost(self, times):
        """What processes are to do does not reach them."""
        self.answers_lost = times

    async def not_killable(self, node, times):
        """What agents on a node have started does not end for a while."""
        self.held.unkillable[node] += times

    async def no_room(self, node, full):
        self.backend.full = self.backend.full | {node} if full else self.backend.full - {node}
        self.give_room()

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

    async def crash(self, killed):
        """The supervisor's process ends, or is killed, so that nothing more gets on its disk; clients repeat
        what was not answered to the next one. One that has not recovered yet has nothing to lose.
        """
        if not self.has_recovered():
            return
        self.seen["the supervisor was killed" if killed else "the supervisor crashed"] += 1
        self.journal.is_killed = killed
        requests, self.open = self.open, {}
        running = self.service._requests.running
        running.executor.stop_all()
        for task in requests:
            task.cancel()
        self.service._answer_nothing_more()
        running.agents.endings.cancel_all()
        for poll in list(self.polls):
            poll.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await running.reactor.close(destroy=False)
        self.check_stored()
        self.backend.restarted = True
        self.open_service()
        for data in requests.values():
            self._send(data)

    def check_stored(self):
        """What the next supervisor will find."""
        failing, self.disk.failing = self.disk.failing, Counter()
        journal = self.opened(self.journal_file, must_exist=True)
        try:
            check_stored(journal, self.record.state)
        finally:
            journal.close()
        self.disk.failing = failing

    async def snapshots_take(self, slice_s):
        self.disk.slice_s = slice_s

    async def disk_fails(self, call, times):
        self.disk.failing[call] += times

    async def succeed(self):
        """Ray takes the supervisor's process for dead and starts another, while the former one lives on; who
        waits for an answer of the former one asks the other.
        """
        if not self.has_recovered():
            return
        self.seen["a supervisor had a successor while it lived"] += 1
        requests, self.open = self.open, {}
        for task in requests:
            task.cancel()
        for poll in list(self.polls):
            poll.cancel()
        self.former.append(self.service)
        self.backend.restarted = True
        self.open_service()
        for data in requests.values():
            self._send(data)

    def has_recovered(self):
        recovery = self.service._recovery
        return self.service._requests is not None and (recovery is None or recovery.done())

    # what must be true

    def sound(self):
        """After every event."""
        assert not self.broken, self.broken
        if self.service._requests is not None:
            check(self.service._requests.running.reactor.state)
        for task in self.open:
            assert not task.done(), task

    async def settled(self):
        """Once nothing is held, all that was begun has ended, and the state is what exists."""
        self.held.refused, self.backend.full = set(), set()
        self.give_room()
        self.held.failing.clear()
        self.answers_lost = 0
        self.disk.failing.clear()
        self.held.through |= CALLS
        self.held.unkillable.clear()
        self.drivers.run_on = False
        await self.let_all(Verdict.DONE)
        await self.quiet()
        assert not self.broken, self.broken
        assert not self.held.pending, self.held.pending
        assert not self.open, f"not answered: {list(self.open.values())}"
        running = self.service._requests.running
        state = running.reactor.state
        check(state)
        phases = {name: type(agent.phase) for name, agent in state.agents.items()}
        assert phases == dict.fromkeys(phases, Running), phases
        processes = every_process(state, state.agents.values())
        known = self.actors_of(running, processes)
        assert self.backend.living() == known, self.backend.living() ^ known
        groups = self.groups_in_ray() ^ self.groups_of(running)
        assert not groups, groups
        self.nothing_is_left_of_what_was_begun(running, processes)
        assert all(g.phase in SETTLED for g in state.groups.by_id.values())
        assert not self.drivers.by_owner, self.drivers.by_owner.keys()
        await self.tasks_are_kept(running.reactor)
        await self.checkpoints_are_the_newest(running.reactor, self.checkpoints)
        await running.reactor.flushed()
        # A tick may have decided something while the commits before it were awaited.
        while running.reactor._writer.pending() is not None:
            await running.reactor.flushed()
        check_stored(running.reactor._journal, self.record.state)
        refolded = running.reactor._journal.load().fold()
        # A time may have come since the last tick.
        for either in (refolded, state):
            either.queue.advance(running.reactor.now())
        lost = differences(refolded, state)
        assert not lost, lost
        self.record.state.queue.advance(running.reactor.now())
        lost = differences(self.record.state, state)
        assert not lost, lost
        self.record.check_end(running.reactor.now())
        assert not self.broken, self.broken
        for service in [*self.former, self.service]:
            await self.over(service)
        for task in [*self.polls, *self.hosts]:
            task.cancel()

    async def over(self, service):
        """A supervisor ends; a former one has learned of its successor by then."""
        running = service._requests.running
        is_former = service is not self.service
        assert not is_former or not await running.reactor.still_writes()
        running.executor.stop_all()
        running.loops.end_all()
        service._answer_nothing_more()
        await running.reactor.close(destroy=False)

    async def quiet(self):
        """Return once nothing goes on any more, or everything should have ended."""
        now = asyncio.get_running_loop().time
        began = quiet_since = now()
        while now() - quiet_since < self.quiet_s and now() - began < SETTLES_S:
            await asyncio.sleep(0.5)  # virtual time
            if self.goes_on():
                quiet_since = now()

    def goes_on(self):
        """Whether anything is asked, started or ended."""
        if self.open or self.held.pending or self.service._requests is None:
            return True
        running = self.service._requests.running
        state = running.reactor.state
        processes = every_process(state, state.agents.values())
        return bool(
            any(not isinstance(agent.phase, Running) for agent in state.agents.values())
            or any(group.phase not in SETTLED for group in state.groups.by_id.values())
            or any(task.spec.run for task in state.running.by_id.values())
            or self.drivers.by_owner
            or self.groups_in_ray() != self.groups_of(running)
            or overdue_loops(running)
            or len(running.executor.endings)
            or len(running.agents.endings)
            or self.backend.living() != self.actors_of(running, processes)
            or running.agents._records.keys() != keys_of(processes)
        )

    def actors_of(self, running, processes):
        """(namespace, name) in Ray of everything that should be alive."""
        ready = {("space", name) for name in running.executor.warm_pool.all_names()}
        return ready | {running.agents.where(process) for process in processes}

    def groups_in_ray(self):
        return {view.name for view in self.backend.by_id.values()}

    def groups_of(self, running):
        """The names in Ray of all placement groups that are known."""
        by_id = running.reactor.state.groups.by_id
        made = {name for name, group in by_id.items() if group.phase is not GroupPhase.PLANNED}
        groups = made | set(running.executor.rooms._of.values())
        return {running.groups.name(group_id) for group_id in groups}

    def nothing_is_left_of_what_was_begun(self, running, processes):
        """Every loop works, nothing is still being ended, and no process that has ended is remembered."""
        assert not overdue_loops(running), overdue_loops(running)
        assert not len(running.executor.endings)
        assert not len(running.agents.endings)
        records = running.agents._records.keys() ^ keys_of(processes)
        assert not records, records

    async def checkpoints_are_kept(self):
        """In the middle of a story, while the supervisor is there."""
        if self.service._requests is not None:
            reactor = self.service._requests.running.reactor
            await reactor.flushed()
            requests = map(decode_request, self.open.values())
            submissions = (asked for asked in requests if isinstance(asked, SubmitTask))
            # It may be a task of the same id that runs by now, of which nothing was answered yet.
            anew = [asked.submission.task.task_id for asked in submissions]
            kept = [t for t in self.checkpoints if not any(is_of(t, other) for other in anew)]
            await self.checkpoints_are_the_newest(reactor, kept)

    async def checkpoints_are_the_newest(self, reactor, task_ids):
        """Each of these tasks that goes on is restored from the state acknowledged last, or a newer one."""
        state = reactor.state
        for task_id in sorted(task_ids):
            number = self.checkpoints.get(task_id, 0)
            key = saved_key(state, task_id)
            goes_on = task_id in state.running.by_id or task_id in state.queue.by_id
            assert key is not None or not goes_on, f"the state of {task_id} is lost"
            if key is not None:
                saved = unpack(await reactor.blob(key), SavedState)
                assert (number_of(saved) or 0) >= number, f"the state of {task_id} is an older one"

    async def tasks_are_kept(self, reactor):
        """No acknowledged task is unknown, no run was forgotten, each result is that of a run of its task."""
        state = reactor.state
        known = state.running.by_id.keys() | state.queue.by_id.keys() | state.ended.keys()
        known |= state.arrays.by_id.keys()
        assert self.acknowledged <= known, self.acknowledged - known
        assert not [task for task in state.running.by_id.values() if task.spec.run]
        for task_id, ended in state.ended.items():
            if ended.result_key is not None:
                kept = unpack(await reactor.blob(ended.result_key), KeptResult)
                runs = [kept.value] if kept.value is not None else list(kept.members)
                names = [agent_named(run.decode()) for run in runs]
                agent = task_id.removeprefix("t-")
                ranks = [f"{agent}-{rank}" for rank in range(len(names))]
                assert names in ([agent], ranks), ended


class Process:
    """What a process has of the safe points of a class with async methods, whose method runs all the time."""

    def __init__(self, story, every_s):
        self._story = story
        self.points = SafePoints(self._save)
        self._every_s = every_s
        self._saving = 0
        self._method: asyncio.Task | None = None
        #: The save that was begun last.
        self._answering: asyncio.Task | None = None

    async def save(self, command):
        """As the control channel has it saved: at the next safe point, or beside the method if none comes."""
        if self._method is None:
            self._method = asyncio.ensure_future(self._run())
        until = asyncio.get_running_loop().time() + command.within_s
        request = self.points.request(command.limit_bytes, until)
        answer = asyncio.wrap_future(request._result)
        await asyncio.wait({answer}, timeout=command.seconds)
        if not answer.done() and not request.take():
            await asyncio.wait({answer}, timeout=command.within_s - command.seconds)
        if answer.done():
            self._story.seen["a state was saved at a safe point"] += 1
            return answer.result()
        self._story.seen["no safe point came in time"] += 1
        return msgspec.structs.replace(self._story.saved(), consistent=False)

    async def _run(self):
        while True:
            await asyncio.sleep(self._every_s)  # virtual time
            await self.points.reach_on_loop()

    def _save(self, request, point):
        self._answering = asyncio.ensure_future(self._answer(request))

    async def _answer(self, request):
        self._saving += 1
        if self._saving > 1:
            self._story.broken.append("two saves of one object at the same time")
        await asyncio.sleep(0.2)  # virtual time
        self._saving -= 1
        request.answer(self._story.saved())

    def end(self):
        """The process is dead."""
        if self._method is not None:
            self._method.cancel()


def is_of(task_id, other):
    """Whether a task is this other one, or may be a member of it."""
    return task_id == other or task_id.startswith(f"{other}[")


def keys_of(processes):
    """The names of processes, each with its incarnation."""
    return {(process.spec.name, process.incarnation) for process in processes}


def overdue_loops(running):
    """The loops of which no round was completed that was due, and those that are not there."""
    samples = next(shown for metric, shown in running.loops.families() if metric is LOOP_OVERDUE)
    return {sample.labels[0] for sample in samples if sample.value} | (
        LOOPS - {sample.labels[0] for sample in samples}
    )


def number_of(saved):
    """Which save of the story a state is, of a gang the first of it; None: it is none."""
    states = saved.members or (saved.state,)
    numbers = [int(state) for state in states if state is not None]
    return min(numbers) if numbers else None


def returned(actor_name):
    """The report of a run that returned; it names the process."""
    return RunReport(kept=pack(KeptResult(value=actor_name.encode())))


def agent_of(actor):
    """The agent of an actor, by the actor's name."""
    return agent_named(actor.request.name)


def agent_named(actor_name):
    return actor_name.rpartition(":")[2].partition("#")[0]


def all_calls():
    return CALLS | {
        "recall",
        "keep",
        "usage",
        "request_capacity",
        "job_runs",
        "death_of",
        "has_lost_room",
        "environment_line",
        "node_lives",
        "write_log",
        "deaths_of",
        "waits_for_room",
        "left_behind",
        "class_loaded",
        "build_agent",
        "restore_state",
        "accelerators",
    }


async def told(story, seed, count):
    """Tell a story of so many events; raises AssertionError where something is not as it must be."""
    await story.begin()
    for name, arguments in happenings(seed, count):
        story.seen["events"] += 1
        await getattr(story, name)(**arguments)
        await asyncio.sleep(0.01)  # virtual time
        story.sound()
        if name == "wait":
            await story.checkpoints_are_kept()
    await story.settled()
