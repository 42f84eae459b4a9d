"""The control channel of an agent's process: receives commands, and sends results and metrics.

A daemon thread requests commands from the supervisor by long polling and executes them, so that notice, save
and cancel reach the user's object while its methods run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType

import msgspec
import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import RayError

from schedulemesh.core.agent.metrics_sender import MetricsSender
from schedulemesh.core.agent.usage_sampler import UsageSampler
from schedulemesh.core.agent.user_errors import error_text
from schedulemesh.core.transport.user_code import pickled_state
from schedulemesh.domain.user_data import UserObject, UserValue
from schedulemesh.protocol.agents import (
    CHUNK_BYTES,
    AgentInit,
    Command,
    MessageError,
    Report,
    Result,
    StateTooLargeError,
    Usage,
    pack,
    unpack,
)

logger = logging.getLogger(__name__)

#: Methods of a user's class that commands call.
CONTROL_METHODS = (
    "cancel",
    "save_state",
    "restore_state",
    "on_preemption_notice",
    "on_members_changed",
)

#: A thread that waits at a safe point for its eviction continues after this many seconds at the latest.
_HOLD_S = 60.0
#: Seconds before the first commands are requested, so that the agent's first reply is sent before.
_BEGIN_S = 0.05
#: Seconds between two attempts to reach a supervisor that does not answer.
_RETRY_S = 1.0

_current: ControlChannel | None = None


def current() -> ControlChannel | None:
    """The control channel of the agent in this process; None: this process hosts no agent."""
    return _current


def fetched(ref: ObjectRef) -> UserValue:
    """The value of a reference, waited for on this thread. ``ray.get`` would warn of a blocked event loop in
    every process whose class has async methods, though it is not the loop that waits here.
    """
    (value,) = fetched_all([ref])
    return value


def fetched_all(refs: Sequence[ObjectRef]) -> list[UserValue]:
    """As ``fetched``, of several."""
    return [future.result() for future in [ref.future() for ref in refs]]


def set_current(channel: ControlChannel) -> None:
    """Set the control channel of this process; called once by the host."""
    global _current  # noqa: PLW0603  # a process hosts one agent
    _current = channel


def restarted_by_ray() -> bool:
    """Whether Ray restarted this actor's process by itself."""
    with warnings.catch_warnings():
        # Ray's own property reads another one that it has deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


