"""The Ray actor in whose process the HTTP API of a scheduler is served.

The server itself is in ``schedulemesh.server``, which knows nothing of Ray; this process alone loads it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from schedulemesh.core.backend.registered_schedulers import registered_schedulers
from schedulemesh.core.transport.handles import as_future
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.protocol.agents import pack

if TYPE_CHECKING:
    from schedulemesh.api.call import Call
    from schedulemesh.protocol.answers import AnyAnswer
    from schedulemesh.protocol.callers import TokenCaller
    from schedulemesh.protocol.job_command import JobCommand, Sent
    from schedulemesh.protocol.submissions import RunnerCode

logger = logging.getLogger(__name__)

#: Seconds between two messages to the supervisor about where the API is.
_ANNOUNCE_S = 5.0
#: Seconds after which a request is no longer waited for. The supervisor may still carry it out.
_ANSWER_S = 300.0
#: Seconds in which Ray takes note that a call has returned.
_RETURN_S = 0.1


class HttpActor:
    """Serves the HTTP API until it is ended, or the supervisor has ended."""

    def __init__(self, settings: bytes, supervisor: Any) -> None:
        self._supervisor = supervisor
        self._server, self._client, self._key, self._own = _compose(settings, supervisor)
        #: Set when ``serve`` returns: Ray tells everybody of a call that is still open when a process ends.
        self._has_served = asyncio.Event()
        self._supervisor_ended = False
        # Ray may still count a process that it restarts as unavailable when this call arrives: with retries
        # it is made again, and without them the process would live and serve nothing.
        itself = ray.get_runtime_context().current_actor
        itself.serve.options(max_task_retries=-1).remote()

    async def serve(self) -> None:
        """Serve until it is ended. A process that was killed begins with this when Ray restarts it."""
        announcing = asyncio.ensure_future(self._announce())
        try:
            await self._server.run()
        except OSError as error:
            logger.warning("the HTTP API cannot listen: %s", error)
        finally:
            announcing.cancel()
            self._has_served.set()
            if self._supervisor_ended:
                asyncio.get_running_loop().call_later(_RETURN_S, _end_process)

    async def end(self) -> None:
        """Remove the discovery file, and serve no more; returns when all connections have ended."""
        self._server.end()
        await self._has_served.wait()

    async def _announce(self) -> None:
        """Say again and again where the API is, because a restarted supervisor does not know it; end with
        the supervisor.
        """
        url = await self._server.address()
        while True:
            try:
                address = await self._supervisor.http_serves.remote(
                    url, self._key, self._server.failures
                )
                self._client.take_address(address)
            except ActorDiedError:
                self._supervisor_ended = True
                self._server.end()
                return
            except RayError as error:
                logger.warning("the supervisor does not answer: %s", error)
            await self._note_others()
            await asyncio.sleep(_ANNOUNCE_S)

    async def _note_others(self) -> None:
        """Tell commands of this machine which other schedulers the cluster has."""
        try:
            living = await asyncio.to_thread(registered_schedulers)
        except RayError as error:
            logger.warning("Ray does not say which schedulers there are: %s", error)
            return
        self._server.note_others(
            tuple(
                f"{namespace}/{name}"
                for namespace, name in living
                if (namespace, name) != self._own
            )
        )


class RaySupervisorClient:
    """Asks the supervisor over its socket, and through its Ray handle; see SupervisorClient."""

    def __init__(self, supervisor: Any, name: str, key: bytes) -> None:
        from schedulemesh.server.supervisor_socket import SupervisorSocket

        self._supervisor, self._name, self._key = supervisor, name, key
        self._socket = SupervisorSocket()

    def take_address(self, packed: bytes) -> None:
        """The supervisor says where its socket is: a packed SocketAddress; empty: there is none."""
        from schedulemesh.protocol.agents import unpack
        from schedulemesh.protocol.local_sockets import SocketAddress

        self._socket.address = unpack(packed, SocketAddress) if packed else None

    async def ask(self, request: Call, caller: TokenCaller | None = None) -> AnyAnswer:
        """See SupervisorClient."""
        from schedulemesh.protocol.answers import read_answer

        return read_answer(await self.ask_packed(request, caller))

    async def ask_packed(self, request: Call, caller: TokenCaller | None = None) -> bytes:
        """See SupervisorClient."""
        from schedulemesh.protocol.requests import encode_in_parts

        parts, packed = encode_in_parts(request), b"" if caller is None else pack(caller)
        try:
            answered = await self._socket.ask(
                parts, self._key, packed, _ANSWER_S, waits=request.waits
            )
            if answered is not None:
                return answered
            return await asyncio.wait_for(self._over_ray(b"".join(parts), packed), _ANSWER_S)
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise SchedulerUnavailableError(
                f"scheduler {self._name!r} has not answered within {_ANSWER_S:g} s; the request may still "
                "be carried out"
            ) from error
        except RayActorError as error:
            raise SchedulerUnavailableError(
                f"the supervisor of scheduler {self._name!r} cannot be reached"
            ) from error

    async def _over_ray(self, data: bytes, caller: bytes) -> bytes:
        """The encoded answer. ``caller``: packed; empty: this process asks for itself."""
        supervisor = self._supervisor
        ref = (
            supervisor.ask_as.remote(caller, data, self._key)
            if caller
            else supervisor.ask.remote(data, ([], []), self._key)
        )
        answer = await as_future(ref)
        encoded: bytes = answer[0] if isinstance(answer, tuple) else answer
        return encoded

    def packed_runner(self, command: JobCommand, sent: Sent) -> RunnerCode:
        """See SupervisorClient."""
        from schedulemesh.core.backend.job_packing import packed_runner

        return packed_runner(command, sent)


def start_http_actor(settings: bytes, name: str, namespace: str, supervisor: Any) -> None:
    """Create the actor on this node, unless it lives already; the supervisor's restarts leave it alone."""
    actor = ray.remote(HttpActor).options(
        name=http_actor_name(name),
        namespace=namespace,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        ),
    )
    actor.remote(settings, supervisor)


