"""Starts one agent: creates its actor or uses a warm host, waits for its report, and reports failures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Mapping
from math import ceil

import msgspec

from schedulemesh.domain.agent import START_PHASES, AgentSpec, Death, StartLimits
from schedulemesh.domain.numbers import MAX_TIMEOUT_S
from schedulemesh.domain.payloads import GangPayload, JobPayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.messages.instructions import StartAgent
from schedulemesh.engine.messages.stimuli import AgentReported, AgentStartFailed
from schedulemesh.protocol.agents import (
    AgentInit,
    MessageError,
    StartReport,
    line_and_traceback,
    pack,
    unpack,
    writable,
)
from schedulemesh.runtime.agents.placement_watch import unplaced
from schedulemesh.runtime.backend import (
    AgentRequest,
    Backend,
    BackendError,
    BundleSlot,
    Handle,
    Refs,
)

logger = logging.getLogger(__name__)

#: Seconds that Ray lets the setup of a runtime environment take where nothing else is said.
_RAY_SETUP_S = 600.0
#: What of a runtime environment takes no time to set up.
SET_AT_ONCE = frozenset({"config", "env_vars"})

#: The reason of a start that failed because Ray had no free resources.
NO_ROOM_IN_RAY = Reason.CLUSTER_OUT_OF_RESOURCES


class ReadyWarmHost(msgspec.Struct, frozen=True, kw_only=True):
    """A warm host: its class is loaded, its object not constructed."""

    handle: Handle
    #: In Ray, in the scheduler's namespace.
    name: str


class AgentStart(msgspec.Struct, frozen=True, kw_only=True):
    """An agent to be started, with everything that is needed for it."""

    order: StartAgent
    shipped: bytes
    init: AgentInit
    #: The same packed, for a process of its own; and for a warm host, which has the class and a mark already.
    #: Done before, beside the event loop, because it contains the saved state. Empty: there is no warm host.
    packed: bytes
    packed_for_warm_host: bytes = b""
    refs: Refs
    #: The policy's ``start_timeout``.
    timeout_s: float
    #: The placement group in which it runs; None: it runs in no group.
    slot: BundleSlot | None = None
    #: The host that builds its object; None: a new process does.
    ready: ReadyWarmHost | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Its name and incarnation."""
        return self.order.agent.name, self.order.incarnation

    @property
    def has_environment(self) -> bool:
        """Whether Ray sets up a runtime environment before it starts the process."""
        is_sent = self.init.job is not None and bool(self.init.job.working_dir)
        return is_sent or bool(self.environment.keys() - SET_AT_ONCE)

    @property
    def environment(self) -> Mapping[str, object]:
        """The runtime environment in its Ray options."""
        return environment_of(self.order.agent)

    @property
    def limits(self) -> dict[str, float]:
        """Seconds for each phase of the start: as the agent says; else of an environment what Ray's own limit
        is, and of all others the policy's ``start_timeout``.
        """
        start_limits = self.order.agent.start_limits or StartLimits()
        environment = environment_limit(self.environment) if self.has_environment else None
        return {
            "environment": start_limits.environment or environment or self.timeout_s,
            "load": start_limits.load or self.timeout_s,
            "constructor": start_limits.constructor or self.timeout_s,
        }

    @property
    def is_pinned(self) -> bool:
        """Whether the engine chose its node or group, and it needs resources there."""
        placed = self.order.node_id is not None or self.slot is not None
        return placed and self.ready is None and not self.order.adopt

    @property
    def in_group(self) -> bool:
        """Whether its actor runs in a placement group of Ray."""
        return self.slot is not None and not self.slot.shape.virtual

    def request(self, address: tuple[str, str]) -> AgentRequest:
        """The actor of a host of its own, with this (namespace, name)."""
        options = json.loads(self.order.agent.options)
        for decided in ("name", "namespace"):
            options.pop(decided, None)
        job = self.init.job
        if job is not None and job.working_dir:
            env = options.get("runtime_env") or {}
            options["runtime_env"] = {**env, "working_dir": job.working_dir}
        start_limits = self.order.agent.start_limits
        if (
            start_limits is not None
            and start_limits.environment is not None
            and self.has_environment
        ):
            env = options.get("runtime_env") or {}
            config = {
                **(env.get("config") or {}),
                "setup_timeout_seconds": ceil(start_limits.environment),
            }
            options["runtime_env"] = {**env, "config": config}
        return AgentRequest(
            class_key=self.order.agent.class_key,
            shipped=self.shipped,
            name=address[1],
            namespace=address[0],
            resources=own_need(self.order.agent),
            node_id=self.order.node_id,
            slot=self.slot if self.in_group else None,
            options=options,
            init=self.packed,
            refs=self.refs,
        )

    def reported(self, report: StartReport, address: tuple[str, str]) -> AgentReported:
        """It runs."""
        agent = self.order.agent
        return AgentReported(
            agent_name=agent.name,
            incarnation=self.order.incarnation,
            node_id=report.node_id,
            gpu_ids=report.gpu_ids,
            pid=report.pid,
            capabilities=report.capabilities,
            actor_name=address[1],
            actor_namespace=address[0],
            state_restored=report.state_restored,
        )


