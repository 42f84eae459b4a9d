"""Connects this process to a Ray: the one at RAY_ADDRESS, else the one on this machine, else a new one.

``ray.init`` retries a dead address for minutes, and reads ``RAY_ADDRESS`` even when its argument is "auto".
So an address is checked first: whether anything listens there, whether it is a Ray that accepts this
process's token, and whether one of its nodes runs on this machine, which Ray requires of a driver.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import ray
from ray._private import services
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
from ray.exceptions import RayError

from schedulemesh.core.backend.ray_capabilities import (
    local_node_ids,
    rejected_token_error,
    use_token_if_available,
)
from schedulemesh.core.client.console import show_log
from schedulemesh.errors import InvalidRequestError

logger = logging.getLogger(__name__)

#: Seconds that checking one address may take, and connecting to it.
ATTEMPT_S, _CONNECT_S = 10.0, 4.0

#: The port of Ray's metrics on a local Ray that is started here, and how many ports are tried from there.
METRICS_PORT, _PORTS = 8080, 100

_ADDRESS = "RAY_ADDRESS"
_EXPORT_PORT = "_metrics_export_port"


class NoRayHereError(ConnectionError):
    """No Ray runs on this machine."""


class NoClusterAddressError(ConnectionError, InvalidRequestError):
    """An address is none of a Ray cluster, whatever runs."""


def join_or_start(local_options: Mapping[str, object]) -> bool:
    """Connect this process to a Ray, and log to which; returns whether a new one had to be started.

    ``local_options`` are options of ``ray.init`` for a new one.
    """
    if join_running(otherwise="; starting one"):
        return False
    _start({"namespace": _own_namespace(), **local_options})
    return True


def join_running(otherwise: str = "") -> bool:
    """Connect this process to the Ray at ``RAY_ADDRESS`` or, failing that, on this machine.

    Returns whether one was joined. What failed is logged; ``otherwise`` ends the message that no Ray runs.
    Raises NoClusterAddressError for a ``RAY_ADDRESS`` that can be none of a cluster.
    """
    show_log()
    named = os.environ.get(_ADDRESS, "")
    attempts = [] if named in ("", "auto", "local") else [(named, f"{_ADDRESS}={named}")]
    if named != "local":
        attempts.append(("auto", "the cluster on this machine"))
    for address, what in attempts:
        try:
            joined = join(address, namespace=_own_namespace())
        except NoRayHereError:
            logger.info("no Ray runs on this machine yet%s", otherwise)
        except NoClusterAddressError:
            raise
        except ConnectionError as error:
            logger.warning("%s is not joined: %s", what, error)
        else:
            logger.info("joined the Ray cluster at %s (%s)", joined, what)
            return True
    return False


def _own_namespace() -> str:
    """A Ray namespace of this process alone, as Ray would choose it, but in a form that Ray does not warn of
    whenever an agent has a name of the user's.
    """
    return f"job-{secrets.token_hex(4)}"


def join(address: str, **options: object) -> str:
    """Connect this process to a running Ray with these options of ``ray.init``; returns its host:port.

    Raises ConnectionError, in one sentence and within seconds, where that cannot be.
    """
    check_address(address)
    with _without_address():
        resolved = _resolved(address)
    _look(resolved)
    try:
        with _quiet(), _without_address():
            ray.init(address=resolved, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, RayError, ValueError) as error:
        raise ConnectionError(_one_line(error)) from error
    return resolved


def check_address(address: str) -> None:
    """Raise NoClusterAddressError for the address of something else than a cluster."""
    scheme, is_url, _ = address.partition("://")
    if not is_url:
        return
    if scheme in ("http", "https"):
        what = f"{address} is the address of a web server, as that of Ray's dashboard is"
    elif scheme == "ray":
        what = f"{address} is an address of Ray Client, which is not supported"
    else:
        what = f"{address} is no address of a Ray cluster"
    raise NoClusterAddressError(
        f"{what}; unset {_ADDRESS}, or give the cluster's own as host:6379, on a machine that is one of its "
        "nodes. From other machines use the HTTP API of the scheduler"
    )


def _start(options: Mapping[str, object]) -> None:
    """Start a local Ray, and log where its dashboard is."""
    first_port = options.get(_EXPORT_PORT) or METRICS_PORT
    options = {**options, _EXPORT_PORT: _free_port(int(str(first_port)))}
    with _quiet(), _without_address():
        context = ray.init(address="local", logging_level=logging.ERROR, **options)
    cpus = ray.cluster_resources().get("CPU", 0.0)
    dashboard = f", dashboard at http://{context.dashboard_url}" if context.dashboard_url else ""
    logger.info("started a local Ray with %g CPUs%s", cpus, dashboard)


def _free_port(first_port: int) -> int:
    """The port for Ray's metrics: this one, or the next that is free, with a warning."""
    for port in range(first_port, min(first_port + _PORTS, 2**16)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
        if port != first_port:
            logger.warning(
                "port %d for the metrics is taken; they are at http://127.0.0.1:%d/metrics",
                first_port,
                port,
            )
        return port
    raise OSError(f"no port from {first_port} on is free for the metrics of a local Ray")


def _resolved(address: str) -> str:
    """host:port of an address as users give it."""
    try:
        resolved: str = services.canonicalize_bootstrap_address_or_die(address)
    except (ConnectionError, ValueError, OSError) as error:
        if address == "auto" and isinstance(error, ConnectionError):
            if services.find_gcs_addresses():
                raise ConnectionError(_one_line(error)) from None
            raise NoRayHereError("no Ray runs on this machine") from None
        raise ConnectionError(
            f"{address!r} is no address of a Ray cluster (host:port): {_one_line(error)}"
        ) from None
    return resolved


def _look(address: str) -> None:
    """Raise ConnectionError where this process cannot join the cluster at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise ConnectionError(f"nothing answers at {address} ({error})") from None
    with _quiet():
        use_token_if_available()
    box: list[set[str] | RayError] = []

    def ask() -> None:
        try:
            nodes = GcsClient(address=address).get_all_node_info(timeout=ATTEMPT_S)
            box.append({node_id.hex() for node_id in nodes})
        except RayError as error:
            box.append(error)

    # Ray's own attempt takes 40 s and cannot be shortened; it ends by itself.
    thread = threading.Thread(target=ask, name="ray cluster", daemon=True)
    thread.start()
    thread.join(ATTEMPT_S - _CONNECT_S)
    if not box:
        raise ConnectionError(f"what listens at {address} does not answer as a Ray cluster")
    if isinstance(box[0], rejected_token_error()):
        raise ConnectionError(
            f"the cluster at {address} does not take this process's token; set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's"
        )
    if isinstance(box[0], RayError):
        raise ConnectionError(f"the cluster at {address} does not answer: {_one_line(box[0])}")
    if not box[0].intersection(local_node_ids()):
        raise ConnectionError(
            f"the cluster at {address} lives, but none of its nodes runs on this machine; run this on one "
            f"of them, or make this machine one with `ray start --address={address}`"
        )


@contextmanager
def _without_address() -> Iterator[None]:
    """Within, RAY_ADDRESS is not set, because Ray prefers it to the address that it is given."""
    named = os.environ.pop(_ADDRESS, None)
    try:
        yield
    finally:
        if named is not None:
            os.environ[_ADDRESS] = named


@contextmanager
def _quiet() -> Iterator[None]:
    """Within, Ray logs nothing about connecting, which is logged here in one line."""
    log = logging.getLogger("ray")
    level = log.level or logging.INFO
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
