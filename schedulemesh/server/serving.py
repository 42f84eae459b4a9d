"""Serves the HTTP API of one scheduler until it is ended: socket, discovery file, connections."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import socket
from collections.abc import Sequence

import msgspec
import uvicorn

from schedulemesh.config.discovery import Discovered, forget, found, write
from schedulemesh.config.http import HttpSettings
from schedulemesh.errors import NotAllowedError
from schedulemesh.protocol.credentials import new_secret, server_proof
from schedulemesh.server.app import application
from schedulemesh.server.connections import Connections, PatientProtocol
from schedulemesh.server.event_feed import EventFeed
from schedulemesh.server.gateway import SupervisorClient
from schedulemesh.server.tokens import TokenTable

logger = logging.getLogger(__name__)

#: How many ports are tried, beginning with the one in the settings.
_PORTS = 20
#: The addresses for which the name localhost may stand, each with the other one.
_OTHER_LOOPBACK = {"127.0.0.1": "::1", "::1": "127.0.0.1"}
#: Connections at a time; beyond, requests are answered with 503.
_CONNECTIONS = 1_000
#: Seconds that open requests have to end when the server ends.
_END_S = 2


class HttpServer:
    """The HTTP server of one scheduler in this process."""

    def __init__(
        self,
        gateway: SupervisorClient,
        settings: HttpSettings,
        namespace: str,
        name: str,
        cluster: tuple[str, ...] = (),
    ) -> None:
        self._gateway, self._settings = gateway, settings
        self._namespace, self._name, self._cluster = namespace, name, cluster
        self._feed = EventFeed(gateway)
        self._tokens = TokenTable(gateway)
        self._server: uvicorn.Server | None = None
        self._discovered: asyncio.Future[Discovered] | None = None

    async def run(self) -> None:
        """Serve until ``end`` is called. Raises OSError where no port is free."""
        earlier = self._earlier()
        listening = listen(self._settings, None if earlier is None else earlier.url)
        tokens = self._tokens
        token = await tokens.local_secret(None if earlier is None else earlier.token)
        host, port = listening[0].getsockname()[:2]
        discovered = Discovered(
            name=self._name,
            namespace=self._namespace,
            url=f"http://{f'[{host}]' if ':' in host else host}:{port}",
            token=token,
            pid=os.getpid(),
            key=new_secret(),
            cluster=self._cluster,
        )
        prove = functools.partial(server_proof, discovered.key, discovered.url)
        connections = Connections(self._settings.proxies)
        app = application(self._gateway, tokens, self._settings, self._feed, prove, connections)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=functools.partial(  # type: ignore[arg-type]  # it is called as the class is
                    PatientProtocol, open_connections=connections
                ),
                ws="none",
                lifespan="off",
                log_config=None,
                # Of warnings, anybody who connects can cause as many as they like.
                log_level="error",
                access_log=False,
                server_header=False,
                # Otherwise uvicorn takes the client's address from a header that anybody on this machine can
                # send, and the record of changes would have it.
                proxy_headers=False,
                limit_concurrency=_CONNECTIONS,
                timeout_graceful_shutdown=_END_S,
            )
        )
        self._announce(discovered)
        self._found().set_result(discovered)
        await self._server.serve(list(listening))

    async def address(self) -> str:
        """The address, once it listens."""
        return (await asyncio.shield(self._found())).url

    @property
    def failures(self) -> int:
        """Requests without a token that is accepted, since this process began."""
        return self._tokens.failures

    def end(self) -> None:
        """Remove the discovery file, and have ``run`` return."""
        if (file := self._own_file()) is not None:
            forget(self._settings.folder, file)
        self._feed.end()
        if self._server is not None:
            self._server.should_exit = True

    def note_others(self, others: tuple[str, ...]) -> None:
        """Write to the discovery file which other schedulers live in the cluster, so that commands without a
        name do not take this one for the only one.
        """
        file = self._own_file()
        if file is not None and file.others != others:
            self._announce(msgspec.structs.replace(file, others=others))

    def _own_file(self) -> Discovered | None:
        """The discovery file as it is now, whose token may have been rotated; None: it is another's."""
        if not self._found().done():
            return None
        file = self._earlier()
        return file if file is not None and file.key == self._found().result().key else None

    def _earlier(self) -> Discovered | None:
        """What was written to the discovery file before; None: nothing that can be trusted."""
        try:
            return found(self._settings.folder, self._namespace, self._name)
        except NotAllowedError as error:
            logger.warning("%s", error)
            return None

    def _found(self) -> asyncio.Future[Discovered]:
        """What commands can find, once it listens."""
        if self._discovered is None:
            self._discovered = asyncio.get_running_loop().create_future()
        return self._discovered

    def _announce(self, discovered: Discovered) -> None:
        """Write the discovery file; commands cannot find the server without it, others can."""
        try:
            path = write(self._settings.folder, discovered)
        except OSError as error:
            logger.warning(
                "commands on this machine will not find the HTTP API at %s: its file cannot be written: %s",
                discovered.url,
                error,
            )
        else:
            logger.info("HTTP API at %s, file %s", discovered.url, path)


def listen(settings: HttpSettings, earlier: str | None) -> Sequence[socket.socket]:
    """Listening sockets, the first of them at the address of the settings; where its port is taken, at one of
    the next ports. At this machine's loopback there is one for each address that localhost may stand for, so
    that nobody else listens at the other one.

    ``earlier``: the address where this scheduler served before, which clients know; it is tried first.
    Raises OSError where none is free.
    """
    first = settings.port
    ports = list(range(first, min(first + _PORTS, 65_536))) if first else [0] * _PORTS
    earlier_port = _port_of(earlier)
    if earlier_port is not None and (earlier_port in ports or not first):
        ports = [earlier_port, *(port for port in ports if port != earlier_port)]
    for number, port in enumerate(ports, 1):
        try:
            listening = _bound_at_all(settings.host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or number == len(ports):
                raise
            continue
        if first not in (0, port):
            logger.warning("port %d is taken, so the HTTP API listens at port %d", first, port)
        return listening
    raise AssertionError("a port was bound or an error raised")


def _bound_at_all(host: str, port: int) -> Sequence[socket.socket]:
    """A socket at this address, and one at the other address of the loopback, where the machine has it."""
    listening = _bound(host, port)
    address, port = listening.getsockname()[:2]
    other = _OTHER_LOOPBACK.get(address)
    if other is None:
        return (listening,)
    try:
        return listening, _bound(other, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return (listening,)  # this machine has no such address
        listening.close()
        raise


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        # So that a restarted process gets the port of the former one.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening


def _port_of(url: str | None) -> int | None:
    port = (url or "").rpartition(":")[2]
    return int(port) if port.isdigit() else None