class StartProgress:
    """Which phase of its start a process is in, and since when, as its host tells where that takes long."""

    def __init__(
        self, phase: str, limits: Mapping[str, float], *, has_environment: bool = False
    ) -> None:
        self.phase, self.limits = phase, limits
        #: Whether Ray sets up a runtime environment in the first phase.
        self.has_environment = has_environment
        self._time = asyncio.get_running_loop().time
        self._since = self._time()
        self._changed = asyncio.Event()

    @classmethod
    def of(cls, start: AgentStart) -> StartProgress:
        """That of a start which begins now; a warm host has its process already."""
        phase = "environment" if start.ready is None else "load"
        return cls(phase, start.limits, has_environment=start.has_environment)

    def enter(self, phase: str, ago_s: float) -> None:
        """It has been in this phase for so many seconds. One that is behind the present phase is ignored."""
        if phase in START_PHASES[START_PHASES.index(self.phase) + 1 :]:
            self.phase, self._since = phase, self._time() - max(0.0, ago_s)
            self._changed.set()

    @property
    def limit_s(self) -> float:
        """The limit of the phase."""
        return self.limits[self.phase]

    def seconds(self) -> float:
        """For how long it has been in this phase."""
        return self._time() - self._since

    async def overdue(self) -> None:
        """Return when the present phase has taken longer than it may."""
        while (left_s := self.limit_s - self.seconds()) > 0:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)


class NoReport(msgspec.Struct, frozen=True, kw_only=True):
    """Why a host has not said that its object is built."""

    error: str
    reason: Reason = Reason.AGENT_START_FAILED
    #: Whether its process is dead, for a reason that need not be the user's class.
    died: bool = False
    #: Whether its saved state could not be restored.
    restore_failed: bool = False
    #: How its process died; None: it did not, or that is not known.
    death: Death | None = None
    #: Whether it died with its node.
    room_lost: bool = False


def start_failed(
    order: StartAgent,
    error: str,
    reason: Reason = Reason.AGENT_START_FAILED,
    *,
    restore_failed: bool = False,
    death: Death | None = None,
    room_lost: bool = False,
) -> AgentStartFailed:
    """The agent could not be made. ``restore_failed``: because its saved state could not be restored;
    ``death``: because its process died so; ``room_lost``: because its node or placement group is lost.
    """
    logger.warning("agent %s did not start: %s", order.agent.name, error)
    line, detail = line_and_traceback(error)
    if death is not None and death.detail:
        detail = writable(death.detail)
    return AgentStartFailed(
        agent_name=order.agent.name,
        incarnation=order.incarnation,
        reason=reason,
        error=f"agent {order.agent.name!r}: {line}",
        detail=detail,
        restore_failed=restore_failed,
        death=None if death is None else msgspec.structs.replace(death, detail=""),
        room_lost=room_lost,
    )


def packed_for_warm_host(init: AgentInit) -> bytes:
    """The init message for a warm host."""
    return pack(msgspec.structs.replace(init, shipped=b"", mark=0))


