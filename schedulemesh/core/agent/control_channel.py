"""The control channel of an agent's process: receives commands, and sends results and metrics.

A daemon thread requests commands from the supervisor by long polling and executes them, so that notice, save
and cancel reach the user's object while its methods run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType

import msgspec
import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import AsyncioActorExit, RayError

from schedulemesh.core.agent.metrics_sender import MetricsSender
from schedulemesh.core.agent.safe_points import SafePoint, SafePoints, SaveRequest
from schedulemesh.core.agent.usage_sampler import UsageSampler
from schedulemesh.core.agent.user_errors import error_text
from schedulemesh.core.transport.user_code import pickled_state
from schedulemesh.domain.user_data import UserObject, UserValue
from schedulemesh.protocol.agents import (
    CHUNK_BYTES,
    AgentInit,
    Command,
    CommandResult,
    MessageError,
    StartReport,
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

#: Seconds before the first commands are requested, so that the agent's first reply is sent before.
_BEGIN_S = 0.05
#: Seconds for the supervisor to take a report that its caller waits for.
_REPORT_S = 5.0
#: Seconds between two attempts to reach a supervisor that does not answer.
_RETRY_S = 1.0
#: Seconds after which a phase of a start is told, and after which it is told again.
_SLOW_S, _TELL_S = 0.5, 5.0

#: Turns what ``save_state`` returned into the bytes that are kept.
Keep = Callable[[UserValue], bytes]

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


class LateError(Exception):
    """A coroutine of the user's object did not return in time."""


class _Running:
    """Counts the user's methods that run now, and all that ever started; calls ``on_exit`` where one of them
    ends the process.
    """

    def __init__(self, on_exit: Callable[[], None]) -> None:
        self._on_exit = on_exit
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
        if isinstance(error, (SystemExit, AsyncioActorExit)):
            self._on_exit()


