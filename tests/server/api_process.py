"""An HTTP server in a process of its own, which asks a supervisor on a fake backend over its socket."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

from schedulemesh.config.discovery import found
from schedulemesh.config.http import HttpSettings
from schedulemesh.core.backend.process_priority import stand_behind_supervisor
from schedulemesh.core.backend.process_tuning import collect_garbage_rarely, switch_threads_often
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.protocol.agents import pack
from schedulemesh.protocol.answers import read_answer
from schedulemesh.protocol.local_sockets import SocketAddress
from schedulemesh.protocol.requests import encode_in_parts
from schedulemesh.server.serving import HttpServer
from schedulemesh.server.supervisor_socket import SupervisorSocket
from tests.server.local import LocalGateway

#: Seconds for an answer.
ANSWER_S = 60.0


class SocketGateway:
    """Asks a supervisor of this machine over its socket, and over other connections to it where the process
    of the HTTP API uses Ray.
    """

    def __init__(self, address: SocketAddress) -> None:
        self._ways = [SupervisorSocket(address) for _ in range(4)]

    async def ask(self, request: Any, caller: Any = None) -> Any:
        return read_answer(await self.ask_packed(request, caller))

    async def ask_packed(self, request: Any, caller: Any = None) -> bytes:
        packed = b"" if caller is None else pack(caller)
        parts = encode_in_parts(request)
        for way in self._ways:
            if (
                answer := await way.ask(parts, b"", packed, ANSWER_S, waits=request.waits)
            ) is not None:
                return answer
        raise SchedulerUnavailableError("the supervisor does not answer over its socket")

    packed_runner = LocalGateway.packed_runner


class ApiProcess:
    """The process, and what clients of it need. ``mesh``: the supervisor, see ``composition.InThread``."""

    def __init__(self, mesh: Any, folder: str) -> None:
        self._connection, other = multiprocessing.Pipe()
        address = mesh.service._socket.address
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(other, address, folder), daemon=True
        )
        self._process.start()
        self.url, self.token = self._connection.recv()
        self.process_id = self._process.pid

    def longest_portion(self) -> float:
        """The longest portion of work of its loop since the last call, in seconds on a processor."""
        self._connection.send("longest portion")
        longest: float = self._connection.recv()
        return longest

    def close(self) -> None:
        """End the server, and the process."""
        self._connection.send(None)
        self._process.join(30)


def _serve(connection: Connection, address: SocketAddress, folder: str) -> None:
    asyncio.run(_serving(connection, address, folder))


async def _serving(connection: Connection, address: SocketAddress, folder: str) -> None:
    from tests.server.portions import Portions

    stand_behind_supervisor()
    collect_garbage_rarely()
    switch_threads_often()
    portions = Portions()
    cluster = ("10.0.0.7:6379", "127.0.0.1:6379")
    settings = HttpSettings(port=0, folder=folder)
    server = HttpServer(SocketGateway(address), settings, "space", "mesh", cluster)
    serving = asyncio.ensure_future(server.run())
    url = await server.address()
    connection.send((url, found(folder, "space", "mesh").token))
    while await asyncio.to_thread(connection.recv) is not None:
        connection.send(portions.longest()[0])
    server.end()
    await serving
