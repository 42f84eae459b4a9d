"""Messages between client, supervisor and agent hosts; some are also stored in the journal.

They consist of plain values and opaque bytes. User code is sent as bytes, which only the agent's own process,
the worker of a handler, or the caller unpickles. Every agent's process imports this module, so it loads fast.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, TypeVar

import msgspec

from schedulemesh.domain.end_reasons import TaskEndReason

Message = TypeVar("Message")

#: The maximum length of a text from user code, in characters; longer ones are shortened.
_MAX_TEXT = 10_000
#: Characters of one line about an error.
_LINE_CHARS = 500
#: The line of a traceback that names a frame.
_FRAME = re.compile(r'\s*File ".*", line \d+')


class MessageError(ValueError):
    """The bytes sent by another process are not a message of the expected type."""


class StateTooLargeError(ValueError):
    """The state takes more bytes than may be kept."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of a method, without the value of its default."""

    name: str
    #: As ``inspect.Parameter.kind``.
    kind: int
    has_default: bool = False


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """What a Ray actor handle needs to know about a method."""

    name: str
    #: "sync", "async", "generator" or "async_generator".
    kind: str
    parameters: tuple[Parameter, ...] = ()
    #: Attributes that ``@ray.method`` has set on it.
    ray_attributes: dict[str, Any] = {}


class ShippedClass(msgspec.Struct, frozen=True, kw_only=True):
    """A user's class: readable data for its actor handle, and the class itself as opaque bytes."""

    name: str
    methods: tuple[Method, ...]
    code: bytes
    #: Entries of ``sys.path`` of the submitting job that its workers need to import modules.
    sys_path: tuple[str, ...] = ()

    @property
    def is_async(self) -> bool:
        """Whether Ray runs its methods on an event loop."""
        return any(m.kind in ("async", "async_generator") for m in self.methods)


#: A larger state is sent in chunks of this many bytes, so that it does not block other messages.
CHUNK_BYTES = 4 * 1024 * 1024


class ShippedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A user's function as opaque bytes."""

    code: bytes
    sys_path: tuple[str, ...] = ()


#: The Ray namespace of the actors that hold devices for drivers; each is named after the owner of its job.
DEVICES_NAMESPACE = "schedulemesh_devices"


class JobStart(msgspec.Struct, frozen=True, kw_only=True):
    """Which attempt of which job a runner runs."""

    task_id: str
    #: From 1: one more after each eviction, failure or loss.
    attempt: int
    #: The name and namespace of the scheduler.
    scheduler: str
    namespace: str
    #: What marks the Ray jobs of its drivers: the runner's namespace and name in Ray.
    owner: str
    #: The folder that logs and checkpoints are kept in, on every node the same.
    folder: str
    #: Where Ray fetches the working directory from that was sent with the job; empty: none was.
    working_dir: str = ""
    #: CPUs and GPUs of its claim by node.
    claimed: dict[str, tuple[float, float]] = {}
    #: The mark of its processes; 0: they are not marked.
    mark: int = 0
    #: Variables of the environment that say which member of an array it is; empty: it is none.
    array: dict[str, str] = {}
    #: Seconds that Ray may take to give the driver its part of the claim, as for the last phase of a start.
    devices_limit_s: float = 60.0
    #: Conditions on the labels of the nodes of its claim, and the number of the alternative in which it runs,
    #: from 1; 0: it has one alone.
    label_selector: dict[str, str] = {}
    alternative: int = 0


