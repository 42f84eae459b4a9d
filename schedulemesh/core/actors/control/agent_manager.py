"""The hand that makes and ends agents, and keeps their lines open."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterable
from typing import Any

import msgspec
from ray.exceptions import RayError

from schedulemesh.core.actors.control.line import Line
from schedulemesh.core.agent_host import host_class
from schedulemesh.core.ray_api import ActorRequest, RayApi
from schedulemesh.core.wire import Boot, Command, Report, Result, ShippedClass, pack
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.engine.facts import Devices
from schedulemesh.engine.instructions import StartAgent
from schedulemesh.engine.state import Agent
from schedulemesh.engine.stimuli import AgentReported, AgentStartFailed

logger = logging.getLogger(__name__)

#: Hosts made for classes that are kept ready.
_CLASSES = 256


class Agents:
    """Living agents by name: handles, lines and last metrics. Only what Ray knows, never what is decided."""

    def __init__(self, ray_api: RayApi, scheduler: str, namespace: str) -> None:
        self._ray = ray_api
        self._mark = f"schedulemesh:{scheduler}:"
        self._namespace = namespace
        self._epoch = 0
        #: When each was last heard of, on the monotonic clock.
        self._heard: dict[tuple[str, int], float] = {}
        self._handles: dict[tuple[str, int], Any] = {}
        self._lines: dict[tuple[str, int], Line] = {}
        self._abilities: dict[tuple[str, int], tuple[str, ...]] = {}
        self._hosts: dict[str, type] = {}
        self._results: dict[int, asyncio.Future[Result | None]] = {}
        self._next_command = 1
        #: By agent name.
        self.metrics: dict[str, dict[str, Any]] = {}

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
            return options.get("namespace", self._namespace), options["name"]
        return self._namespace, f"{self._mark}{spec.name}#{incarnation}"

    def strays(
        self, living: Iterable[tuple[str, str]], claimed: set[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        """Living actors that carry this scheduler's mark and that nobody claims."""
        marked = (a for a in living if a[0] == self._namespace and a[1].startswith(self._mark))
        return [address for address in marked if address not in claimed]

    def find(self, namespace: str, name: str) -> Any:
        """The handle of a living actor; None: there is none."""
        return self._ray.find_actor(name, namespace)

    def begin_epoch(self, epoch: int) -> None:
        """Commands carry this from now on, and their ids differ from those of former lives."""
        self._epoch, self._next_command = epoch, epoch << 32

    def adopt(self, agent: Agent) -> None:
        """Take over an agent that a former supervisor started."""
        key = (agent.spec.name, agent.incarnation)
        namespace, name = self.address(agent.spec, agent.incarnation)
        self._handles[key] = self._ray.find_actor(name, namespace)
        self._lines[key], self._abilities[key] = Line(), agent.abilities
        self._heard[key] = time.monotonic()

    async def start(
        self,
        order: StartAgent,
        shipped: bytes,
        boot: Boot,
        refs: tuple[list[Any], list[Any]],
        supervisor: Any,
        timeout_s: float,
    ) -> AgentReported | AgentStartFailed:
        """Make the actor and wait until its object is built; what failed leaves nothing alive."""
        key = (order.agent.name, order.incarnation)
        namespace, name = self.address(order.agent, order.incarnation)
        try:
            if order.adopt:
                handle = self._ray.find_actor(name, namespace)
            else:
                request = self._request(order, shipped, (pack(boot), supervisor, refs[1], *refs[0]))
                handle = self._ray.start_actor(request)
        except Exception as error:  # noqa: BLE001  # whatever it is must be answered
            return self._failed(order, f"Ray refused to make the actor: {error}")
        self._handles[key], self._lines[key] = handle, Line()
        self._heard[key] = time.monotonic()
        report = await self._report(handle, timeout_s)
        if isinstance(report, str) or report.error:
            await self.end(*key)
            if isinstance(report, str):
                reason = "agent_start_timeout" if report.startswith("not ready") else ""
                return self._failed(order, report, reason or "agent_start_failed")
            return self._failed(order, report.error)
        self._abilities[key] = report.abilities
        return self._reported(order, report, name, namespace)

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
        self.metrics.pop(name, None)
        handle = self._handles.pop(key, None)
        if handle is None:
            return
        self._ray.kill_actor(handle)
        try:
            await self._ray.call(handle, "schedulemesh_report")
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

    def poll(self, name: str, incarnation: int) -> asyncio.Future[list[Command]]:
        """A host asks for commands. One that is not on the book, because it is being ended, has to wait."""
        line = self._lines.get((name, incarnation))
        if line is None:
            return Line().ask()
        self.hear(name, incarnation)
        return line.ask()

    def done(self, command_id: int, result: Result) -> None:
        """A host answers a command."""
        answer = self._results.get(command_id)
        if answer is not None and not answer.done():
            answer.set_result(result)

    def _request(self, order: StartAgent, shipped: bytes, args: tuple[Any, ...]) -> ActorRequest:
        options = json.loads(order.agent.options)
        for decided in ("name", "namespace"):
            options.pop(decided, None)
        namespace, name = self.address(order.agent, order.incarnation)
        return ActorRequest(
            cls=self._host(order.agent.class_key, shipped),
            name=name,
            namespace=namespace,
            resources=order.agent.resources,
            node_id=order.node_id,
            options=options,
            args=args,
        )

    def _host(self, class_key: str, shipped: bytes) -> type:
        """The host class for a user's class: made once, because Ray exports each class anew."""
        found = self._hosts.get(class_key)
        if found is None:
            if len(self._hosts) >= _CLASSES:
                self._hosts.pop(next(iter(self._hosts)))
            found = host_class(msgspec.msgpack.decode(shipped, type=ShippedClass))
            self._hosts[class_key] = found
        return found

    async def _report(self, handle: Any, timeout_s: float) -> Report | str:
        """The host's report, or in a sentence why there is none."""
        call = asyncio.ensure_future(self._ray.call(handle, "schedulemesh_report"))
        done, _ = await asyncio.wait({call}, timeout=timeout_s)
        if not done:
            call.cancel()
            return (
                f"not ready after start_timeout = {timeout_s:g} s: its class was still loading or its "
                "constructor running; the process was ended"
            )
        try:
            report: Report = call.result()
        except RayError as error:
            return f"its process died while the class was loaded and built. {_short(error)}"
        return report

    def _reported(
        self, order: StartAgent, report: Report, name: str, namespace: str
    ) -> AgentReported:
        return AgentReported(
            at=0.0,
            agent_name=order.agent.name,
            incarnation=order.incarnation,
            node_id=report.node_id,
            devices=devices_of(report.gpu_ids, order.agent.resources),
            pid=report.pid,
            abilities=report.abilities,
            actor_name=name,
            actor_namespace=namespace,
            state_restored=report.state_restored,
        )

    def _failed(
        self, order: StartAgent, error: str, reason: str = "agent_start_failed"
    ) -> AgentStartFailed:
        logger.warning("agent %s did not start: %s", order.agent.name, error)
        return AgentStartFailed(
            at=0.0,
            agent_name=order.agent.name,
            incarnation=order.incarnation,
            reason=reason,
            error=f"agent {order.agent.name!r}: {error}",
        )


def _short(error: RayError) -> str:
    """What Ray says of a death, without the ids and the list of common causes."""
    said = [line for line in str(error).splitlines() if not line.startswith("\t")]
    return " ".join(said).partition(" Some common causes")[0]


def devices_of(gpu_ids: tuple[str, ...], resources: Resources) -> Devices:
    """The devices that these ids stand for: a share of one, or all of each."""
    units = min(resources.gpu, UNIT)
    indexes = sorted(int(i) for i in gpu_ids if i.isdigit())
    return Devices(units=tuple((i, units) for i in indexes)) if units else Devices()
