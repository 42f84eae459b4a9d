"""The user whose process sends a request: of a process of this machine as its system says, of others as they
say themselves.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from msgspec.structs import replace
from starlette.datastructures import Headers
from starlette.types import Scope

from schedulemesh.domain.tokens import LOCAL
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.credentials import CLIENT_USER_HEADER, user_at_host
from schedulemesh.protocol.local_sockets import user_of

#: Headers of proxies, which connect for others.
OF_PROXIES = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
#: The connections of this machine by the version of IP: each line has the two ends, the state, and the user.
_CONNECTIONS: Mapping[int, Path] = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
#: Where these stand in a line, and the state of a connection that is open.
_LOCAL_END, _OTHER_END, _STATE, _USER = 1, 2, 3, 7
_ESTABLISHED = "01"
#: What the system says of a user who has no number in this container.
_UNMAPPED_USER = 65_534


def is_proxied(headers: Headers) -> bool:
    """Whether a proxy sends a request for another process."""
    return any(name in headers for name in OF_PROXIES)


async def with_user(caller: TokenCaller, scope: Scope) -> TokenCaller:
    """A caller with the user of its process, where its token does not say who that is."""
    if caller.token.name != LOCAL:
        return caller
    headers = Headers(scope=scope)
    client, server = scope.get("client"), scope.get("server")
    if client is not None and server is not None and not is_proxied(headers):
        uid = await asyncio.to_thread(connection_user, tuple(client), tuple(server))
        if uid is not None:
            return replace(caller, user=user_of(uid), user_verified=True)
    return replace(caller, user=user_at_host(headers.get(CLIENT_USER_HEADER, "")))


def connection_user(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The number of the user whose process is the client of a connection; None: it is not of this machine, or
    the system does not say.
    """
    try:
        version, client_end = _end(*client)
        server_version, server_end = _end(*server)
        lines = _CONNECTIONS[version].read_text().splitlines()
    except (OSError, ValueError):
        return None
    if version != server_version:
        return None
    for line in lines[1:]:
        fields = line.split(maxsplit=_USER + 1)
        ends = (fields[_LOCAL_END], fields[_OTHER_END], fields[_STATE])
        if ends == (client_end, server_end, _ESTABLISHED):
            uid = int(fields[_USER])
            return None if uid == _UNMAPPED_USER else uid
    return None


def _end(host: str, port: int) -> tuple[int, str]:
    """The version of IP of an end of a connection, and the end as the system lists it. Raises ValueError."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    packed = address.packed
    words = (
        int.from_bytes(packed[begin : begin + 4], sys.byteorder)
        for begin in range(0, len(packed), 4)
    )
    return address.version, f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"
