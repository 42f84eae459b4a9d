"""Settings of the HTTP API: where it listens, and the folder in which commands find it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from schedulemesh.config.changes import check_names
from schedulemesh.domain.containers import as_elements, as_items
from schedulemesh.domain.kinds import is_a
from schedulemesh.domain.names import as_text
from schedulemesh.domain.numbers import as_number
from schedulemesh.errors import InvalidRequestError, shown

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8090

_MAX_PORT = 65_535
#: The path below which a proxy serves it, and the most addresses of proxies.
_BASE_PATH = re.compile(r"(/[A-Za-z0-9._~-]{1,64}){1,8}")
_MOST_PROXIES = 100
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the HTTP API of a scheduler listens."""

    host: str = DEFAULT_HOST
    #: If it is taken, one of the next is used; 0: any free one.
    port: int = DEFAULT_PORT
    #: The folder of the file from which commands on the same machine read the address and a token.
    folder: str = ""
    #: The path below which a proxy serves it, such as "/schedulemesh"; empty: at the root.
    base_path: str = ""
    #: The addresses of proxies whose header ``X-Forwarded-User`` says who looks at the page.
    proxies: tuple[str, ...] = ()

    @property
    def loopback(self) -> bool:
        """Whether only processes on the same machine can connect."""
        return self.host == "localhost" or (
            is_address(self.host) and ipaddress.ip_address(self.host).is_loopback
        )


def home_folder(environ: Mapping[str, str]) -> Path:
    """The folder of ScheduleMesh's own files of a user: ``SCHEDULEMESH_HOME``, or ``~/.schedulemesh``."""
    folder = environ.get("SCHEDULEMESH_HOME")
    return Path(folder).expanduser().absolute() if folder else Path.home() / ".schedulemesh"


def parse_http(value: object, environ: Mapping[str, str]) -> HttpSettings | None:
    """Parse the argument ``http``: None or False: no HTTP API; True: the default address; a port, or
    "host:port"; or a dict of ``address`` (one of these), ``base_path`` and ``proxies``. Raises
    InvalidRequestError for anything else.
    """
    if value is None or value is False:
        return None
    if isinstance(value, Mapping):
        return _behind_a_proxy(value, environ)
    folder = str(home_folder(environ))
    if value is True:
        return HttpSettings(folder=folder)
    number = as_number(value)
    host, port = (DEFAULT_HOST, number) if number is not None else _parts(value)
    if not is_a(port, int) or not 0 <= port <= _MAX_PORT:
        raise _invalid(value)
    return HttpSettings(host=host, port=port, folder=folder)


def _behind_a_proxy(value: object, environ: Mapping[str, str]) -> HttpSettings | None:
    """The settings in a dict. Raises InvalidRequestError."""
    fields = {str(name): content for name, content in as_items(value, "http", "a dict")}
    check_names(fields, ("address", "base_path", "proxies"), "http")
    settings = parse_http(fields.get("address", True), environ)
    if settings is None:
        return None
    proxies = as_elements(fields.get("proxies") or (), "http['proxies']", "a list")
    return msgspec.structs.replace(
        settings,
        base_path=parse_base_path(fields.get("base_path") or ""),
        proxies=parse_proxies(proxies),
    )


def parse_base_path(value: object) -> str:
    """A path such as "/schedulemesh", or an empty text. Raises InvalidRequestError."""
    path = as_text(value)
    if path is None or (path and _BASE_PATH.fullmatch(path) is None):
        raise InvalidRequestError(
            "the base path of the HTTP API begins with a slash, ends without one, and has letters, digits "
            f"and ._~- between, such as '/schedulemesh'; it is {shown(value)}"
        )
    if ".." in path.split("/") or "." in path.split("/"):
        raise InvalidRequestError(f"the base path of the HTTP API is {path!r}; no part is . or ..")
    return path


def parse_proxies(values: Iterable[object]) -> tuple[str, ...]:
    """IP addresses of proxies. Raises InvalidRequestError."""
    proxies = tuple(as_text(value) or "" for value in values)
    if len(proxies) > _MOST_PROXIES:
        raise InvalidRequestError(f"there are up to {_MOST_PROXIES} proxies, not {len(proxies)}")
    for proxy in proxies:
        if not is_address(proxy):
            raise InvalidRequestError(
                f"a proxy is named by its IP address, such as '10.0.0.5', not {shown(proxy)}"
            )
    return tuple(str(ipaddress.ip_address(proxy)) for proxy in proxies)


def is_address(host: str) -> bool:
    """Whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _parts(value: object) -> tuple[str, int]:
    """Host and port of a text such as "localhost:8090" or "[::1]:8090"."""
    text = as_text(value) or ""
    host, colon, port = text.rpartition(":")
    if not colon and text.isdigit():
        host, port = DEFAULT_HOST, text
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not (port.isascii() and port.isdigit()):
        raise _invalid(value)
    if not is_address(host) and _HOST_NAME.fullmatch(host) is None:
        raise _invalid(value)
    return host, int(port)


def _invalid(value: object) -> InvalidRequestError:
    return InvalidRequestError(
        f'http must be a port from 0 to {_MAX_PORT}, or "host:port", not {shown(value)}'
    )