def _end_process() -> None:
    """End this process for good."""
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def http_actor_name(name: str) -> str:
    """The Ray name of the actor that serves a scheduler's HTTP API."""
    return f"schedulemesh-http:{name}"


def _addresses() -> tuple[str, ...]:
    """The addresses of the cluster as seen from this node."""
    address = str(ray.get_runtime_context().gcs_address)
    host, _, port = address.rpartition(":")
    if host.strip("[]") != ray.util.get_node_ip_address():
        return (address,)
    return tuple(dict.fromkeys((address, f"127.0.0.1:{port}", f"::1:{port}")))


def _compose(
    settings: bytes, supervisor: Any
) -> tuple[Any, RaySupervisorClient, bytes, tuple[str, str]]:
    """The composition root of this process: the server, what asks the supervisor, the key of this process,
    and whose it is.
    """
    import msgspec

    from schedulemesh.config.settings import SchedulerSettings
    from schedulemesh.core.backend.process_priority import (
        stand_behind_supervisor,
        take_oom_score_of_ray,
        take_priority_of_ray,
    )
    from schedulemesh.core.backend.process_tuning import (
        collect_garbage_rarely,
        switch_threads_often,
    )
    from schedulemesh.core.backend.ray_internals import ignore_unread_errors
    from schedulemesh.server.serving import HttpServer

    logging.basicConfig(level=logging.INFO, format="[%(levelname)s] %(message)s")
    ignore_unread_errors()
    take_oom_score_of_ray()
    take_priority_of_ray()
    stand_behind_supervisor()
    made = msgspec.msgpack.decode(settings, type=SchedulerSettings)
    if made.http is None:
        raise ValueError("the settings have no HTTP API")
    key = made.auth.process_key
    gateway = RaySupervisorClient(supervisor, made.name, key)
    server = HttpServer(gateway, made.http, made.namespace, made.name, _addresses())
    collect_garbage_rarely()
    switch_threads_often()
    return server, gateway, key, (made.namespace, made.name)
