"""The warm pool: keeps warm hosts in reserved placement groups, with the class loaded in advance."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable

import msgspec

from schedulemesh.api.pools import WarmHosts
from schedulemesh.domain.placement import WarmSpec
from schedulemesh.engine.messages.instructions import StartAgent
from schedulemesh.engine.state.groups import Group, GroupPhase
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.protocol.agents import Accelerators, Handled, MessageError, unpack
from schedulemesh.runtime.agents.process_cleanup import ActorLocation
from schedulemesh.runtime.agents.registry import READY, Agents
from schedulemesh.runtime.agents.start import ReadyWarmHost, own_need
from schedulemesh.runtime.backend import (
    Backend,
    BackendError,
    BackendTimeoutError,
    BundleSlot,
    Handle,
    WarmHostRequest,
)
from schedulemesh.runtime.groups.manager import Groups

logger = logging.getLogger(__name__)

#: Hosts that are created at a time; each loads a class, which takes a core.
_AT_A_TIME = 2
#: Seconds from the use of a host to its replacement, whose process must not slow the agent's start.
REPLACED_AFTER_S = 1.0
#: Attempts in a row that may fail for another reason than the class; then no more are made.
_TRIES = 3
#: Seconds that a query for the accelerators of a bundle may take.
_PROBE_S = 30.0


class _Host(msgspec.Struct, kw_only=True):
    """A warm host that is ready or starting."""

    name: str
    group_id: str
    class_key: str
    options: str
    handle: Handle | None = None
    ready: bool = False


class WarmPool:
    """The warm hosts of one scheduler's groups. A host is used once, and the next supervisor ends it."""

    def __init__(
        self,
        backend: Backend,
        agents: Agents,
        groups: Groups,
        spawn: Callable[[Coroutine[object, object, None]], None],
        class_bytes: Callable[[str], Awaitable[bytes | None]],
    ) -> None:
        self._backend = backend
        self._agents = agents
        self._groups = groups
        self._spawn = spawn
        self._class_bytes = class_bytes
        self._hosts: dict[str, list[_Host]] = {}
        #: By group; queried once, because a bundle keeps its devices.
        self._accelerators: dict[str, Accelerators] = {}
        #: By group, on the monotonic clock: when the next host may be created.
        self._not_before: dict[str, float] = {}
        #: By pool: failed attempts in a row, and why no more are made.
        self._failed: dict[str, int] = {}
        self._errors: dict[str, str] = {}
        self._at_once = asyncio.Semaphore(_AT_A_TIME)
        #: By pool: how many agents were started by a warm host.
        self.warm_starts: dict[str, int] = {}

    def take(self, order: StartAgent) -> ReadyWarmHost | None:
        """A warm host for this agent, which nobody else gets; None: the agent starts cold."""
        if order.group_id is None or order.adopt or not self._may_use(order):
            return None
        agent = order.agent
        for host in self._hosts.get(order.group_id, []):
            same = (host.class_key, host.options) == (agent.class_key, agent.options)
            if host.handle is not None and host.ready and same:
                self._hosts[order.group_id].remove(host)
                self._not_before[order.group_id] = time.monotonic() + REPLACED_AFTER_S
                started = self.warm_starts.get(agent.pool_name, 0)
                self.warm_starts[agent.pool_name] = started + 1
                return ReadyWarmHost(handle=host.handle, name=host.name)
        return None

    def reconcile(self, state: MeshState) -> None:
        """Terminate the hosts that are no longer needed, and start the missing ones."""
        for group_id, hosts in list(self._hosts.items()):
            warm = warm_spec_of(state, group_id)
            fit = [] if warm is None else [h for h in hosts if _serves(h, warm)][: warm.count]
            for host in [h for h in hosts if h not in fit]:
                self._drop(host)
        for group_id, group in state.groups.by_id.items():
            warm = warm_spec_of(state, group_id)
            if warm is not None and self._may_make(group):
                for _ in range(warm.count - len(self._hosts.get(group_id, []))):
                    self._begin(group, warm, state)

    def names(self) -> set[str]:
        """The actors of all warm hosts."""
        return {h.name for hosts in self._hosts.values() for h in hosts if h.ready}

    def all_names(self) -> set[str]:
        """The actors of all warm hosts, ready or starting."""
        return {host.name for hosts in self._hosts.values() for host in hosts}

    def names_in(self, group_id: str) -> set[str]:
        """The actors of the warm hosts in a group, ready or starting."""
        return {host.name for host in self._hosts.get(group_id, [])}

    def mark_dead(self, names: Iterable[str]) -> None:
        """These actors have died."""
        dead = set(names)
        for hosts in list(self._hosts.values()):
            for host in [h for h in hosts if h.name in dead]:
                logger.warning("warm host %s is gone", host.name)
                self._drop(host)

    async def leave(self, group_id: str) -> None:
        """Terminate the warm hosts in a group that is about to be removed."""
        hosts = self._hosts.pop(group_id, [])
        await asyncio.gather(*(self._end(host) for host in hosts))
        self._accelerators.pop(group_id, None)
        self._not_before.pop(group_id, None)

    async def remove_all(self) -> None:
        """End all of them."""
        await asyncio.gather(*(self.leave(group_id) for group_id in list(self._hosts)))

    def forgive(self, pool_name: str) -> None:
        """The pool was defined again: retry what failed."""
        self._failed.pop(pool_name, None)
        self._errors.pop(pool_name, None)

    def status(self, state: MeshState, pool_name: str) -> WarmHosts:
        """How many hosts of a pool are ready and starting, and why no more are made."""
        pool_hosts = [
            host
            for group_id, hosts in self._hosts.items()
            if (group := state.groups.by_id.get(group_id)) and group.pool_name == pool_name
            for host in hosts
        ]
        ready = sum(host.ready for host in pool_hosts)
        errors = [self._errors[pool_name]] if pool_name in self._errors else []
        return {"ready": ready, "starting": len(pool_hosts) - ready, "errors": errors}

    def _may_use(self, order: StartAgent) -> bool:
        """Whether the agent takes the bundle, and all GPUs of it; a warm host sees them all."""
        slot = self._groups.slot(order.group_id or "")
        if slot is None or not order.agent.driver_bundle:
            return False
        return own_need(order.agent).gpu == slot.shape.bundles[0].gpu

    def _may_make(self, group: Group) -> bool:
        if group.pool_name in self._errors or self._groups.slot(group.group_id) is None:
            return False
        needs_probe = group.shape.bundles[0].gpu and group.group_id not in self._accelerators
        if needs_probe and (group.agent is not None or group.promised_to is not None):
            return False
        return time.monotonic() >= self._not_before.get(group.group_id, 0.0)

    def _begin(self, group: Group, warm: WarmSpec, state: MeshState) -> None:
        host = _Host(
            name=self._agents.mark(f"{READY}{group.group_id}:{secrets.token_hex(4)}"),
            group_id=group.group_id,
            class_key=warm.class_key,
            options=warm.options,
        )
        self._hosts.setdefault(group.group_id, []).append(host)
        self._spawn(self._start(host, group.pool_name, state.policy.start_timeout))

    async def _start(self, host: _Host, pool_name: str, timeout_s: float) -> None:
        """Start the actor of a host, which is ready once its class is loaded; else it is dropped. If the
        class does not load, the pool gets no further hosts until it is defined anew.
        """
        async with self._at_once:
            try:
                error = await self._load_error(host, timeout_s)
            except (BackendError, MessageError, TimeoutError, asyncio.TimeoutError) as failed:
                self._fail(host, pool_name, str(failed) or f"not ready after {timeout_s:g} s")
                return
            except Exception as failed:  # logged: otherwise it would count as starting for ever
                logger.exception("a warm host of pool %s was not made", pool_name)
                self._fail(host, pool_name, repr(failed))
                return
        if error:
            self._errors[pool_name] = error
            logger.warning(
                "the class for warm hosts of pool %s does not load: %s", pool_name, error
            )
        if error or host.handle is None or not self._is_wanted(host):
            self._drop(host)
            return
        self._failed.pop(pool_name, None)
        host.ready = True

    async def _load_error(self, host: _Host, timeout_s: float) -> str:
        """Start the actor, have it load the class, and return why it cannot; empty: the class is loaded, or
        no actor was started, because the group has no room for one now (``host.handle`` is None then).
        """
        shipped = await self._class_bytes(host.class_key)
        if shipped is None:
            return "its bytes are not stored any more; define the pool again"
        slot = self._groups.slot(host.group_id)
        if slot is None:
            return ""
        devices = await self._devices(host.group_id, slot)
        if devices is None or not self._is_wanted(host):
            return ""
        mark = self._agents.process_mark(self._agents.namespace, host.name)
        request = WarmHostRequest(
            class_key=host.class_key,
            shipped=shipped,
            name=host.name,
            namespace=self._agents.namespace,
            slot=slot,
            options=json.loads(host.options),
            accelerators=devices,
            mark=mark,
        )
        host.handle = self._backend.start_warm_host(request)
        call = self._backend.warm_host_report(host.handle)
        return unpack(await asyncio.wait_for(call, timeout_s), Handled).error

    async def _devices(self, group_id: str, slot: BundleSlot) -> Accelerators | None:
        """The GPUs of the group's first bundle, from a task that takes them all for a moment. None:
        somebody came to live there before.
        """
        if not slot.shape.bundles[0].gpu:
            return Accelerators()
        accelerators = self._accelerators.get(group_id)
        if accelerators is None:
            try:
                answer = await self._backend.accelerators(slot, _PROBE_S)
            except BackendTimeoutError:
                return None
            accelerators = self._accelerators[group_id] = unpack(answer, Accelerators)
        return accelerators

    def _is_wanted(self, host: _Host) -> bool:
        return host in self._hosts.get(host.group_id, [])

    def _fail(self, host: _Host, pool_name: str, error: str) -> None:
        """Something else than the class failed; retried a limited number of times."""
        if not self._is_wanted(host):
            self._drop(host)
            return
        tries = self._failed[pool_name] = self._failed.get(pool_name, 0) + 1
        logger.warning("a warm host of pool %s was not made: %s", pool_name, error)
        if tries >= _TRIES:
            self._errors[pool_name] = f"failed {tries} times, lastly: {error}"
        self._not_before[host.group_id] = time.monotonic() + 2.0**tries
        self._drop(host)

    def _drop(self, host: _Host) -> None:
        if self._is_wanted(host):
            self._hosts[host.group_id].remove(host)
        self._spawn(self._end(host))

    async def _end(self, host: _Host) -> None:
        """End the host, with the processes that its class started while it was loaded."""
        if host.handle is not None:
            place = ActorLocation(namespace=self._agents.namespace, actor_name=host.name)
            await self._agents.terminate(host.handle, place, host.name)


def warm_spec_of(state: MeshState, group_id: str) -> WarmSpec | None:
    """The warm hosts that a group should have; None: none."""
    group = state.groups.by_id.get(group_id)
    if group is None or not group.reserved or group.phase is not GroupPhase.READY:
        return None
    account = state.ledger.accounts.get(group.pool_name)
    spec = None if account is None else account.spec.groups
    return None if spec is None else spec.warm


def _serves(host: _Host, warm: WarmSpec) -> bool:
    return (host.class_key, host.options) == (warm.class_key, warm.options)
