"""The agent host: the actor that loads the user's class from bytes in its own process and forwards calls.

The host's class is made for the user's class with that class's method names, so that the handle is an
ordinary Ray handle. User methods run where plain Ray runs them: sync ones on the actor's main thread,
async ones on its loop. Commands are requested by a thread of the host's own, so that they are executed while
a long method runs.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import ray
from ray import ObjectRef, cloudpickle
from ray.actor import ActorHandle

from schedulemesh.core.agent.control_channel import (
    ControlChannel,
    fetched_all,
    restarted_by_ray,
    set_current,
)
from schedulemesh.core.agent.process_logs import link_log_files
from schedulemesh.core.agent.process_marks import kill, mark_this_process, marked
from schedulemesh.core.agent.ranks import rank_arguments, set_environment
from schedulemesh.core.agent.ray_process import hide_placement_group, log_files
from schedulemesh.core.agent.task_runs import TaskRuns, decoded_order
from schedulemesh.core.agent.user_errors import error_text
from schedulemesh.core.transport.user_code import load_arguments, load_class
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.user_data import UserClass, UserFunction, UserObject, UserValue
from schedulemesh.protocol.agents import (
    AgentInit,
    Method,
    RunOrder,
    ShippedClass,
    StartReport,
    pack,
)

_KINDS = {
    int(kind): kind
    for kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )
}


class AgentHost:
    """Base of every host for a class without async methods."""

    _sm_init: AgentInit
    _sm_channel: ControlChannel
    _sm_runs: TaskRuns
    #: The user's object; None: it is not built.
    _sm_object: UserObject = None
    #: Why it could not be built.
    _sm_error = ""
    _sm_restored: bool | None = None
    #: Whether the object was built, and its saved state could not be restored.
    _sm_restore_failed = False
    #: The accelerators that it may use; None: those that Ray gave to this actor.
    _sm_gpu_ids: tuple[str, ...] | None = None

    def __init__(
        self,
        init: bytes,
        supervisor: ActorHandle,
        refs: Sequence[ObjectRef],
        nested: Sequence[ObjectRef],
    ) -> None:
        self._sm_begin(init, supervisor)
        mark_this_process(self._sm_init.mark)
        restarted = self._sm_init.may_restart and restarted_by_ray()
        if restarted:
            # Processes that the former process started must not use the resources of this one.
            kill(marked(self._sm_init.mark))
        self._sm_build(refs, nested, restarted=restarted)
        if restarted:
            self._sm_channel.agent_restarted(self._sm_describe())

    def schedulemesh_report(self) -> bytes:
        """A packed StartReport: the agent's node and capabilities, or why its object could not be built."""
        return self._sm_report()

    def schedulemesh_run(self, order: bytes) -> bytes:
        """Run a task as a RunOrder says; returns a packed RunReport, and the same one if called again."""
        run = decoded_order(order)
        report, first = self._sm_runs.claim(run.task_id)
        if first:
            with self._sm_channel.running:
                report.set_result(self._sm_run_end(run))
        return report.result()

    def _sm_run_end(self, run: RunOrder) -> bytes:
        try:
            value = self._sm_runs.call_of(run, self._sm_object)()
        except BaseException as error:  # user code raises anything
            if _is_terminated(error):
                raise  # the process ends, which is no failure of the run
            return self._sm_runs.raised(run, error)
        return self._sm_runs.returned(run, value)

    def _sm_begin(self, init: bytes, supervisor: ActorHandle) -> None:
        self._sm_init = msgspec.msgpack.decode(init, type=AgentInit)
        link_log_files(self._sm_init, log_files())
        os.environ.update(self._sm_init.array)
        if self._sm_init.fills_group:
            hide_placement_group()
        if self._sm_init.world_size:
            set_environment(self._sm_init.rank, self._sm_init.world_size)
        self._sm_channel = ControlChannel(self._sm_init, supervisor)
        self._sm_runs = TaskRuns(self._sm_channel.was_cancelled)
        self._sm_channel.report_of = self._sm_runs.report_of
        if self._sm_init.job is None:
            self._sm_channel.begin_exec = self._sm_begin_exec
        set_current(self._sm_channel)

    def _sm_begin_exec(self, order: bytes) -> None:
        """Start a command beside this process. Raises OSError where nobody takes its output."""
        from schedulemesh.core.agent.exec_host import begin_in_agent

        begin_in_agent(self._sm_init, order)

    def _sm_class(self) -> UserClass:
        """The user's class."""
        return load_class(msgspec.msgpack.decode(self._sm_init.shipped, type=ShippedClass))

    def _sm_build(
        self, refs: Sequence[ObjectRef], nested: Sequence[ObjectRef], *, restarted: bool = False
    ) -> None:
        """Build the user's object. Nothing that its code raises leaves this process as an object: Ray would
        have the supervisor unpickle it.
        """
        try:
            if restarted:
                self._sm_init = self._sm_channel.init_after_restart()
            else:
                self._sm_channel.begin_start()
            self._sm_object = self._sm_built(refs, nested)
        except BaseException as error:  # noqa: BLE001  # user code raises anything
            self._sm_error = error_text(error)
            return
        finally:
            self._sm_channel.end_start()
        self._sm_channel.attach(self._sm_object)

    def _sm_built(self, refs: Sequence[ObjectRef], nested: Sequence[ObjectRef]) -> UserObject:
        init, cls = self._sm_init, self._sm_class()
        args: tuple[UserValue, ...] = ()
        kwargs: dict[str, UserValue] = {}
        if init.arguments is not None:
            args, kwargs = load_arguments(init.arguments, _resolved(refs), nested)
        if init.world_size:
            kwargs = {**kwargs, **rank_arguments(cls, args, kwargs, init.rank, init.world_size)}
        if init.job is not None:
            kwargs = {**kwargs, "job": init.job}
        self._sm_channel.enter_phase("constructor")
        built = cls(init.agent_name, init.labels, *args, **kwargs)
        if init.job is not None:
            # What is kept of a job beside its folder is no state of its runner, and the runner of an adopted
            # one does not say.
            begins_from_saved = getattr(built, "begins_from_saved", lambda: None)
            self._sm_restored = begins_from_saved()
        elif init.saved is not None:
            self._sm_restore_failed = True
            self._sm_restored = _restore(built, init.saved)
            self._sm_restore_failed = False
        return built

    def _sm_report(self) -> bytes:
        if not self._sm_error:
            self._sm_channel.start()
        return pack(self._sm_describe())

    def _sm_describe(self) -> StartReport:
        context = ray.get_runtime_context()
        gpu_ids = self._sm_gpu_ids
        if gpu_ids is None:
            gpu_ids = tuple(context.get_accelerator_ids().get("GPU", ()))
        return StartReport(
            node_id=context.get_node_id(),
            pid=os.getpid(),
            gpu_ids=gpu_ids,
            capabilities=self._sm_channel.capabilities(),
            state_restored=self._sm_restored,
            error=self._sm_error,
            restore_failed=self._sm_restore_failed,
        )