class AgentInit(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a host needs to construct the user's object."""

    #: The name and namespace of the scheduler.
    scheduler: str
    namespace: str
    agent_name: str
    incarnation: int
    #: The task that it is started for; empty: none.
    task_id: str = ""
    #: The task whose log its process writes, also of a member of a gang; empty: none.
    log_task: str = ""
    #: Which attempt of that task this is, from 1.
    attempt: int = 1
    #: Variables of the environment that say which member of an array that task is; empty: it is none.
    array: dict[str, str] = {}
    labels: dict[str, str]
    shipped: bytes
    arguments: bytes | None
    saved: bytes | None
    #: Whether Ray may restart the process by itself; only then the host checks whether it was restarted.
    may_restart: bool = False
    #: The mark of its process and of every process that it starts (see process_marks); 0: already set.
    mark: int = 0
    #: Of a member of a gang: its rank, and the number of members; 0: it is no member.
    rank: int = 0
    world_size: int = 0
    #: Of a job's runner: what it runs; None: it is none.
    job: JobStart | None = None
    #: What its process sends with its calls, so that no other process makes them in its name.
    key: bytes = b""
    #: Whether it holds all GPUs of its placement group that it may use, so that nothing else fits into it.
    fills_group: bool = False


class StartReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a host after it has constructed the user's object, or failed to."""

    node_id: str
    pid: int
    #: Ids of the accelerators that Ray gave it.
    gpu_ids: tuple[str, ...] = ()
    #: Names among the control methods that the class has.
    capabilities: tuple[str, ...] = ()
    state_restored: bool | None = None
    #: Why the object could not be constructed; empty: it was.
    error: str = ""
    #: Whether that was because its saved state could not be restored.
    restore_failed: bool = False


class Accelerators(msgspec.Struct, frozen=True, kw_only=True):
    """The accelerators of a bundle, as Ray assigns them to a process that requests all of them."""

    ids: tuple[str, ...] = ()
    #: The environment variables that make them visible to libraries.
    env_vars: dict[str, str] = {}


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command of the supervisor to a host, executed while the user's methods run."""

    command_id: int
    #: The supervisor's epoch; a host ignores commands with a lower epoch than the highest it has seen.
    epoch: int
    #: "ping", "notice", "save", "cancel", "report", "resume", "members" or "exec".
    kind: str
    #: How long the supervisor waits for the result, in seconds.
    within_s: float = 60.0
    task_id: str = ""
    #: "notice": seconds until the eviction; "save": the longest wait for a safe point, in seconds.
    seconds: float = 0.0
    #: "save": the maximum size of the state in bytes; a larger one is not sent. "report": that of the report.
    limit_bytes: int = 0
    #: "members": the ranks of the members of the elastic gang that run now.
    ranks: tuple[int, ...] = ()
    #: "exec": a packed ExecOrder.
    order: bytes = b""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command."""

    #: Whether the class has such a method.
    able: bool = True
    error: str = ""
    #: "save": the state, opaque; "report": the RunReport of a run that has ended, packed. None: there is
    #: none, or it was sent in chunks before.
    data: bytes | None = None
    #: The size of the state that was sent in chunks before, in bytes.
    part_bytes: int = 0
    #: "save": whether the state exceeds the maximum size.
    too_large: bool = False
    consistent: bool = True
    #: "cancel": whether the method reported success.
    success: bool = True
    #: "cancel": how many of the agent's methods are running afterwards.
    running: int = 0
    #: The newest metrics when the command was executed, a packed MetricsReport; None: none were reported.
    metrics: bytes | None = None


class MetricsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of an agent, sent by its own process."""

    agent_name: str
    #: None: ScheduleMesh did not start the agent, and a task is registered on it.
    incarnation: int | None
    #: Encoded by ``metric_values.encode_metrics``.
    metrics: msgspec.Raw
    #: Distinguishes reports of a process: one may be sent again. 0: not numbered.
    number: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a process and those that it has started really use, as it has measured it."""

    #: CPUs, the mean since the measurement before.
    cpu: float
    #: Resident memory.
    memory_mb: float
    #: Of the GPUs that it may use: the mean utilisation in per cent, and the memory that is used on them,
    #: also by others; None: it has none, or they cannot be measured.
    gpu_utilization: float | None = None
    gpu_memory_mb: float | None = None


class RunOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Call the method that a task consists of; a process does so once, however often it is ordered."""

    task_id: str
    method: str
    #: Opaque; None: it takes none.
    arguments: bytes | None = None
    #: The maximum size of the kept result in bytes.
    limit_bytes: int


class KeptResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a run: what it returned, or the exception that it raised."""

    #: What it returned, opaque; None: it raised, or a gang ran it.
    value: bytes | None = None
    #: What each member of a gang returned, in the order of ranks.
    members: tuple[bytes, ...] = ()
    #: The exception, opaque; None: it returned, or the exception cannot be pickled.
    exception: bytes | None = None
    #: The traceback, or why what it returned is not kept; empty: it returned.
    text: str = ""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    #: A packed KeptResult; the control plane stores it and does not look inside.
    kept: bytes
    #: None: it returned, and the result is kept.
    reason: TaskEndReason | None = None
    #: One line for people; empty: it returned.
    error: str = ""
    #: Whether ``cancel()`` was called before by the scheduler.
    cancelled: bool = False


class Handled(msgspec.Struct, frozen=True, kw_only=True):
    """The result of user code that ran in a separate worker, or of loading a class there."""

    #: Opaque.
    data: bytes | None = None
    error: str = ""
    #: Whether ``data`` would exceed its maximum size.
    too_large: bool = False


def key_of(data: bytes) -> str:
    """The key under which bytes are stored: their SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def writable(text: str) -> str:
    """A text from user code in a form that can be encoded: no lone surrogates, and of limited length."""
    shown = str.encode(text, errors="backslashreplace").decode()
    if len(shown) <= _MAX_TEXT:
        return shown
    return f"{shown[: _MAX_TEXT // 2]}\n...\n{shown[-_MAX_TEXT // 2 :]}"


def exception_line(text: str) -> str:
    """Of an error text that may be a traceback the line that names the exception, shortened; of any other
    text its first line.
    """
    lines = [line for line in text.strip().splitlines() if line.strip()]
    frames = [number for number, line in enumerate(lines) if _FRAME.match(line)]
    after = lines[frames[-1] + 1 :] if frames else lines
    # What stands under a frame is indented: its source, and marks under that.
    named = [number for number, line in enumerate(after) if not line.startswith(" ")]
    line = after[named[0]] if named else text.strip()
    if line.rstrip().endswith(":") and len(after) > named[0] + 1:
        line = f"{line.rstrip()} {after[named[0] + 1].strip()}"
    return line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}..."


def line_and_traceback(text: str) -> tuple[str, str]:
    """An error text as one line, and all of it where it has more than that line."""
    line = exception_line(text)
    return line, "" if line == text.strip() else text.strip()


def pack(value: msgspec.Struct | list[Command]) -> bytes:
    """Encode a message."""
    return msgspec.msgpack.encode(value)


def unpack(data: object, kind: type[Message]) -> Message:
    """Decode a message of this type. Raises MessageError if the data is anything else."""
    if type(data) is not bytes:
        raise MessageError(f"a {kind.__name__} is sent as bytes, not as {type(data).__name__}")
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"the bytes are not a {kind.__name__}: {error}") from error