class _Running:
    """Counts the user's methods that run now, and all that ever started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = 0
        self.begun = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.begun += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self.now -= 1


class ControlChannel:
    """Connects one agent to its supervisor."""

    def __init__(self, init: AgentInit, supervisor: ActorHandle) -> None:
        self._init_message = init
        self.agent_name = init.agent_name
        self.scheduler, self.namespace, self.task_id = init.scheduler, init.namespace, init.task_id
        self._incarnation, self._key = init.incarnation, init.key
        #: What calls of the supervisor begin with that only this process may make.
        self._own = (init.agent_name, init.incarnation, init.key)
        self._supervisor = supervisor
        self.metrics = MetricsSender(self.agent_name, self._incarnation, self._send_metrics)
        self._usage = UsageSampler(self._send_usage)
        self._object: UserObject = None
        #: The event loop of an async class; None: its methods are sync.
        self.loop: asyncio.AbstractEventLoop | None = None
        self.running = _Running()
        self._thread: threading.Thread | None = None
        self._safe_points = 0
        self._wanted = threading.Event()
        #: Bytes that the requested state may take.
        self._limit_bytes = 0
        self._saved: Result | None = None
        self._save_done = threading.Event()
        self._go_on = threading.Event()
        #: Tasks whose method the scheduler has cancelled; their run may end early.
        self._cancelled: set[str] = set()
        #: Of an elastic gang: the ranks that the object was last told of.
        self._ranks: tuple[int, ...] = ()
        #: The highest epoch of any supervisor that gave a command.
        self._epoch = 0

    def attach(self, built: UserObject) -> None:
        """Set the user's object, which was just built."""
        self._object = built

    def capabilities(self) -> tuple[str, ...]:
        """Which control methods the object has."""
        return tuple(name for name in CONTROL_METHODS if self._has(name))

    def start(self) -> None:
        """Start to request commands; called once the supervisor knows the agent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, name="schedulemesh", daemon=True)
            self._thread.start()
            self._usage.start()

    def init_after_restart(self) -> AgentInit:
        """What to build the object from after Ray restarted the process: the last state that was saved."""
        saved = fetched(self._supervisor.last_saved.remote(*self._own))
        return (
            msgspec.structs.replace(self._init_message, saved=saved)
            if saved
            else self._init_message
        )

    def agent_restarted(self, report: Report) -> None:
        """Report that Ray restarted this process; exit if the object could not be rebuilt."""
        if report.error:
            logger.error("the object cannot be built again: %s", report.error)
            os._exit(1)
        self._supervisor.agent_restarted.remote(
            self.agent_name, self._incarnation, pack(report), self._key
        )
        self.start()

    def safe_point(self) -> None:
        """If a save was requested, save here and wait until the task is cancelled or resumed."""
        self._safe_points += 1
        if not self._wanted.is_set():
            return
        self._wanted.clear()
        self._go_on.clear()
        self._saved = self._save(self._limit_bytes, consistent=True)
        self._save_done.set()
        self._go_on.wait(_HOLD_S)

    def _listen(self) -> None:
        time.sleep(_BEGIN_S)
        while True:
            try:
                answer = fetched(self._poll())
                for command in unpack(answer, list[Command]):
                    if command.epoch < self._epoch:
                        continue
                    if command.epoch > self._epoch:
                        # Metrics are kept in memory only, and this supervisor is a new one.
                        self.metrics.send_again()
                    self._epoch = command.epoch
                    result = self._carry_out(command)
                    # In the result, because Ray does not keep the order of two calls of an async actor.
                    result = msgspec.structs.replace(result, metrics=self.metrics.newest())
                    self._answer(command.command_id, result)
            except (RayError, MessageError) as error:
                logger.debug("no commands from the supervisor: %s", error)
                time.sleep(_RETRY_S)

    def _answer(self, command_id: int, result: Result) -> None:
        """Send a result to the supervisor; a large state is sent before it in parts, one at a time."""
        data = result.data
        if data is not None and len(data) > CHUNK_BYTES:
            for begin in range(0, len(data), CHUNK_BYTES):
                part = data[begin : begin + CHUNK_BYTES]
                taken = ray.get(self._supervisor.result_part.remote(command_id, begin, part))
                if taken is not True:
                    logger.debug("the state is not needed any more")
                    return
            result = msgspec.structs.replace(result, data=None, part_bytes=len(data))
        self._supervisor.command_done.remote(command_id, pack(result))

    def _poll(self) -> ObjectRef:
        usage = self._usage.newest()
        packed = None if usage is None else pack(usage)
        return self._supervisor.poll.remote(*self._own, packed)

    def _send_usage(self, usage: Usage) -> None:
        self._supervisor.report_usage.remote(*self._own, pack(usage))

    def _send_metrics(self, message: bytes) -> ObjectRef:
        return self._supervisor.report_metrics.remote(message, self._key)

    def _carry_out(self, command: Command) -> Result:
        if command.kind == "save":
            return self._save_somewhere(command.seconds, command.limit_bytes)
        if command.kind == "ping":
            return Result()
        if command.kind == "resume":
            self._go_on.set()
            return Result()
        if command.kind == "members":
            return self._members_changed(command.ranks)
        try:
            if command.kind == "notice":
                return self._call("on_preemption_notice", command.seconds)
            result = self._cancel(command.task_id)
            return msgspec.structs.replace(result, running=self.running.now)
        finally:
            if command.kind == "cancel":
                self._go_on.set()

    def was_cancelled(self, task_id: str) -> bool:
        """Whether the scheduler has cancelled this task."""
        return task_id in self._cancelled

    def note_cancelled(self, task_id: str) -> None:
        """The run of this task ends early because the task is being evicted."""
        self._cancelled.add(task_id)

    def _members_changed(self, ranks: tuple[int, ...]) -> Result:
        """Tell the object which ranks run, unless it was told so last: a supervisor that has restarted tells
        every member again.
        """
        if ranks == self._ranks:
            return Result()
        self._ranks = ranks
        return self._call("on_members_changed", list(ranks))

    def _cancel(self, task_id: str) -> Result:
        # Noted first: the method may return before cancel() does.
        self._cancelled.add(task_id)
        result = self._call("cancel", task_id)
        if not (result.able and result.success):
            self._cancelled.discard(task_id)
        return result

    def _save_somewhere(self, wait_s: float, limit_bytes: int) -> Result:
        """Save at the next safe point if the class has any and a method runs, else while its methods run."""
        if not self._has("save_state"):
            return Result(able=False)
        if self._safe_points and self.running.now:
            self._save_done.clear()
            self._limit_bytes = limit_bytes
            self._wanted.set()
            if self._save_done.wait(wait_s) and self._saved is not None:
                return self._saved
            self._wanted.clear()
        begun, idle = self.running.begun, not self.running.now
        result = self._save(limit_bytes, consistent=idle)
        undisturbed = idle and begun == self.running.begun
        return result if undisturbed else _torn(result)

    def _save(self, limit_bytes: int, *, consistent: bool) -> Result:
        result = self._call("save_state", keep=lambda state: pickled_state(state, limit_bytes))
        return result if consistent else _torn(result)

    def _has(self, name: str) -> bool:
        """Whether the object has this control method."""
        try:
            return callable(getattr(self._object, name, None))
        except BaseException:  # noqa: BLE001  # user code raises anything
            return False

    def _call(
        self, name: str, *args: object, keep: Callable[[UserValue], bytes] | None = None
    ) -> Result:
        """Call a control method of the user's object; what it raises becomes the result."""
        if not self._has(name):
            return Result(able=False)
        try:
            answer = self._finish(getattr(self._object, name)(*args))
            data = keep(answer) if keep is not None else None
            refused = isinstance(answer, dict) and answer.get("success") is False
        except StateTooLargeError as error:
            return Result(error=str(error), success=False, too_large=True)
        except BaseException as error:  # noqa: BLE001  # user code raises anything
            return Result(error=error_text(error), success=False)
        return Result(data=data, success=not refused)

    def _finish(self, answer: UserValue) -> UserValue:
        """Run a coroutine on the agent's own loop."""
        if not inspect.iscoroutine(answer):
            return answer
        if self.loop is None:
            return asyncio.run(answer)
        value, error = asyncio.run_coroutine_threadsafe(_outcome(answer), self.loop).result()
        if error is not None:
            raise error
        return value


async def _outcome(
    answer: Coroutine[object, object, UserValue],
) -> tuple[UserValue, BaseException | None]:
    """What a coroutine returns or raises; SystemExit and the like would end the loop that it runs on."""
    try:
        return await answer, None
    except BaseException as error:  # noqa: BLE001  # user code raises anything
        return None, error


def _torn(result: Result) -> Result:
    return msgspec.structs.replace(result, consistent=False)