class StartTeller(threading.Thread):
    """Tells in which phase the start of this process is: nothing of a start that takes a second, of one that
    takes longer every few seconds, so that a supervisor that was restarted meanwhile knows it, too.
    """

    def __init__(self, tell: Callable[[str, float], None]) -> None:
        super().__init__(name="schedulemesh-start", daemon=True)
        self._tell = tell
        self._over = threading.Event()
        self._phase = ("load", time.monotonic())

    def enter(self, phase: str) -> None:
        """Another phase begins."""
        self._phase = (phase, time.monotonic())

    def end(self) -> None:
        """Tell nothing any more."""
        self._over.set()

    def run(self) -> None:
        """Tell until the start is over."""
        reported_phase, silent_s = "", 0.0
        while not self._over.wait(_SLOW_S):
            phase, since = self._phase
            silent_s += _SLOW_S
            if phase != reported_phase or silent_s >= _TELL_S:
                reported_phase, silent_s = phase, 0.0
                with contextlib.suppress(Exception):  # the next phase is told all the same
                    self._tell(phase, time.monotonic() - since)


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
        self.running = _Running(self._leave)
        #: The process is about to end; and the request for commands that is in progress.
        self._ends = False
        self._request: ObjectRef | None = None
        #: The ids of the commands that came with the last answer, which the next request confirms.
        self._received: list[int] = []
        #: The report of a task's run that has ended; None: it has not.
        self.report_of: Callable[[str], bytes | None] = lambda _task_id: None
        #: Starts a command beside this process; None: the object does that, which is the runner of a job.
        self.begin_exec: Callable[[bytes], None] | None = None
        self._thread: threading.Thread | None = None
        self._points = SafePoints(self._save_at_point)
        #: Saves that a coroutine has begun at a safe point.
        self._saves: set[asyncio.Task[None]] = set()
        #: Tasks whose method the scheduler has cancelled; their run may end early.
        self._cancelled: set[str] = set()
        #: Of an elastic gang: the ranks that the object was last told of.
        self._ranks: tuple[int, ...] = ()
        #: The highest epoch of any supervisor that gave a command.
        self._epoch = 0
        self._starting: StartTeller | None = None
        #: The last unexpected failure of a command that was logged.
        self._logged_error = ""

    def begin_start(self) -> None:
        """Tell the supervisor from now on in which phase the start is, where it takes long."""
        self._starting = StartTeller(self._tell_phase)
        self._starting.start()

    def enter_phase(self, phase: str) -> None:
        """The start of this process is in another phase."""
        if self._starting is not None:
            self._starting.enter(phase)

    def end_start(self) -> None:
        """The object is built, or it cannot be."""
        if self._starting is not None:
            self._starting.end()

    def _tell_phase(self, phase: str, seconds: float) -> None:
        self._supervisor.start_phase.remote(*self._own, phase, seconds)

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

    def agent_restarted(self, report: StartReport) -> None:
        """Report that Ray restarted this process; exit if the object could not be rebuilt."""
        if report.error:
            logger.error("the object cannot be built again: %s", report.error)
            os._exit(1)
        self._supervisor.agent_restarted.remote(
            self.agent_name, self._incarnation, pack(report), self._key
        )
        self.start()

    def safe_point(self) -> SafePoint:
        """If a save was requested, save here and wait until the task is cancelled or resumed. On the event
        loop of an async class, which also runs ``cancel``, only a coroutine that awaits the safe point waits.
        """
        if self.loop is not None and _is_on_loop():
            return self._points.reach_on_loop()
        self._points.reach()
        return SafePoint()

    def _listen(self) -> None:
        time.sleep(_BEGIN_S)
        while not self._ends:
            commands: list[Command] = []
            with self._failures():
                commands = unpack(fetched(self._poll()), list[Command])
                self._received = [command.command_id for command in commands]
            # Each by itself: the supervisor waits for the result of each.
            for command in commands:
                with self._failures():
                    self._take(command)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Survive what fails, and wait a moment after it."""
        try:
            yield
        except (RayError, MessageError) as error:
            logger.debug("no answer from the supervisor: %s", error)
            time.sleep(_RETRY_S)
        except Exception as error:  # logged: without this thread no command would reach the agent
            if repr(error) != self._logged_error:
                self._logged_error = repr(error)
                logger.exception("a command failed; the next ones are requested all the same")
            time.sleep(_RETRY_S)

    def _take(self, command: Command) -> None:
        """Carry out a command, unless it is of a former supervisor, and send its result."""
        if command.epoch < self._epoch:
            return
        if command.epoch > self._epoch:
            # Metrics are kept in memory only, and this supervisor is a new one.
            self.metrics.send_again()
        self._epoch = command.epoch
        result = self._carry_out(command)
        # In the result, because Ray does not keep the order of two calls of an async actor.
        result = msgspec.structs.replace(result, metrics=self.metrics.newest())
        self._answer(command.command_id, result)

    def _answer(self, command_id: int, result: CommandResult) -> None:
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
        self._request = self._supervisor.poll.remote(*self._own, packed, self._received)
        if self._ends:
            self._cancel_request()
        return self._request

    def _leave(self) -> None:
        """Request no commands any more. Ray ends a process only when none of its calls is in progress, and a
        request for commands is in progress for up to two minutes.
        """
        self._ends = True
        self._cancel_request()

    def _cancel_request(self) -> None:
        if self._request is not None:
            with contextlib.suppress(RayError):
                ray.cancel(self._request, recursive=False)

    def _send_usage(self, usage: Usage) -> None:
        self._supervisor.report_usage.remote(*self._own, pack(usage))

    def work_saved(self, ago_s: float) -> bool:
        """Report that the job whose runner this is has saved its work so many seconds ago; False: the
        supervisor did not take it.
        """
        ref = self._supervisor.work_saved.remote(*self._own, ago_s)
        try:
            ref.future().result(_REPORT_S)
        except (RayError, TimeoutError, FutureTimeoutError):
            return False
        return True

    def _send_metrics(self, message: bytes) -> ObjectRef:
        return self._supervisor.report_metrics.remote(message, self._key)

    def _carry_out(self, command: Command) -> CommandResult:
        until = time.monotonic() + command.within_s
        if command.kind == "save":
            return self._save_somewhere(command, until)
        if command.kind == "ping":
            return CommandResult()
        if command.kind == "report":
            return CommandResult(data=self.report_of(command.task_id))
        if command.kind == "resume":
            self._points.release()
            return CommandResult()
        if command.kind == "members":
            return self._members_changed(command.ranks, until)
        if command.kind == "notice":
            return self._call("on_preemption_notice", command.seconds, until=until)
        if command.kind == "exec":
            return self._begin_exec(command.order, until)
        try:
            result = self._cancel(command.task_id, until)
        finally:
            self._points.release()
        return msgspec.structs.replace(result, running=self.running.now)

    def _begin_exec(self, order: bytes, until: float) -> CommandResult:
        """Start a command beside the driver of a job, or beside this process."""
        if self.begin_exec is None:
            return self._call("begin_exec", order, until=until)
        try:
            self.begin_exec(order)
        except OSError as error:
            return _failure(error)
        return CommandResult()

    def was_cancelled(self, task_id: str) -> bool:
        """Whether the scheduler has cancelled this task."""
        return task_id in self._cancelled

    def note_cancelled(self, task_id: str) -> None:
        """The run of this task ends early because the task is being evicted."""
        self._cancelled.add(task_id)

    def _members_changed(self, ranks: tuple[int, ...], until: float) -> CommandResult:
        """Tell the object which ranks run, unless it was told so last: a supervisor that has restarted tells
        every member again.
        """
        if ranks == self._ranks:
            return CommandResult()
        self._ranks = ranks
        return self._call("on_members_changed", list(ranks), until=until)

    def _cancel(self, task_id: str, until: float) -> CommandResult:
        # Noted first: the method may return before cancel() does.
        self._cancelled.add(task_id)
        result = self._call("cancel", task_id, until=until)
        if not (result.able and result.success):
            self._cancelled.discard(task_id)
        return result

    def _save_somewhere(self, command: Command, until: float) -> CommandResult:
        """Save at the next safe point if the class has any and a method runs, else while its methods run."""
        if not self._has("save_state"):
            return CommandResult(able=False)
        if self._points.reached and self.running.now:
            request = self._points.request(command.limit_bytes, until)
            result = request.result_within(command.seconds)
            if result is None and not request.take():
                late = CommandResult(error=f"save_state() {_late(command.within_s)}", success=False)
                result = request.result_within(until - time.monotonic()) or late
            if result is not None:
                return result
        begun, idle = self.running.begun, not self.running.now
        result = self._call("save_state", until=until, keep=_keeper(command.limit_bytes))
        undisturbed = idle and begun == self.running.begun
        return result if undisturbed else _torn(result)

    def _save_at_point(self, request: SaveRequest, point: SafePoint | None) -> None:
        """Save at a safe point, on the thread or loop of the method that is there, and answer the request."""
        keep = _keeper(request.limit_bytes)
        if point is None:
            request.answer(self._call("save_state", until=request.until, keep=keep))
            return
        try:
            answer = self._object.save_state()
        except BaseException as error:  # noqa: BLE001  # user code raises anything
            request.answer(_failure(error))
            return
        if not inspect.iscoroutine(answer):
            request.answer(_returned(answer, keep))
            return
        save = asyncio.ensure_future(_save_on_loop(answer, keep, request, point))
        self._saves.add(save)
        save.add_done_callback(self._saves.discard)

    def _has(self, name: str) -> bool:
        """Whether the object has this control method."""
        try:
            return callable(getattr(self._object, name, None))
        except BaseException:  # noqa: BLE001  # user code raises anything
            return False

    def _call(
        self, name: str, *args: object, until: float, keep: Keep | None = None
    ) -> CommandResult:
        """Call a control method of the user's object; what it raises becomes the result. A coroutine that has
        not returned by ``until``, on the monotonic clock, is cancelled.
        """
        if not self._has(name):
            return CommandResult(able=False)
        try:
            answer = self._finish(name, getattr(self._object, name)(*args), until)
        except BaseException as error:  # noqa: BLE001  # user code raises anything
            return _failure(error)
        return _returned(answer, keep)

    def _finish(self, name: str, answer: UserValue, until: float) -> UserValue:
        """Run a coroutine on the agent's own loop."""
        if not inspect.iscoroutine(answer):
            return answer
        within_s = max(0.0, until - time.monotonic())
        late = LateError(f"{name}() {_late(within_s)}")
        if self.loop is None:
            return asyncio.run(_within(answer, within_s, late))
        future = asyncio.run_coroutine_threadsafe(_outcome(answer), self.loop)
        try:
            value, error = future.result(within_s)
        except FutureTimeoutError:
            future.cancel()
            self.loop.call_soon_threadsafe(_close_unstarted, answer)
            raise late from None
        if error is not None:
            raise error
        return value


