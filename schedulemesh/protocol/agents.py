"""What travels between client, supervisor and agent hosts, and is stored: plain values and opaque bytes.

User code travels as bytes that only the agent's own process, a handler's worker or the caller ever
unpickles. This module loads fast, because every agent's process imports it.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec

from schedulemesh.domain.task import TaskSpec

Message = TypeVar("Message")

#: Characters of a text of user code that are kept.
_LONGEST = 10_000


class MessageError(ValueError):
    """What another process sent is no message of the type that is due."""


class StateTooLargeError(ValueError):
    """The state takes more bytes than may be kept."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of a method, without its default's value."""

    name: str
    #: As ``inspect.Parameter.kind``.
    kind: int
    has_default: bool = False


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """What a Ray handle must know of a method."""

    name: str
    #: "sync", "async", "generator" or "async_generator".
    kind: str
    parameters: tuple[Parameter, ...] = ()
    #: Attributes that ``@ray.method`` left on it.
    ray_attributes: dict[str, Any] = {}


class ShippedClass(msgspec.Struct, frozen=True, kw_only=True):
    """A user's class: what its handle needs in the open, the class itself as opaque bytes."""

    name: str
    methods: tuple[Method, ...]
    code: bytes
    #: Folders of the submitting job that its workers look in for modules.
    sys_path: tuple[str, ...] = ()

    @property
    def is_async(self) -> bool:
        """Whether Ray would run it on an event loop."""
        return any(m.kind in ("async", "async_generator") for m in self.methods)


#: A state of more bytes travels in parts of so many, so that it holds nobody up.
PART_BYTES = 4 * 1024 * 1024


class ShippedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A user's function as opaque bytes."""

    code: bytes
    sys_path: tuple[str, ...] = ()


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """A task's saved state as it is stored."""

    task: TaskSpec
    agent_name: str
    #: "preserver": ``state`` is the preserver's dict; "save_state": what the agent's own method returned;
    #: "payload": there is no ``state``; "given": the dict that a caller handed to restore_task.
    source: str
    saved_at: float
    #: False: saved beside running methods.
    consistent: bool = True
    last_metrics: dict[str, Any] = {}
    #: Opaque.
    state: bytes | None = None
    payload: bytes | None = None
    #: What went wrong with a better source.
    warning: str = ""
    #: False: the task's state of that moment could not be saved, and this is what was known before.
    current: bool = True


class AgentInit(msgspec.Struct, frozen=True, kw_only=True):
    """All that a host needs to build the user's object."""

    scheduler: str
    agent_name: str
    incarnation: int
    labels: dict[str, str]
    shipped: bytes
    arguments: bytes | None
    saved: bytes | None
    #: Whether Ray may restart the process by itself; only then is it worth asking whether it did.
    may_restart: bool = False
    #: What its process and all that it starts is marked with (see process_marks); 0: it is marked already.
    mark: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a host says once its object is built, or cannot be."""

    node_id: str
    pid: int
    #: Ids of the accelerators that Ray gave it.
    gpu_ids: tuple[str, ...] = ()
    #: Names among the control methods that the class has.
    capabilities: tuple[str, ...] = ()
    state_restored: bool | None = None
    #: Why the object could not be built; empty: it was.
    error: str = ""


class Accelerators(msgspec.Struct, frozen=True, kw_only=True):
    """The accelerators of a bundle: what a process that may use them all is given by Ray."""

    ids: tuple[str, ...] = ()
    #: The environment variables that show them to the libraries.
    env_vars: dict[str, str] = {}


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor asks of a host while the user's methods run."""

    command_id: int
    #: The supervisor's epoch; a host obeys none that is lower than the highest it has met.
    epoch: int
    #: "ping", "notice", "save", "cancel" or "resume".
    kind: str
    task_id: str = ""
    #: "notice": seconds until the eviction; "save": seconds that it may wait for a safe point.
    seconds: float = 0.0
    #: "save": bytes that the state may take; a larger one is not sent.
    limit_bytes: int = 0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a command."""

    #: Whether the class has such a method.
    able: bool = True
    error: str = ""
    #: "save": the state, opaque; None: there is none, or it went ahead in parts.
    data: bytes | None = None
    #: Bytes of the state that went ahead in parts.
    part_bytes: int = 0
    #: "save": whether the state takes more bytes than it may.
    too_large: bool = False
    consistent: bool = True
    #: "cancel": whether the method's answer says that it worked.
    success: bool = True
    #: "cancel": how many of the agent's methods run, whatever became of it.
    running: int = 0


class MetricsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of an agent, from its own process."""

    agent_name: str
    #: None: the agent was made elsewhere, and a task is registered on it.
    incarnation: int | None
    #: See metric_values.
    metrics: msgspec.Raw


class Handled(msgspec.Struct, frozen=True, kw_only=True):
    """What came of user code that ran in a worker of its own, or of a class that was loaded."""

    #: Opaque.
    data: bytes | None = None
    error: str = ""
    #: Whether ``data`` would take more bytes than it may.
    too_large: bool = False


def key_of(data: bytes) -> str:
    """The key under which bytes are stored: their SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def writable(text: str) -> str:
    """A text of user code that can be written down: without lone surrogates, and of bounded length."""
    shown = str.encode(text, errors="backslashreplace").decode()
    if len(shown) <= _LONGEST:
        return shown
    return f"{shown[: _LONGEST // 2]}\n...\n{shown[-_LONGEST // 2 :]}"


def pack(value: msgspec.Struct | list[Command]) -> bytes:
    """The bytes of a message."""
    return msgspec.msgpack.encode(value)


def unpack(data: object, kind: type[Message]) -> Message:
    """The message that these bytes are. Raises MessageError for all that is none of this type."""
    if type(data) is not bytes:
        raise MessageError(f"a {kind.__name__} is sent as bytes, not as {type(data).__name__}")
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"these bytes are no {kind.__name__}: {error}") from error
