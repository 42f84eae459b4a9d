"""The hand that makes and ends agents, and keeps their lines open."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

import msgspec
from ray.exceptions import RayError

from schedulemesh.core.agent.host import host_class
from schedulemesh.core.agent.warm_host import ready_host_class
from schedulemesh.core.backend.ray_backend import RayApi
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.engine.messages.stimuli import AgentReported, AgentStartFailed
from schedulemesh.engine.state.mesh_state import Agent
from schedulemesh.protocol.agents import Command, MessageError, Report, Result, ShippedClass, unpack
from schedulemesh.runtime.agent_start import Birth, NoReport, first_report
from schedulemesh.runtime.command_queue import Line
from schedulemesh.runtime.reported_metrics import ReportedMetrics

#: Hosts made for classes that are kept ready.
_CLASSES = 256


class _Parts(msgspec.Struct, kw_only=True):
    """What came of a large result so far."""

    limit_bytes: int
    size: int = 0
    taken: list[bytes] = []


class Agents:
    """Living agents by name: handles, lines and last metrics. Only what Ray knows, never what is decided."""

    def __init__(self, ray_api: RayApi, scheduler: str, namespace: str) -> None:
        self._ray = ray_api
        self._mark = f"schedulemesh:{scheduler}:"
        self.namespace = namespace
        self._epoch = 0
        #: When each was last heard of, on the monotonic clock.
        self._heard: dict[tuple[str, int], float] = {}
        self._handles: dict[tuple[str, int], Any] = {}
        #: (namespace, name) in Ray of actors that the journal does not know: see orphans.py.
        self.orphans: set[tuple[str, str]] = set()
        #: Where those live that began in a ready host, which had its name before.
        self._moved: dict[tuple[str, int], tuple[str, str]] = {}
        self._lines: dict[tuple[str, int], Line] = {}
        self._abilities: dict[tuple[str, int], tuple[str, ...]] = {}
        #: By class, and whether it stands ready.
        self._hosts: dict[tuple[str, bool], type] = {}
        self._results: dict[int, asyncio.Future[Result | None]] = {}
        #: Parts of large results, by command.
        self._parts: dict[int, _Parts] = {}
        self._next_command = 1
        self.metrics = ReportedMetrics()

    def handle(self, name: str, incarnation: int) -> Any:
        """The agent's Ray handle; None: it is not known to live."""
        return self._handles.get((name, incarnation))

    def can(self, name: str, incarnation: int, method: str) -> bool:
        """Whether the agent's class has this control method."""
        return method in self._abilities.get((name, incarnation), ())

    def address(self, spec: AgentSpec, incarnation: int) -> tuple[str, str]:
        """The agent's (namespace, name) in Ray: the user's own, or one that carries our mark."""
        options = json.loads(spec.options)
        if "name" in options:
            return options.get("namespace", self.namespace), options["name"]
        return self.namespace, self.mark(f"{spec.name}#{incarnation}")

    def where(self, agent: Agent) -> tuple[str, str]:
        """The (namespace, name) in Ray of an agent on the book, wherever it began."""
        if agent.actor_name:
            return agent.actor_namespace, agent.actor_name
        key = (agent.spec.name, agent.incarnation)
        return self._moved.get(key) or self.address(agent.spec, agent.incarnation)

    def mark(self, name: str) -> str:
        """A name in Ray that says whose it is."""
        return self._mark + name

    def strays(
        self, living: Iterable[tuple[str, str]], claimed: set[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        """Living actors that carry this scheduler's mark and that nobody claims."""
        marked = (a for a in living if a[0] == self.namespace and a[1].startswith(self._mark))
        return [address for address in marked if address not in claimed]

    def newest_incarnation(self, living: Iterable[tuple[str, str]]) -> int:
        """The highest incarnation in the names of living actors with this scheduler's mark."""
        numbers = [name.rpartition("#")[2] for _, name in self.strays(living, set())]
        return max((int(number) for number in numbers if number.isdigit()), default=0)

    def orphan_of(self, agent_name: str) -> str | None:
        """The name in Ray of an orphan of this agent; None: there is none."""
        mark = self.mark(f"{agent_name}#")
        return next((name for _, name in sorted(self.orphans) if name.startswith(mark)), None)

    def find(self, namespace: str, name: str) -> Any:
        """The handle of a living actor; None: there is none."""
        return self._ray.find_actor(name, namespace)

    def begin_epoch(self, epoch: int) -> None:
        """Commands carry this from now on, and their ids differ from those of former lives."""
        self._epoch, self._next_command = epoch, epoch << 32

    def adopt(self, agent: Agent) -> None:
        """Take over an agent that a former supervisor started."""
        key = (agent.spec.name, agent.incarnation)
        namespace, name = self.where(agent)
        self._handles[key] = self._ray.find_actor(name, namespace)
        self._lines[key], self._abilities[key] = Line(), agent.abilities
        self._heard[key] = time.monotonic()
        self.metrics.take_over(agent.spec.name)

    async def start(self, birth: Birth) -> AgentReported | AgentStartFailed:
        """Make the actor, or have a ready one build, and wait until the object is built; what failed leaves
        nothing alive.
        """
        key, ready = birth.key, birth.ready
        orphan = self.orphan_of(birth.order.agent.name)
        if orphan is not None and not birth.order.adopt:
            return birth.failed(
                f"an agent of this name lives as the orphan {orphan!r}, unknown to the journal that was put "
                "back; end it with end_orphans(), or choose another name"
            )
        address = self.address(birth.order.agent, birth.order.incarnation)
        if ready is not None:
            address = self._moved[key] = self.namespace, ready.name
        try:
            handle = ready.handle if ready is not None else self._actor(birth, address)
        except Exception as error:  # noqa: BLE001  # whatever it is must be answered
            return birth.failed(f"Ray refused to make the actor: {error}")
        self._handles[key], self._lines[key] = handle, Line()
        self._heard[key] = time.monotonic()
        report = await self._first_report(birth, handle)
        if isinstance(report, NoReport):
            wanted = key in self._handles
            await self.end(*key)
            if ready is not None and report.died and wanted:
                # It died while it stood ready, or in the constructor; a process of its own tells which.
                return await self.start(msgspec.structs.replace(birth, ready=None))
            return birth.failed(report.error, report.reason)
        self._abilities[key] = report.abilities
        return birth.reported(report, address)

    def _actor(self, birth: Birth, address: tuple[str, str]) -> Any:
        """The actor of a host of its own, new or made by a former supervisor."""
        if birth.order.adopt:
            return self._ray.find_actor(address[1], address[0])
        cls = self.host(birth.order.agent.class_key, birth.shipped)
        return self._ray.start_actor(birth.request(cls, address))

    async def _first_report(self, birth: Birth, handle: Any) -> Report | NoReport:
        if birth.ready is None:
            return await first_report(self._ray, birth.timeout_s, handle, "schedulemesh_report")
        return await first_report(
            self._ray, birth.timeout_s, handle, "schedulemesh_build", *birth.remaining_arguments
        )

    def hear(self, name: str, incarnation: int) -> None:
        """The host was heard of just now."""
        self._heard[name, incarnation] = time.monotonic()

    def reborn(self, name: str, incarnation: int) -> None:
        """Ray made the process anew."""
        self.hear(name, incarnation)
        line = self._lines.get((name, incarnation))
        if line is not None:
            line.renew()

    def silence_s(self, name: str, incarnation: int) -> float:
        """Seconds since the host was last heard of."""
        return time.monotonic() - self._heard.get((name, incarnation), float("-inf"))

    async def end(self, name: str, incarnation: int) -> None:
        """Kill the agent and wait until Ray knows it dead."""
        key = (name, incarnation)
        line = self._lines.pop(key, None)
        if line is not None:
            line.close()
        self._abilities.pop(key, None)
        self._heard.pop(key, None)
        self.metrics.forget(name, incarnation)
        self._moved.pop(key, None)
        await self.strike(self._handles.pop(key, None))

    async def strike(self, handle: Any) -> None:
        """Kill an actor of ours and wait until Ray knows it dead; None: there is none."""
        if handle is None:
            return
        self._ray.kill_actor(handle)
        try:
            # Every actor of Ray has this one, also a stray that is no host of ours.
            await self._ray.call(handle, "__ray_ready__")
        except RayError:
            return

    async def order(
        self, name: str, incarnation: int, kind: str, timeout_s: float, **fields: Any
    ) -> Result | None:
        """Have a host carry out a command; None: no answer in time, or there is no such agent any more."""
        line = self._lines.get((name, incarnation))
        if line is None:
            return None
        command = Command(command_id=self._next_command, epoch=self._epoch, kind=kind, **fields)
        self._next_command += 1
        answer: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()
        self._results[command.command_id] = answer
        self._parts[command.command_id] = _Parts(limit_bytes=command.limit_bytes)
        line.open.add(answer)
        line.send(command)
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except (asyncio.TimeoutError, TimeoutError):
            return None
        finally:
            line.open.discard(answer)
            line.drop(command)
            self._results.pop(command.command_id, None)
            self._parts.pop(command.command_id, None)

    def poll(self, name: str, incarnation: int) -> asyncio.Future[list[Command]]:
        """A host asks for commands. One that is not on the book, because it is being ended, has to wait."""
        line = self._lines.get((name, incarnation))
        if line is None:
            return Line().ask()
        self.hear(name, incarnation)
        return line.ask()

    def part(self, command_id: int, begin: int, data: object) -> bool:
        """A host sends a part of a large result; False: nobody waits for it, or it is not what is due."""
        parts = self._parts.get(command_id)
        if parts is None or type(data) is not bytes or begin != parts.size:
            return False
        if parts.size + len(data) > parts.limit_bytes:
            return False
        parts.taken.append(data)
        parts.size += len(data)
        return True

    def done(self, command_id: int, message: bytes) -> None:
        """A host answers a command; an answer that cannot be read is a failure of that command."""
        answer = self._results.get(command_id)
        if answer is None or answer.done():
            return
        try:
            answer.set_result(self._whole(command_id, unpack(message, Result)))
        except MessageError as error:
            answer.set_result(Result(error=str(error), success=False))

    def _whole(self, command_id: int, result: Result) -> Result:
        """The result with the parts that went ahead. Raises MessageError where some are missing."""
        if not result.part_bytes:
            return result
        parts = self._parts.pop(command_id, None)
        if parts is None or parts.size != result.part_bytes:
            raise MessageError("parts of the result are missing")
        return msgspec.structs.replace(result, data=b"".join(parts.taken))

    def host(self, class_key: str, shipped: bytes, *, ready: bool = False) -> type:
        """The host class for a user's class: made once, because Ray exports each class anew."""
        found = self._hosts.get((class_key, ready))
        if found is None:
            if len(self._hosts) >= _CLASSES:
                self._hosts.pop(next(iter(self._hosts)))
            make = ready_host_class if ready else host_class
            found = make(msgspec.msgpack.decode(shipped, type=ShippedClass))
            self._hosts[class_key, ready] = found
        return found