class AsyncAgentHost(AgentHost):
    """Base of every host for a class with async methods; Ray runs all its methods on one loop."""

    async def schedulemesh_report(self) -> bytes:  # type: ignore[override]  # Ray awaits it
        """See AgentHost."""
        self._sm_channel.loop = asyncio.get_running_loop()
        return self._sm_report()

    async def schedulemesh_run(self, order: bytes) -> bytes:  # type: ignore[override]  # Ray awaits it
        """See AgentHost."""
        self._sm_channel.loop = asyncio.get_running_loop()
        run = decoded_order(order)
        report, first = self._sm_runs.claim(run.task_id)
        if not first:
            return await asyncio.wrap_future(report)
        with self._sm_channel.running:
            report.set_result(await self._sm_awaited_end(run))
        return report.result()

    async def _sm_awaited_end(self, run: RunOrder) -> bytes:
        try:
            value = self._sm_runs.call_of(run, self._sm_object)()
            if inspect.isawaitable(value):
                value = await value
        except BaseException as error:  # noqa: BLE001  # user code raises anything
            return self._sm_runs.raised(run, error)
        return self._sm_runs.returned(run, value)


def host_class(
    shipped: ShippedClass,
    bases: tuple[type[AgentHost], type[AgentHost]] = (AgentHost, AsyncAgentHost),
) -> type:
    """A host class with the user's class's name and methods; made without loading that class.

    ``bases``: what it is made of, without async methods and with.
    """
    body = {method.name: _forward(method) for method in shipped.methods}
    return type(shipped.name, (bases[shipped.is_async],), body)