async def first_report(
    backend: Backend,
    start: AgentStart,
    handle: Handle,
    answer: Awaitable[object],
    progress: StartProgress,
) -> StartReport | NoReport:
    """The host's first report, which ``answer`` is to give, or why there is none. ``progress``: how far its
    start is.

    An agent with an assigned place for which Ray has no room is given up within about a second, in a
    placement group within three: others use the room, and waiting does not free it.
    """
    call = asyncio.ensure_future(answer)
    overdue, watches = asyncio.ensure_future(progress.overdue()), []
    if start.is_pinned:
        watches.append(asyncio.ensure_future(unplaced(backend, handle, in_group=start.in_group)))
    try:
        await asyncio.wait({call, overdue, *watches}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for watch in (overdue, *watches):
            watch.cancel()
    if not call.done():
        call.cancel()
        if any(watch.done() for watch in watches):
            return NoReport(error="Ray has no room for it", reason=NO_ROOM_IN_RAY)
        return await _too_late(backend, start, handle, progress)
    try:
        report = unpack(call.result(), StartReport)
    except MessageError as error:
        return NoReport(error=f"its first report cannot be read: {error}")
    except BackendError as error:
        return await _death_report(backend, handle, error)
    if report.error:
        return NoReport(error=report.error, restore_failed=report.restore_failed)
    return report


async def _death_report(backend: Backend, handle: Handle, error: BackendError) -> NoReport:
    """How the process died that was to build the object, or could not be made."""
    try:
        death = await backend.death_of(handle)
        room_lost = await backend.has_lost_room(handle)
    except BackendError:
        death, room_lost = None, False
    if death is None:
        message = f"its process died while the class was loaded and built. {error}"
        return NoReport(error=message, died=True)
    how = f"its process {death.how}"
    return NoReport(error=how, died=True, death=death, room_lost=room_lost)


async def _too_late(
    backend: Backend, start: AgentStart, handle: Handle, progress: StartProgress
) -> NoReport:
    """What it was doing when its time was over."""
    phase, limit = progress.phase, f"start_timeout = {progress.limit_s:g} s"
    if getattr(start.order.agent.start_limits, phase, None) is not None:
        limit = f"{progress.limit_s:g} s (start_limits[{phase!r}])"
    elif phase == "environment" and start.has_environment:
        limit = f"{progress.limit_s:g} s (setup_timeout_seconds of runtime_env['config'])"
    late = f"not ready after {limit}"
    if phase != "environment":
        was = "its class was still loading" if phase == "load" else "its constructor was running"
        error = f"{late}: {was}; the process was ended"
        return NoReport(error=error, reason=Reason.AGENT_START_TIMEOUT)
    try:
        view = await backend.actor(handle)
        waits = view is not None and not view.has_process and await backend.waits_for_room(handle)
    except BackendError as unknown:
        error = f"{late}, and what it was doing cannot be found out: {unknown}"
        return NoReport(error=error, reason=Reason.AGENT_START_TIMEOUT)
    if waits:
        error = (
            f"{late}: Ray has found no room for it; look at its ray_options and at what else runs"
        )
        return NoReport(error=error, reason=NO_ROOM_IN_RAY)
    if view is None or view.has_process:
        was = "its class was still loading or its constructor running; the process was ended"
    elif start.has_environment:
        was = "Ray was still setting up its runtime environment"
    else:
        was = "Ray was still starting its process; look at its ray_options"
    return NoReport(error=f"{late}: {was}", reason=Reason.AGENT_START_TIMEOUT)


def environment_of(agent: AgentSpec) -> Mapping[str, object]:
    """The runtime environment in an agent's Ray options; empty: there is none, or it is none."""
    environment = json.loads(agent.options).get("runtime_env")
    return environment if isinstance(environment, dict) else {}


def environment_limit(environment: Mapping[str, object]) -> float:
    """Seconds that Ray lets an attempt to set up a runtime environment take; its default is 600."""
    config = environment.get("config")
    seconds = config.get("setup_timeout_seconds") if isinstance(config, dict) else None
    if not isinstance(seconds, int):
        return _RAY_SETUP_S
    return float(seconds) if seconds > 0 else MAX_TIMEOUT_S


def fills_group(agent: AgentSpec) -> bool:
    """Whether it leaves no GPU of its placement group to what it starts: its process takes the only bundle,
    or it is a gang, whose members take all of them.
    """
    alone = isinstance(agent.payload, GangPayload) or len(agent.bundles) <= 1
    return alone and bool(own_need(agent).gpu)


def own_need(agent: AgentSpec) -> Resources:
    """What the agent's own actor takes: the first of its bundles, or all. Nothing of a claim that is for what
    it starts: that of a job, and bundles of which it leaves the first free.
    """
    if isinstance(agent.payload, JobPayload) or not agent.driver_bundle:
        return NOTHING
    return agent.bundles[0] if agent.bundles else agent.resources
