"""What the runtime needs of the system that runs agents: the ``Backend`` protocol, its values and errors.

Ray is one backend (``core/backend/ray_backend.py``); the tests of the runtime use a fake one. The runtime
passes names, bytes and opaque handles; which class an actor is made of is the backend's business.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NewType, Protocol

import msgspec

from schedulemesh.api.exec_sessions import ReadExec, WriteExec
from schedulemesh.api.logs import LogPiece, ReadTaskLog, TaskKey
from schedulemesh.domain.agent import Death
from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import Resources
from schedulemesh.errors import ScheduleMeshError, encodable
from schedulemesh.metrics.catalogue import Metric
from schedulemesh.protocol.agents import Accelerators
from schedulemesh.protocol.local_sockets import SocketAddress
from schedulemesh.runtime.cluster_usage import ClusterUsage

#: An actor as the backend refers to it. Only the backend looks inside.
Handle = NewType("Handle", object)

#: Object references of a submission: whole arguments, and references within other arguments.
Refs = tuple[Sequence[object], Sequence[object]]


class BackendError(ScheduleMeshError):
    """The backend could not do what it was asked: an actor or worker died, or the cluster refused."""

    def __init__(self, message: str = "") -> None:
        # It may quote user code, and becomes part of what is stored.
        super().__init__(encodable(message))


class BackendTimeoutError(BackendError, TimeoutError):
    """Work in a worker of its own did not finish in time and was ended."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A living node as the backend sees it."""

    node_id: str
    total: Resources
    #: What nobody holds; in Ray it lags by about 0.1 s.
    free: Resources
    labels: dict[str, str]
    #: Whether it is about to be removed, so that nothing new is placed there.
    draining: bool = False
    #: When it is removed, in seconds since 1970; None: that is not known, or it stays.
    drain_deadline: float | None = None
    #: The name of its machine, and its IP address; empty: unknown.
    host: str = ""
    address: str = ""


class ActorView(msgspec.Struct, frozen=True, kw_only=True):
    """What the backend knows of an actor."""

    #: The node where it is, or is to be, placed; None: none yet.
    node_id: str | None
    #: Whether it has a process; otherwise it waits for resources, or for the process to start.
    has_process: bool
    #: The id of its process if the backend considers it alive.
    pid: int | None = None


class BundleSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle of a placement group, as a place for an actor."""

    #: The backend's id of the group.
    ray_id: str
    shape: GroupShape
    #: The index of the bundle.
    bundle: int = 0
    #: Whether the other bundles are for what the actor starts; False: other members of its gang run there.
    whole: bool = True


class AgentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's actor to be created."""

    class_key: str
    #: The user's class: a packed ShippedClass.
    shipped: bytes
    name: str
    namespace: str
    resources: Resources
    #: None: wherever the options say.
    node_id: str | None
    #: The placement group in which it runs; None: it runs on a node.
    slot: BundleSlot | None
    #: The user's Ray options.
    options: Mapping[str, object]
    #: A packed AgentInit.
    init: bytes
    refs: Refs


class WarmHostRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A warm host to be created in a placement group: it loads a class, and takes no resources."""

    class_key: str
    #: The user's class: a packed ShippedClass.
    shipped: bytes
    name: str
    namespace: str
    slot: BundleSlot
    #: The user's Ray options.
    options: Mapping[str, object]
    #: The accelerators of the bundle.
    accelerators: Accelerators
    #: The mark of its process; see ``Backend.process_mark``.
    mark: int


class RayGroupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A placement group to be created."""

    name: str
    shape: GroupShape
    #: The node of each bundle.
    node_ids: tuple[str, ...]


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A placement group as the backend sees it."""

    ray_id: str
    name: str
    #: PENDING, PREPARED, CREATED or RESCHEDULING; INCOMPLETE: some of several parts were removed; UNKNOWN: it
    #: was created just now, and could not be looked at. Removed groups are not shown.
    state: str
    #: The node of each bundle; empty where it has none.
    node_ids: tuple[str, ...]

    @property
    def placed(self) -> bool:
        """Whether every bundle is on its node."""
        return self.state == "CREATED"


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """An actor in a placement group, ours or not."""

    #: Empty: it has none.
    name: str
    namespace: str
    node_id: str
    #: 0: it has no process yet.
    pid: int
    #: The backend's id of it.
    actor_id: str = ""


class Process(NamedTuple):
    """A process, told from a later one with the same id by its start time."""

    #: In ticks since the machine started.
    began: int
    pid: int


class JobRemains(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of the jobs of an owner when their end is asked for."""

    #: How many of their actors, placement groups and drivers have not ended.
    living: int = 0
    #: The nodes on which their actors run or have run.
    node_ids: frozenset[str] = frozenset()
    #: The ids of the processes of those of their actors that stay, by node.
    staying: Mapping[str, tuple[int, ...]] = {}


class ExecPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a command inside a claim has written since it was last asked for, and how it ended."""

    #: The number of its stream, and bytes.
    pieces: tuple[tuple[int, bytes], ...] = ()
    #: The number of the first piece among all.
    first: int = 0
    ended: bool = False
    #: None: it runs, or has ended in another way than by itself.
    exit_code: int | None = None
    #: Why it could not be started; empty: it was.
    error: str = ""


class NodeCleaner(Protocol):
    """Finds and ends the processes that agents left on one node, and reads the logs of jobs there. Calls
    raise BackendError where the node does not answer.
    """

    async def terminate(self, mark: int) -> tuple[int, ...]:
        """End every process with this mark; returns the ids of those that have not ended in time."""

    async def terminate_workers(self, mark: int, staying: Sequence[int]) -> tuple[int, ...]:
        """End every process that has the mark of a job in its environment, but for these and what they have
        started; returns the ids of those that have not ended in time.
        """

    async def left_behind(self, hosts: Mapping[int, int]) -> dict[int, list[Process]]:
        """By mark, the processes that are left of agents whose own process is dead; ``hosts``: the ids of
        the agents' processes by mark.
        """

    async def kill(self, processes: Sequence[Process]) -> None:
        """Kill these processes, unless they have ended."""

    async def read_log(self, key: TaskKey, request: ReadTaskLog) -> LogPiece | None:
        """A part of what a task that has run on the node has written: an agent where the request names a
        stream, else a job; see ``core.agent.process_logs`` and ``job_folders``.
        """

    async def node_lives(self) -> bool:
        """Whether the cluster's own process on the node lives. Where it has died, the node is lost, though
        the cleaner may answer for a moment longer.
        """

    async def environment_line(self) -> str:
        """The last line that was written while runtime environments were set up there; empty: none was."""

    async def write_log(
        self, key: TaskKey, attempt: int, text: str, incarnation: int | None
    ) -> None:
        """Append a text to the log of an attempt that has not run: of this incarnation of an agent, or (None)
        of a job.
        """

    async def open_exec(self, session_id: str) -> SocketAddress:
        """Wait for the process that runs a command inside a claim: where it is to connect to. Raises OSError
        where there can be no socket.
        """

    async def read_exec(self, request: ReadExec) -> ExecPart | None:
        """What such a command has written since, once there is something or the time is over; None: there is
        no such session.
        """

    async def write_exec(self, request: WriteExec) -> int | None:
        """Pass input on to such a command: how much was taken by now; None: there is no such session."""

    async def end_exec(self, session_id: str) -> None:
        """End such a command, if there is one, with what it has started."""

    def close(self) -> None:
        """Give the cleaner up; it is not called again."""


class Backend(Protocol):
    """The system that runs agents, as one supervisor sees it.

    Methods raise BackendError where the system refuses or cannot be reached. What a host or a worker
    answers may come from hostile code, so it is returned as it came, and the runtime unpacks it.
    """

    # the supervisor's own process

    def version(self) -> str:
        """The version of the system."""

    def own_node_id(self) -> str:
        """The node of this process."""

    def session_folder(self) -> Path:
        """A folder on this node that belongs to this cluster."""

    def was_restarted(self) -> bool:
        """Whether an earlier process of this supervisor ran before this one."""

    def end_supervisor(self) -> None:
        """End this process at once, without a restart."""

    def export_metric(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """Pass the present value of a metric, or an observation of a histogram, to the cluster's exporter.

        Raises BackendError where it takes none.
        """

    def start_http(self, settings: bytes, name: str, namespace: str) -> None:
        """Start the process that serves a scheduler's HTTP API, with packed SchedulerSettings, unless it
        runs; it may still fail.
        """

    async def end_http(self, name: str, namespace: str) -> None:
        """End that process, if there is one."""

    # the cluster

    async def nodes(self) -> list[NodeView]:
        """The living nodes."""

    async def usage(self) -> ClusterUsage:
        """What all actors and placement groups hold and wait for, with the jobs that created them; the same
        object as before where nothing has changed.
        """

    async def demand(self) -> ClusterUsage:
        """What actors, placement groups and plain tasks wait for because no node has room, with the jobs that
        created them. In Ray it lags by about 0.1 s.
        """

    async def job_runs(self, job_id: str) -> bool:
        """Whether a job still runs."""

    async def recall(self, key: str) -> bytes | None:
        """A value that ``keep`` stored in the cluster; None: there is none."""

    async def keep(self, key: str, value: bytes | None) -> None:
        """Store a value in the cluster for as long as the cluster exists; None removes it."""

    async def request_capacity(
        self, bundles: Sequence[Resources], labels: Sequence[NodeLabels]
    ) -> None:
        """Ask the autoscaler to provide room for these bundles, each on a node with these labels; none
        withdraws the request.
        """

    # actors

    def start_agent(self, request: AgentRequest) -> Handle:
        """Create the actor of an agent; it may still fail. Raises BackendError for whatever is refused."""

    def start_warm_host(self, request: WarmHostRequest) -> Handle:
        """Create the actor of a warm host; it may still fail. Raises BackendError for whatever is refused."""

    async def agent_report(self, handle: Handle) -> object:
        """The first report of a new agent, once its object is built: a packed StartReport."""

    async def warm_host_report(self, handle: Handle) -> object:
        """Whether a warm host has loaded its class, once it has tried: a packed Handled."""

    async def build_agent(self, handle: Handle, init: bytes, refs: Refs) -> object:
        """Have a warm host build an agent's object from a packed AgentInit: a packed StartReport."""

    async def run_task(self, handle: Handle, order: bytes) -> object:
        """Have an agent run a task as a packed RunOrder says, once: a packed RunReport, when it has ended."""

    async def find_actor(self, name: str, namespace: str) -> Handle | None:
        """A living named actor; None: there is none."""

    async def living_actors(self) -> set[tuple[str, str]]:
        """(namespace, name) of every living named actor."""

    async def actor(self, handle: Handle) -> ActorView | None:
        """What is known of an actor, also of a dead one; None: nothing."""

    async def death_of(self, handle: Handle) -> Death | None:
        """How an actor died; None: it is not dead, or nothing is known."""

    async def has_lost_room(self, handle: Handle) -> bool:
        """Whether an actor is dead because its node has died, or could not be made where it was to be."""

    async def deaths_of(
        self, addresses: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], Death]:
        """How the actors with these (namespace, name) died last, as far as anything is known. In Ray it may
        take a second, because it looks through all dead actors.
        """

    async def waits_for_room(self, handle: Handle) -> bool:
        """Whether an actor waits because no node has room; False: its process is starting or runs. In Ray
        it lags by about 0.1 s, of an actor in a placement group by up to a second.
        """

    def kill_actor(self, handle: Handle) -> None:
        """Begin to end an actor, without a restart."""

    async def actor_ended(self, handle: Handle) -> None:
        """Return once an actor that is being ended is dead."""

    # jobs that agents start

    async def publish_folder(self, key: str, suffix: str, archive: bytes) -> str:
        """Put the archive of a folder where the processes of all nodes find it, as the working directory of
        what is started within the next minutes: its URI. ``suffix``: how the name of the archive ends.
        """

    async def publish_package(self, uri: str, archive: bytes) -> None:
        """The same for an archive whose URI is known: it names a package of the backend's own store."""

    async def end_jobs(self, owner: str) -> JobRemains:
        """Begin to end everything that belongs to the jobs and submissions with this owner in their metadata,
        or to the job of which it is the id: actors and placement groups, detached ones too, but for actors
        that are to stay. Returns what had not ended when it was asked; the processes of their drivers, which
        end otherwise, among it.
        """

    # user code in a worker process of its own; BackendTimeoutError: it was ended

    async def probe_class(
        self, shipped: bytes, timeout_s: float, runtime_env: Mapping[str, object] | None
    ) -> object:
        """Whether a class loads: a packed Handled."""

    async def preserve_state(
        self,
        handler: bytes,
        task: bytes,
        started_at: float,
        limit_bytes: int,
        timeout_s: float,
    ) -> object:
        """Call a pool's preserver for a task (a packed SavedState): a packed Handled with the state, which
        takes at most ``limit_bytes``.
        """

    async def restore_state(self, handler: bytes, saved: bytes, timeout_s: float) -> object:
        """Call a pool's restorer with a packed SavedState: a packed Handled."""

    async def accelerators(self, slot: BundleSlot, timeout_s: float) -> object:
        """The accelerators of a bundle, which must be free: packed Accelerators."""

    async def start_exec(
        self, slot: BundleSlot, order: bytes, mark: int, variables: Mapping[str, str]
    ) -> Handle:
        """Start an actor without resources in the first bundle of a group that runs a command, as a packed
        ExecOrder says, with these variables: the actor, once the command was started. ``mark``: what its
        processes are marked with.
        """

    def packed_handle(self, handle: Handle) -> bytes:
        """The handle of an actor of ours as bytes, from which a client makes one without asking Ray."""

    # processes that agents start

    def process_mark(self, namespace: str, actor_name: str) -> int:
        """The number with which an actor's process and everything that it starts is marked."""

    def node_cleaner(self, node_id: str) -> NodeCleaner:
        """A cleaner for a node; it may still fail."""

    # placement groups

    async def create_group(self, request: RayGroupRequest) -> GroupView:
        """Create a detached placement group and return it, soon after it has been placed; one for which there
        is no room is placed later.

        Raises BackendError also where the name is taken.
        """

    async def groups(self) -> list[GroupView]:
        """Every placement group that is not removed, also those of others."""

    async def group(self, ray_id: str) -> GroupView | None:
        """One placement group; None: it is removed."""

    async def members(self, ray_id: str) -> list[GroupMember]:
        """The actors in a placement group that are not dead, also those of others."""

    async def end_members(self, actor_ids: Sequence[str]) -> None:
        """Begin to end actors by the ids that ``members`` gives, without a restart; also those of others, and
        those without a name.
        """

    async def group_in_use(self, ray_id: str) -> bool:
        """Whether an actor or task has something of a group, or waits for that. In Ray the former lags
        by about 0.1 s, the latter by up to a second.
        """

    async def remove_group(self, ray_id: str) -> None:
        """Begin to remove a placement group; what runs in it is ended."""
