"""Starts one agent: creates its actor or uses a warm host, waits for its report, and reports failures."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable

import msgspec

from schedulemesh.domain.agent import AgentSpec, Death
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.messages.instructions import StartAgent
from schedulemesh.engine.messages.stimuli import AgentReported, AgentStartFailed
from schedulemesh.protocol.agents import (
    AgentInit,
    MessageError,
    Report,
    line_and_traceback,
    pack,
    unpack,
    writable,
)
from schedulemesh.runtime.backend import (
    AgentRequest,
    Backend,
    BackendError,
    BundleSlot,
    Handle,
    Refs,
)
from schedulemesh.runtime.placement_watch import unplaced

logger = logging.getLogger(__name__)

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
    refs: Refs
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
    def warm_init(self) -> bytes:
        """The init message for a warm host, which has the class and a mark already."""
        return pack(msgspec.structs.replace(self.init, shipped=b"", mark=0))

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
        return AgentRequest(
            class_key=self.order.agent.class_key,
            shipped=self.shipped,
            name=address[1],
            namespace=address[0],
            resources=own_need(self.order.agent),
            node_id=self.order.node_id,
            slot=self.slot if self.in_group else None,
            options=options,
            init=pack(self.init),
            refs=self.refs,
        )

    def reported(self, report: Report, address: tuple[str, str]) -> AgentReported:
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

    def failed(
        self,
        error: str,
        reason: Reason = Reason.AGENT_START_FAILED,
        *,
        restore_failed: bool = False,
        death: Death | None = None,
    ) -> AgentStartFailed:
        """It could not be made; see ``start_failed``."""
        return start_failed(self.order, error, reason, restore_failed=restore_failed, death=death)


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


def start_failed(
    order: StartAgent,
    error: str,
    reason: Reason = Reason.AGENT_START_FAILED,
    *,
    restore_failed: bool = False,
    death: Death | None = None,
) -> AgentStartFailed:
    """The agent could not be made. ``restore_failed``: because its saved state could not be restored;
    ``death``: because its process died so.
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
    )


async def first_report(
    backend: Backend, start: AgentStart, handle: Handle, answer: Awaitable[object]
) -> Report | NoReport:
    """The host's first report, which ``answer`` is to give, or why there is none.

    An agent with an assigned place for which Ray has no room is given up within about a second, in a
    placement group within three: others use the room, and waiting does not free it.
    """
    call = asyncio.ensure_future(answer)
    watches = []
    if start.is_pinned:
        watches.append(asyncio.ensure_future(unplaced(backend, handle, in_group=start.in_group)))
    try:
        await asyncio.wait(
            {call, *watches}, timeout=start.timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        for watch in watches:
            watch.cancel()
    if not call.done():
        call.cancel()
        if any(watch.done() for watch in watches):
            return NoReport(error="Ray has no room for it", reason=NO_ROOM_IN_RAY)
        return await _too_late(backend, start, handle)
    try:
        report = unpack(call.result(), Report)
    except MessageError as error:
        return NoReport(error=f"its first report cannot be read: {error}")
    except BackendError as error:
        return await _died(backend, handle, error)
    if report.error:
        return NoReport(error=report.error, restore_failed=report.restore_failed)
    return report


async def _died(backend: Backend, handle: Handle, error: BackendError) -> NoReport:
    """How the process died that was to build the object, or could not be made."""
    try:
        death = await backend.death_of(handle)
    except BackendError:
        death = None
    if death is None:
        message = f"its process died while the class was loaded and built. {error}"
        return NoReport(error=message, died=True)
    return NoReport(error=f"its process {death.how}", died=True, death=death)


async def _too_late(backend: Backend, start: AgentStart, handle: Handle) -> NoReport:
    """What it was doing when its time was over."""
    late = f"not ready after start_timeout = {start.timeout_s:g} s"
    try:
        view = await backend.actor(handle)
        waits = view is not None and not view.has_process and await backend.waits_for_room(handle)
    except BackendError as unknown:
        error = f"{late}, and what it was doing cannot be found out: {unknown}"
        return NoReport(error=error, reason=Reason.AGENT_START_TIMEOUT)
    if view is None or view.has_process:
        error = (
            f"{late}: its class was still loading or its constructor running; the process was ended"
        )
        return NoReport(error=error, reason=Reason.AGENT_START_TIMEOUT)
    if waits:
        error = (
            f"{late}: Ray has found no room for it; look at its ray_options and at what else runs"
        )
        return NoReport(error=error, reason=NO_ROOM_IN_RAY)
    error = (
        f"{late}: Ray was still starting its process; look at its ray_options and its runtime_env"
    )
    return NoReport(error=error, reason=Reason.AGENT_START_TIMEOUT)


def own_need(agent: AgentSpec) -> Resources:
    """What the agent's own actor takes: the first of its bundles, or all. Nothing of a claim that is for what
    it starts: that of a job, and bundles of which it leaves the first free.
    """
    if agent.job is not None or not agent.driver_bundle:
        return NOTHING
    return agent.bundles[0] if agent.bundles else agent.resources
