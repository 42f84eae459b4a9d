"""``python -m benchmarks.stream_clients SOCKET FOLDER``: an HTTP server with clients that stream.

Requests go to the supervisor over a Unix socket. A line of stdin is how many clients there are to be; it is
answered with how many events all of them have received so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from urllib.parse import urlsplit

from schedulemesh.api.call import Call
from schedulemesh.config.discovery import found
from schedulemesh.config.http import HttpSettings
from schedulemesh.protocol.answers import AnyAnswer, read_answer
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.requests import encode_request
from schedulemesh.server.serving import HttpServer

_NAME = "bench"
#: Seconds in which a client has to get its first bytes.
_FIRST_S = 30.0


class SocketGateway:
    """Asks over a Unix socket: a connection for each request."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def ask(self, request: Call, _caller: TokenCaller | None = None) -> AnyAnswer:
        """See Gateway."""
        reader, writer = await asyncio.open_unix_connection(self._path)
        writer.write(encode_request(request))
        writer.write_eof()
        answer = read_answer(await reader.read())
        writer.close()
        return answer


class Clients:
    """Clients that read streams of all events from now on."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._token = parts.hostname, parts.port, token
        self._tasks: list[asyncio.Task[None]] = []
        self.received = 0

    async def be(self, count: int) -> None:
        """Have so many clients, each of which has got its first bytes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        begun = [asyncio.Event() for _ in range(count)]
        self._tasks = [asyncio.ensure_future(self._follow(event)) for event in begun]
        for event in begun:
            await asyncio.wait_for(event.wait(), _FIRST_S)

    async def _follow(self, begun: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        with contextlib.closing(writer):
            head = f"GET /api/v1/events/stream HTTP/1.1\r\nHost: {self._host}\r\n"
            writer.write(f"{head}Authorization: Bearer {self._token}\r\n\r\n".encode())
            while data := await reader.read(65_536):
                begun.set()
                self.received += data.count(b"\ndata: ")


async def _main(socket: str, folder: str) -> None:
    server = HttpServer(SocketGateway(socket), HttpSettings(port=0, folder=folder), _NAME, _NAME)
    serving = asyncio.ensure_future(server.run())
    url = await server.address()
    discovered = found(folder, _NAME, _NAME)
    clients = Clients(url, "" if discovered is None else discovered.token)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        await clients.be(int(line))
        print(clients.received, flush=True)
    await clients.be(0)
    server.end()
    await serving


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