def _is_terminated(error: BaseException) -> bool:
    """Whether this is what Ray raises where SIGTERM ends the process, as it does when the placement group of
    an actor is removed or its node is shut down.
    """
    return isinstance(error, SystemExit) and "SIGTERM" in getattr(error, "ray_terminate_msg", "")


def _resolved(refs: Sequence[ObjectRef]) -> Sequence[UserValue]:
    """The values of references that stand as whole arguments. They are read here and not by Ray, so that one
    that stands for an error is an error of this agent alone.
    """
    return _beside_the_loop(fetched_all, refs) if refs else ()


def _restore(built: UserObject, saved: bytes) -> bool:
    """Call the object's ``restore_state`` with the saved state; False: its class has no such method, or no
    state was saved.
    """
    take = getattr(built, "restore_state", None)
    stored = msgspec.msgpack.decode(saved, type=SavedState)
    if take is None or stored.state is None or not stored.restorable:
        return False
    result = take(cloudpickle.loads(stored.state))
    if inspect.iscoroutine(result):
        _beside_the_loop(asyncio.run, result)
    return True


def _beside_the_loop(call: UserFunction, *args: UserValue) -> UserValue:
    """Call on a thread, because Ray builds the object of a class with async methods on their loop."""
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(call, *args).result()


def _forward(method: Method) -> UserFunction:
    """A method that calls the user's one of the same name, of the same kind and signature."""
    make = {
        "sync": _forward_sync,
        "generator": _forward_generator,
        "async": _forward_async,
        "async_generator": _forward_async_generator,
    }[method.kind]
    forward = make(method.name)
    forward.__name__ = forward.__qualname__ = method.name
    for key, value in method.ray_attributes.items():
        setattr(forward, key, value)
    self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [
        inspect.Parameter(
            p.name,
            _KINDS[p.kind],
            default=None if p.has_default else inspect.Parameter.empty,
        )
        for p in method.parameters
    ]
    signature = inspect.Signature([self_parameter, *parameters], __validate_parameters__=False)
    forward.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return forward


def _forward_sync(name: str) -> UserFunction:
    def forward(self: AgentHost, *args: UserValue, **kwargs: UserValue) -> UserValue:
        with self._sm_channel.running:
            return getattr(self._sm_object, name)(*args, **kwargs)

    return forward


def _forward_generator(name: str) -> UserFunction:
    def forward(self: AgentHost, *args: UserValue, **kwargs: UserValue) -> Iterator[UserValue]:
        with self._sm_channel.running:
            yield from getattr(self._sm_object, name)(*args, **kwargs)

    return forward


def _forward_async(name: str) -> UserFunction:
    async def forward(self: AgentHost, *args: UserValue, **kwargs: UserValue) -> UserValue:
        # Of an agent that Ray restarted no report was requested, which sets the loop otherwise.
        self._sm_channel.loop = asyncio.get_running_loop()
        with self._sm_channel.running:
            return await getattr(self._sm_object, name)(*args, **kwargs)

    return forward


def _forward_async_generator(name: str) -> UserFunction:
    async def forward(
        self: AgentHost, *args: UserValue, **kwargs: UserValue
    ) -> AsyncIterator[UserValue]:
        with self._sm_channel.running:
            async for item in getattr(self._sm_object, name)(*args, **kwargs):
                yield item

    return forward
