"""A backend without a cluster: actors, nodes and placement groups are values in memory.

It is deterministic. By default every call takes effect and returns at once; a ``Control`` decides otherwise
for each asynchronous call: when it takes effect, and whether it or its answer is lost.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from schedulemesh.api.exec_sessions import ReadExec, WriteExec
from schedulemesh.api.logs import LogPiece, ReadTaskLog, TaskKey
from schedulemesh.core.agent.exec_process import begin_exec
from schedulemesh.core.agent.exec_relay import ExecRelay
from schedulemesh.core.agent.job_folders import job_folder, read_log
from schedulemesh.core.agent.process_logs import read_process_log, write_process_log
from schedulemesh.domain.agent import Death
from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.resources import Resources
from schedulemesh.metrics.catalogue import Metric
from schedulemesh.protocol.agents import (
    Accelerators,
    Handled,
    KeptResult,
    RunReport,
    StartReport,
    pack,
)
from schedulemesh.protocol.exec_messages import ExecOrder
from schedulemesh.protocol.local_sockets import SocketAddress
from schedulemesh.runtime.backend import (
    ActorView,
    AgentRequest,
    Backend,
    BackendError,
    BackendTimeoutError,
    BundleSlot,
    ExecPart,
    GroupMember,
    GroupView,
    Handle,
    JobRemains,
    NodeView,
    Process,
    RayGroupRequest,
    Refs,
    WarmHostRequest,
)
from schedulemesh.runtime.cluster_usage import ClusterUsage

Value = TypeVar("Value")

#: What is kept of a run that returned None.
NOTHING_RETURNED = pack(KeptResult(value=pickle.dumps(None)))

#: The node of the supervisor, and of actors that nothing places elsewhere.
OWN_NODE = "own"

#: Where the fakes of this process and of those that it forks have the folders of their sessions.
_SESSIONS = tempfile.TemporaryDirectory(prefix="sessions-of-fakes-")


class Verdict(Enum):
    """What becomes of a call."""

    DONE = "it takes effect and is answered"
    REFUSED = "it takes no effect and fails"
    ANSWER_LOST = "it takes effect, and fails all the same"
    UNEXPECTED = "it takes effect, and fails with what is no BackendError"


class Control:
    """Lets every call through at once. Subclasses delay, reorder and fail calls."""

    async def turn(self, call: str, subject: str) -> Verdict:
        """Return when a call may take effect. ``subject``: the actor, group or node that it is about."""
        return Verdict.DONE

    def refuses(self, call: str, subject: str) -> bool:
        """Whether a call that nobody can delay, such as ``start_agent``, fails."""
        return False


class PendingCall:
    """A call that waits for a verdict."""

    def __init__(self, call: str, subject: str) -> None:
        self.call, self.subject = call, subject
        self.verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"{self.call}({self.subject})"

    def let(self, verdict: Verdict = Verdict.DONE) -> None:
        """Let it take effect, or fail."""
        if not self.verdict.done():
            self.verdict.set_result(verdict)


class HeldCalls(Control):
    """Holds every call until the test lets it go, in whatever order. ``through``: calls that are not held."""

    def __init__(self, *through: str) -> None:
        self.through = set(through)
        self.pending: list[PendingCall] = []
        self._arrived = asyncio.Event()
        #: Calls that nobody can delay and that fail.
        self.refused: set[str] = set()

    async def turn(self, call: str, subject: str) -> Verdict:
        if call in self.through:
            return Verdict.DONE
        held = PendingCall(call, subject)
        self.pending.append(held)
        self._arrived.set()
        try:
            return await held.verdict
        finally:
            self.pending.remove(held)

    def refuses(self, call: str, subject: str) -> bool:
        return call in self.refused

    async def next(self, call: str | None = None) -> PendingCall:
        """The oldest call that is held, of this name if one is given; waits until there is one."""
        while True:
            for held in self.pending:
                if call in (None, held.call) and not held.verdict.done():
                    return held
            self._arrived.clear()
            await self._arrived.wait()


class FakeActor:
    """An actor that answers at once, or when it is told to."""

    def __init__(self, request: AgentRequest | WarmHostRequest, node_id: str, pid: int) -> None:
        self.request = request
        self.node_id, self.pid = node_id, pid
        self.alive = True
        #: Its answers by method, where they are not the usual ones.
        self.answers: dict[str, msgspec.Struct] = {}
        self.calls: list[tuple[str, tuple[object, ...]]] = []
        #: Its answers wait for this.
        self.stuck: asyncio.Future[None] | None = None

    @property
    def address(self) -> tuple[str, str]:
        """Its (namespace, name)."""
        return self.request.namespace, self.request.name

    async def answer(self, method: str, *args: object) -> msgspec.Struct:
        """Take a call. Raises BackendError if it is dead by then."""
        self.calls.append((method, args))
        if self.stuck is not None:
            await asyncio.shield(self.stuck)
        if not self.alive:
            raise BackendError("the actor is dead")
        if method == "class_loaded":
            return self.answers.get(method, Handled())
        if method == "run_task":
            return self.answers.get(method, RunReport(kept=NOTHING_RETURNED))
        return self.answers.get(method, StartReport(node_id=self.node_id, pid=self.pid))


class FakeCleaner:
    """The cleaner of a node; it raises or answers what it is told to."""

    def __init__(self, backend: FakeBackend, node_id: str) -> None:
        self._backend, self.node_id = backend, node_id
        self.calls: list[tuple[str, object]] = []
        self.closed = False
        self.raises: Exception | None = None
        #: What is left after each termination; when there are no more: nothing.
        self.answers: list[tuple[int, ...]] = []
        #: By mark, what dead agents left on the node.
        self.left: dict[int, list[Process]] = {}
        self.killed: list[Process] = []
        #: Whether the cluster's own process on the node lives.
        self.lives = True
        #: What was written last while environments were set up.
        self.line = ""
        #: What was written to logs: task, attempt and text.
        self.written: list[tuple[str, int, str]] = []
        #: The commands inside claims of the node, which are real ones.
        self.relay = ExecRelay(backend.session_folder() / "exec")

    async def terminate(self, mark: int) -> tuple[int, ...]:
        return await self._backend.take(
            "terminate", self.node_id, lambda: self._answered("terminate", mark)
        )

    async def terminate_workers(self, mark: int, staying: Sequence[int]) -> tuple[int, ...]:
        return await self._backend.take(
            "terminate_workers",
            self.node_id,
            lambda: self._answered("terminate_workers", (mark, *staying)),
        )

    def _answered(self, method: str, subject: object) -> tuple[int, ...]:
        self.calls.append((method, subject))
        self._fail()
        if self._backend.unkillable[self.node_id]:
            self._backend.unkillable[self.node_id] -= 1
            return (77,)
        return self.answers.pop(0) if self.answers else ()

    async def left_behind(self, hosts: Mapping[int, int]) -> dict[int, list[Process]]:
        def found() -> dict[int, list[Process]]:
            self._fail()
            return {mark: left for mark, left in self.left.items() if mark in hosts}

        return await self._backend.take("left_behind", self.node_id, found)

    async def kill(self, processes: Sequence[Process]) -> None:
        def done() -> None:
            self._fail()
            self.killed.extend(processes)

        await self._backend.take("kill", self.node_id, done)

    async def read_log(self, key: TaskKey, request: ReadTaskLog) -> LogPiece | None:
        def read() -> LogPiece | None:
            self._fail()
            if request.stream is not None:
                return read_process_log(Path(key.root), key, request)
            return read_log(job_folder(key), request.attempt, request.begin, request.limit)

        return await self._backend.take("read_log", key.task_id, read)

    async def node_lives(self) -> bool:
        def lives() -> bool:
            self._fail()
            return self.lives

        return await self._backend.take("node_lives", self.node_id, lives)

    async def environment_line(self) -> str:
        return await self._backend.take("environment_line", self.node_id, lambda: self.line)

    async def write_log(
        self, key: TaskKey, attempt: int, text: str, incarnation: int | None
    ) -> None:
        def written() -> None:
            self.written.append((key.task_id, attempt, text))
            if incarnation is not None:
                logs = Path(key.root) / "logs"
                logs.mkdir(parents=True, exist_ok=True)
                write_process_log(Path(key.root), key, incarnation, attempt, text)

        await self._backend.take("write_log", key.task_id, written)

    async def open_exec(self, session_id: str) -> SocketAddress:
        self._fail()
        return self.relay.open(session_id)

    async def read_exec(self, request: ReadExec) -> ExecPart | None:
        self._fail()
        return await self.relay.read(request)

    async def write_exec(self, request: WriteExec) -> int | None:
        self._fail()
        return await self.relay.write(request)

    async def end_exec(self, session_id: str) -> None:
        self._fail()
        self.relay.end(session_id)

    def close(self) -> None:
        self.closed = True

    def _fail(self) -> None:
        if self.raises is not None:
            raise self.raises


class FakeBackend:
    """Groups are placed where they are pinned at once, unless their node is full. Actors start at once."""

    def __init__(self, control: Control | None = None) -> None:
        self.control = control or Control()
        self.restarted = False
        self.ended = False
        #: What was passed to the cluster's exporter: (name, labels, value).
        self.exported: list[tuple[str, tuple[str, ...], float]] = []
        self.jobs: set[str] = set()
        #: How much of the jobs of an owner has not ended when its end is first asked for.
        self.left_of_jobs: dict[str, int] = {}
        #: What else there is of every job, and those whose end was asked for.
        self.remains_of_jobs = JobRemains()
        self.ended_jobs: list[str] = []
        self.folders: dict[str, bytes] = {}
        #: What commands in the groups of leases were marked with.
        self.exec_marks: list[int] = []
        # Of this process alone: sockets have the names of their schedulers, which are the same in all tests.
        self.folder = Path(_SESSIONS.name, str(os.getpid()))
        #: The cluster's nodes; those that are not in it are lost.
        self.free: list[NodeView] = []
        self.kept: dict[str, bytes] = {}
        #: What actors and placement groups of others hold.
        self.used = ClusterUsage(jobs={}, holders=())
        #: Every request for capacity, in the autoscaler's order.
        self.asked: list[list[Resources]] = []
        self.asked_labels: list[list[NodeLabels]] = []
        self.by_id: dict[str, GroupView] = {}
        self.made = 0
        self.removed: list[str] = []
        #: Nodes where nothing can be placed now.
        self.full: set[str] = set()
        #: Actors in placement groups that are not ours, by Ray's id of the group.
        self.foreign: dict[str, list[GroupMember]] = {}
        #: The ids of actors in groups that were to be ended, and of those that do not end.
        self.ended_members: set[str] = set()
        self.undying: set[str] = set()
        #: Groups in which tasks run, or for which tasks wait.
        self.busy_groups: set[str] = set()
        self.actors: list[FakeActor] = []
        #: What becomes of an actor when it is created.
        self.start: Callable[[FakeActor], None] = lambda actor: None
        #: Actors that are not ours, or of an earlier supervisor, by (namespace, name).
        self.others: set[tuple[str, str]] = set()
        #: How actors died, by name.
        self.deaths: dict[str, Death] = {}
        #: The names of actors that died because their node did.
        self.lost_with_node: set[str] = set()
        #: What is known of actors, where it is not that they run on their node.
        self.views: dict[object, ActorView] = {}
        #: Whether an actor waits for room.
        self.waiting: Callable[[Handle], bool] = lambda actor: False
        self.looks: list[object] = []
        #: Work in workers of its own: what was run, with its slot.
        self.probes: list[tuple[str, BundleSlot | None]] = []
        #: What workers answer: by default, success.
        self.handled: Callable[[str], Handled] = lambda work: Handled()
        #: The accelerators of every bundle; None: they cannot be found out in time.
        self.devices: Accelerators | None = Accelerators(
            ids=("3",), env_vars={"CUDA_VISIBLE_DEVICES": "3"}
        )
        self.cleaners: list[FakeCleaner] = []
        #: By node, how many of the next terminations leave a process.
        self.unkillable: Counter[str] = Counter()
        #: The packed settings of the processes that serve HTTP APIs, by (namespace, name).
        self.http: dict[tuple[str, str], bytes] = {}

    async def take(self, call: str, subject: str, effect: Callable[[], Value]) -> Value:
        """Let a call take effect as the control says."""
        verdict = await self.control.turn(call, subject)
        if verdict is Verdict.REFUSED:
            raise BackendError(f"{call} was refused")
        value = effect()
        if verdict is Verdict.ANSWER_LOST:
            raise BackendError(f"the answer to {call} was lost")
        if verdict is Verdict.UNEXPECTED:
            raise ZeroDivisionError(f"{call} failed in an unexpected way")
        return value

    # the supervisor's own process

    def version(self) -> str:
        return "0.0"

    def own_node_id(self) -> str:
        return OWN_NODE

    def session_folder(self) -> Path:
        return self.folder

    def was_restarted(self) -> bool:
        return self.restarted

    def end_supervisor(self) -> None:
        self.ended = True

    def export_metric(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        self.exported.append((metric.name, labels, value))

    def start_http(self, settings: bytes, name: str, namespace: str) -> None:
        if self.control.refuses("start_http", name):
            raise BackendError("start_http was refused")
        self.http[(namespace, name)] = settings

    async def end_http(self, name: str, namespace: str) -> None:
        await self.take("end_http", name, lambda: self.http.pop((namespace, name), None))

    # the cluster

    async def nodes(self) -> list[NodeView]:
        return await self.take("nodes", "", lambda: list(self.free))

    async def usage(self) -> ClusterUsage:
        def found() -> ClusterUsage:
            holders = tuple(holder for holder in self.used.holders if not holder.are_tasks)
            unchanged = len(holders) == len(self.used.holders)
            return self.used if unchanged else msgspec.structs.replace(self.used, holders=holders)

        return await self.take("usage", "", found)

    async def demand(self) -> ClusterUsage:
        def found() -> ClusterUsage:
            holders = tuple(holder for holder in self.used.holders if holder.waiting)
            return ClusterUsage(jobs=self.used.jobs, holders=holders)

        return await self.take("demand", "", found)

    async def job_runs(self, job_id: str) -> bool:
        return await self.take("job_runs", job_id, lambda: job_id in self.jobs)

    async def recall(self, key: str) -> bytes | None:
        return await self.take("recall", key, lambda: self.kept.get(key))

    async def keep(self, key: str, value: bytes | None) -> None:
        def done() -> None:
            self.kept.pop(key, None)
            if value is not None:
                self.kept[key] = value

        await self.take("keep", key, done)

    async def request_capacity(
        self, bundles: Sequence[Resources], labels: Sequence[NodeLabels]
    ) -> None:
        def done() -> None:
            self.asked.append(list(bundles))
            self.asked_labels.append(list(labels))

        await self.take("request_capacity", "", done)

    # actors

    def start_agent(self, request: AgentRequest) -> Handle:
        return self._start("start_agent", request, request.node_id)

    def start_warm_host(self, request: WarmHostRequest) -> Handle:
        return self._start("start_warm_host", request, None)

    def _start(
        self, call: str, request: AgentRequest | WarmHostRequest, node_id: str | None
    ) -> Handle:
        if self.control.refuses(call, request.name):
            raise BackendError(f"{call} was refused")
        if (request.namespace, request.name) in self.living():
            raise BackendError("the name is taken")
        group = None if request.slot is None else self.by_id.get(request.slot.ray_id)
        bundle = 0 if request.slot is None else request.slot.bundle
        node = node_id if group is None else group.node_ids[bundle]
        actor = FakeActor(request, node or OWN_NODE, 1000 + len(self.actors))
        self.actors.append(actor)
        # As in Ray, what is created in a placement group that is gone is dead.
        actor.alive = request.slot is None or group is not None
        if actor.alive:
            self.start(actor)
        return Handle(actor)

    def packed_handle(self, handle: Handle) -> bytes:
        return repr(handle).encode()

    async def agent_report(self, handle: Handle) -> object:
        return await self._answer("agent_report", handle)

    async def warm_host_report(self, handle: Handle) -> object:
        return await self._answer("class_loaded", handle)

    async def build_agent(self, handle: Handle, init: bytes, refs: Refs) -> object:
        return await self._answer("build_agent", handle, init, *refs)

    async def run_task(self, handle: Handle, order: bytes) -> object:
        return await self._answer("run_task", handle, order)

    async def _answer(self, method: str, handle: Handle, *args: object) -> object:
        actor = cast("FakeActor", handle)
        answer = await actor.answer(method, *args)

        def packed() -> bytes:
            if not actor.alive:
                raise BackendError("the actor is dead")
            return pack(answer)

        return await self.take(method, actor.request.name, packed)

    async def find_actor(self, name: str, namespace: str) -> Handle | None:
        return await self.take("find_actor", name, lambda: self._found(name, namespace))

    def _found(self, name: str, namespace: str) -> Handle | None:
        if (namespace, name) in self.others:
            return Handle((namespace, name))
        found = (a for a in self.actors if a.alive and a.address == (namespace, name))
        actor = next(found, None)
        return None if actor is None else Handle(actor)

    async def living_actors(self) -> set[tuple[str, str]]:
        return await self.take("living_actors", "", self.living)

    def living(self) -> set[tuple[str, str]]:
        """(namespace, name) of every living actor."""
        return {actor.address for actor in self.actors if actor.alive} | self.others

    def names(self) -> set[str]:
        """The names of the living actors."""
        return {name for _, name in self.living()}

    async def actor(self, handle: Handle) -> ActorView | None:
        return await self.take("actor", "", lambda: self._view(handle))

    def _view(self, handle: Handle) -> ActorView:
        if handle in self.views or not isinstance(handle, FakeActor):
            return self.views.get(handle, ActorView(node_id=OWN_NODE, has_process=True))
        return ActorView(
            node_id=handle.node_id, has_process=True, pid=handle.pid if handle.alive else None
        )

    async def death_of(self, handle: Handle) -> Death | None:
        address = getattr(handle, "address", handle)
        return await self.take(
            "death_of", "", lambda: self._death(cast("tuple[str, str]", address))
        )

    async def has_lost_room(self, handle: Handle) -> bool:
        address = cast("tuple[str, str]", getattr(handle, "address", handle))
        return await self.take(
            "has_lost_room",
            "",
            lambda: address not in self.living() and address[1] in self.lost_with_node,
        )

    async def deaths_of(
        self, addresses: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], Death]:
        def found() -> dict[tuple[str, str], Death]:
            known = ((address, self._death(address)) for address in addresses)
            return {address: death for address, death in known if death is not None}

        return await self.take("deaths_of", "", found)

    def _death(self, address: tuple[str, str]) -> Death | None:
        return None if address in self.living() else self.deaths.get(address[1])

    async def waits_for_room(self, handle: Handle) -> bool:
        self.looks.append(handle)
        return await self.take("waits_for_room", "", lambda: self.waiting(handle))

    def kill_actor(self, handle: Handle) -> None:
        if self.control.refuses("kill_actor", ""):
            raise BackendError("kill_actor was refused")
        if isinstance(handle, FakeActor):
            handle.alive = False
        else:
            self.others.discard(cast("tuple[str, str]", handle))

    async def actor_ended(self, handle: Handle) -> None:
        await self.take("actor_ended", "", lambda: None)

    # user code in a worker process of its own

    async def publish_folder(self, key: str, suffix: str, archive: bytes) -> str:
        def published() -> str:
            uri = f"fake://{key}{suffix}"
            self.folders[uri] = archive
            return uri

        return await self.take("publish_folder", key, published)

    async def publish_package(self, uri: str, archive: bytes) -> None:
        def published() -> None:
            self.folders[uri] = archive

        await self.take("publish_folder", uri, published)

    async def end_jobs(self, owner: str) -> JobRemains:
        def left() -> JobRemains:
            self.ended_jobs.append(owner)
            return msgspec.structs.replace(
                self.remains_of_jobs, living=self.left_of_jobs.pop(owner, 0)
            )

        return await self.take("end_jobs", owner, left)

    async def probe_class(
        self, shipped: bytes, timeout_s: float, runtime_env: Mapping[str, object] | None
    ) -> object:
        return await self._run("probe_class")

    async def preserve_state(
        self,
        handler: bytes,
        task: bytes,
        started_at: float,
        limit_bytes: int,
        timeout_s: float,
    ) -> object:
        return await self._run("preserve_state")

    async def restore_state(self, handler: bytes, saved: bytes, timeout_s: float) -> object:
        return await self._run("restore_state")

    async def _run(self, work: str) -> object:
        self.probes.append((work, None))
        return await self.take(work, "", lambda: pack(self.handled(work)))

    async def start_exec(
        self, slot: BundleSlot, order: bytes, mark: int, variables: Mapping[str, str]
    ) -> Handle:
        """The command is a real one."""
        self.exec_marks.append(mark)
        decoded = msgspec.msgpack.decode(order, type=ExecOrder)
        environment = {"PATH": os.environ["PATH"], **variables}
        await asyncio.to_thread(begin_exec, decoded, environment, None)
        return Handle(object())

    async def accelerators(self, slot: BundleSlot, timeout_s: float) -> object:
        self.probes.append(("accelerators", slot))
        await asyncio.sleep(0)

        def packed() -> bytes:
            if self.devices is None:
                raise BackendTimeoutError("not done")
            return pack(self.devices)

        return await self.take("accelerators", slot.ray_id, packed)

    # processes that agents start

    def process_mark(self, namespace: str, actor_name: str) -> int:
        return 1 + zlib.crc32(f"{namespace}/{actor_name}".encode())

    def node_cleaner(self, node_id: str) -> FakeCleaner:
        cleaner = FakeCleaner(self, node_id)
        self.cleaners.append(cleaner)
        return cleaner

    # placement groups

    async def create_group(self, request: RayGroupRequest) -> GroupView:
        return await self.take("create_group", request.name, lambda: self._create(request))

    def _create(self, request: RayGroupRequest) -> GroupView:
        if request.name in {view.name for view in self.by_id.values()}:
            raise BackendError("the name is taken")
        self.made += 1
        ray_id = f"{self.made:036x}"
        blocked = self.full & set(request.node_ids)
        self.by_id[ray_id] = GroupView(
            ray_id=ray_id,
            name=request.name,
            state="PENDING" if blocked else "CREATED",
            node_ids=("",) * len(request.node_ids) if blocked else request.node_ids,
        )
        return self.by_id[ray_id]

    async def groups(self) -> list[GroupView]:
        return await self.take("groups", "", lambda: list(self.by_id.values()))

    async def group(self, ray_id: str) -> GroupView | None:
        return await self.take("group", ray_id, lambda: self.by_id.get(ray_id))

    async def members(self, ray_id: str) -> list[GroupMember]:
        return await self.take("members", ray_id, lambda: self._members(ray_id))

    def _members(self, ray_id: str) -> list[GroupMember]:
        ours = [
            GroupMember(
                name=actor.request.name,
                namespace=actor.request.namespace,
                node_id=actor.node_id,
                pid=actor.pid,
                actor_id=actor.request.name,
            )
            for actor in self.actors
            if actor.alive and actor.request.slot is not None
            if actor.request.slot.ray_id == ray_id
        ]
        return ours + self.foreign.get(ray_id, [])

    async def end_members(self, actor_ids: Sequence[str]) -> None:
        await self.take("end_members", "", lambda: self._end_members(set(actor_ids)))

    def _end_members(self, actor_ids: set[str]) -> None:
        self.ended_members |= actor_ids
        for ray_id, members in self.foreign.items():
            left = [m for m in members if m.actor_id not in actor_ids - self.undying]
            self.foreign[ray_id] = left
        for actor in self.actors:
            if actor.request.name in actor_ids:
                actor.alive = False

    async def group_in_use(self, ray_id: str) -> bool:
        return await self.take("group_in_use", ray_id, lambda: ray_id in self.busy_groups)

    async def remove_group(self, ray_id: str) -> None:
        await self.take("remove_group", ray_id, lambda: self._remove(ray_id))

    def _remove(self, ray_id: str) -> None:
        self.removed.append(ray_id)
        self.by_id.pop(ray_id, None)
        self.foreign.pop(ray_id, None)
        for actor in self.actors:
            if actor.request.slot is not None and actor.request.slot.ray_id == ray_id:
                actor.alive = False


#: The type checker compares the fake with the protocol.
_CHECKED: type[Backend] = FakeBackend