def _is_on_loop() -> bool:
    """Whether this thread runs an event loop now."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _late(within_s: float) -> str:
    return f"did not return within {within_s:.3g} s"


def _close_unstarted(answer: UserValue) -> None:
    """Close a coroutine that was cancelled before it began, of which Python warns otherwise."""
    if inspect.getcoroutinestate(answer) == inspect.CORO_CREATED:
        answer.close()


async def _within(answer: UserValue, within_s: float, late: LateError) -> UserValue:
    """What a coroutine returns or raises, and ``late`` if it takes longer than that."""
    done, _ = await asyncio.wait({asyncio.ensure_future(answer)}, timeout=within_s)
    if not done:
        raise late
    return done.pop().result()


async def _save_on_loop(
    answer: UserValue, keep: Keep, request: SaveRequest, point: SafePoint
) -> None:
    """Answer a request with what a ``save_state`` that is a coroutine returns. Where nobody awaits the safe
    point, the method that reached it goes on meanwhile.
    """
    stands = point.is_awaited
    value, error = await _outcome(answer)
    result = _returned(value, keep) if error is None else _failure(error)
    request.answer(result if stands else _torn(result))


async def _outcome(
    answer: Coroutine[object, object, UserValue],
) -> tuple[UserValue, BaseException | None]:
    """What a coroutine returns or raises; SystemExit and the like would end the loop that it runs on."""
    try:
        return await answer, None
    except BaseException as error:  # noqa: BLE001  # user code raises anything
        return None, error


def _keeper(limit_bytes: int) -> Keep:
    return lambda state: pickled_state(state, limit_bytes)


def _returned(answer: UserValue, keep: Keep | None) -> CommandResult:
    """The result of a control method that returned; pickling its answer runs user code. A ``save_state`` that
    returned None has saved nothing.
    """
    try:
        data = keep(answer) if keep is not None and answer is not None else None
        refused = isinstance(answer, dict) and answer.get("success") is False
    except BaseException as error:  # noqa: BLE001  # user code raises anything
        return _failure(error)
    return CommandResult(data=data, success=not refused)


def _failure(error: BaseException) -> CommandResult:
    """The result of a control method that raised."""
    if isinstance(error, StateTooLargeError):
        return CommandResult(error=str(error), success=False, too_large=True)
    text = str(error) if isinstance(error, LateError) else error_text(error)
    return CommandResult(error=text, success=False)


def _torn(result: CommandResult) -> CommandResult:
    return msgspec.structs.replace(result, consistent=False)
