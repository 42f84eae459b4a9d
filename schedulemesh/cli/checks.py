"""The checks of the command doctor. Each gives rows with check, status, found and advice."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray

from schedulemesh import __version__
from schedulemesh.cli.command import Target
from schedulemesh.cli.exits import UnreachableError
from schedulemesh.cli.ray_gateway import attached, on_ray
from schedulemesh.core.backend.ray_internals import lost_by_node
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.errors import ScheduleMeshError

OK, WARNING, FAILED = "ok", "warning", "failed"

#: Free space, in bytes, below which a disk is nearly full.
_LOW_BYTES = 2 * 2**30
#: Seconds by which the clocks of this machine and the scheduler's may differ, and an answer may take.
_CLOCK_S, _SLOW_S = 2.0, 1.0
#: How often, and how many seconds apart, it is looked again whether resources are lost.
_LOST_LOOKS, _LOST_LOOK_S = 3, 1.0
#: Seconds in which a port has to accept a connection.
_CONNECT_S = 3.0
_DISTRIBUTION = "schedulemesh-core"

Row = dict[str, str]


def examined(target: Target) -> list[Row]:
    """Every check, in an order in which each builds on those before."""
    rows = [
        *_versions(),
        _disk("/dev/shm"),  # noqa: S108  # where Ray keeps objects
        _disk(_temporary_folder()),
    ]
    try:
        with on_ray(target.address):
            return [*rows, *_cluster(), *_scheduler(target)]
    except UnreachableError as error:
        return [*rows, _row("Ray", FAILED, str(error), "start Ray, or name its --address")]


def _row(check: str, status: str, finding: str, advice: str = "") -> Row:
    return {"check": check, "status": status, "found": finding, "advice": advice}


def _versions() -> Iterator[Row]:
    yield _row("ScheduleMesh", OK, f"{__version__} on Python {platform.python_version()}")
    installed = metadata.version("ray")
    requirement = next(
        (one for one in metadata.requires(_DISTRIBUTION) or () if re.match(r"ray\b", one)), "ray"
    )
    if _is_in_range(installed, requirement):
        yield _row("Ray's version", OK, installed)
    else:
        yield _row("Ray's version", FAILED, installed, f"install {requirement.partition(';')[0]!r}")


def _is_in_range(version: str, requirement: str) -> bool:
    """Whether a version is at least the first and below the second of a requirement with ``>=`` and ``<``."""
    bounds = dict(re.findall(r"(>=|<)\s*([\d.]+)", requirement.partition(";")[0]))
    number = _numbers(version)
    return _numbers(bounds.get(">=", "0")) <= number < _numbers(bounds.get("<", "9999"))


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _temporary_folder() -> str:
    return os.environ.get("RAY_TMPDIR") or "/tmp"  # noqa: S108  # where Ray puts its sessions


def _disk(folder: str) -> Row:
    """Whether there is room in a folder."""
    check = f"disk at {folder}"
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return _row(check, WARNING, str(error), "Ray uses this folder; make it")
    finding = f"{usage.free / 2**30:.1f} of {usage.total / 2**30:.1f} GiB free"
    if usage.free < min(_LOW_BYTES, usage.total / 20):
        return _row(check, FAILED, finding, "free space, or Ray and the journal will fail to write")
    return _row(check, OK, finding)


def _cluster() -> Iterator[Row]:
    nodes = ray.nodes()
    alive = [node for node in nodes if node["Alive"]]
    cpus = ray.cluster_resources().get("CPU", 0.0)
    gpus = ray.cluster_resources().get("GPU", 0.0)
    yield _row("Ray", OK, f"{len(alive)} nodes alive, {cpus:g} CPUs, {gpus:g} GPUs")
    if dead := len(nodes) - len(alive):
        advice = "tasks that ran there were lost; see `ray list nodes`"
        yield _row("Ray's nodes", WARNING, f"{dead} have died", advice)
    yield _resources(_lost())


def _resources(lost: dict[str, Resources]) -> Row:
    """Whether something that lives has all that Ray says is taken."""
    if not lost:
        return _row("Ray's resources", OK, "all that is taken is in use")
    lost_amounts = "; ".join(f"{amount} of node {node_id}" for node_id, amount in lost.items())
    advice = "Ray has lost them, see docs/reliability.md; drain the node, and start Ray there again"
    return _row("Ray's resources", WARNING, f"nothing that lives has {lost_amounts}", advice)


def _lost() -> dict[str, Resources]:
    """What is lost of each node, as it stays for some looks: a process that is being started has its part
    before it is seen.
    """
    lost = lost_by_node()
    for _ in range(_LOST_LOOKS):
        if lost:
            time.sleep(_LOST_LOOK_S)
            again = lost_by_node()
            common = {
                node: amount.within(again.get(node, NOTHING)) for node, amount in lost.items()
            }
            lost = {node: amount for node, amount in common.items() if amount}
    return lost


def _scheduler(target: Target) -> Iterator[Row]:
    """The scheduler, its journal, clock, orphans and strategies."""
    try:
        with attached(target) as scheduler:
            began = time.time()
            about = scheduler.about()
            took = time.time() - began
            finding = f"alive, epoch {about['epoch']}, answered in {took * 1000:.0f} ms"
            slow = "the supervisor is busy or its node is; see its CPU use"
            yield _row(
                "scheduler", WARNING if took > _SLOW_S else OK, finding, slow * (took > _SLOW_S)
            )
            yield _clock(about["time"], began, took)
            yield _http(about["http"])
            yield from _journal(about)
            yield from _findings(scheduler)
    except ScheduleMeshError as error:
        advice = "`schedulemesh list` shows which schedulers there are"
        yield _row("scheduler", FAILED, str(error), advice)


def _clock(theirs: float, began: float, took: float) -> Row:
    """Whether the scheduler's clock agrees with this machine's, within the time that its answer took."""
    ahead = theirs - (began + took / 2)
    finding = (
        f"the scheduler's is {abs(ahead):.2f} s {'ahead of' if ahead > 0 else 'behind'} this one"
    )
    if abs(ahead) > _CLOCK_S + took:
        return _row("clock", WARNING, finding, "synchronise both machines, as with NTP")
    return _row("clock", OK, finding)


def _http(url: str | None) -> Row:
    """Whether the HTTP API accepts connections, where there is one."""
    if url is None:
        return _row("HTTP API", OK, "none is served")
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), _CONNECT_S).close()
    except OSError as error:
        advice = "a firewall closes the port, or it is open on the scheduler's machine only"
        return _row("HTTP API", WARNING, f"{url} does not answer ({error})", advice)
    return _row("HTTP API", OK, url)


def _journal(about: Any) -> Iterator[Row]:
    """Whether the journal can be written, where it is a file of this node."""
    address = str(about["journal"])
    path = Path(address)
    if "://" in address or about["node_id"] != ray.get_runtime_context().get_node_id():
        yield _row("journal", OK, f"{address}, not on this node")
    elif not path.exists():
        advice = "nothing can become durable; restore it, or stop the scheduler"
        yield _row("journal", FAILED, f"{address} is gone", advice)
    elif not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        advice = "nothing can become durable; make file and folder writable"
        yield _row("journal", FAILED, f"{address} is not writable", advice)
    else:
        yield _row("journal", OK, f"{address}, {path.stat().st_size / 2**20:.1f} MiB")
        yield _disk(str(path.parent))


def _findings(scheduler: RayScheduler) -> Iterator[Row]:
    """What the scheduler itself knows to be wrong."""
    orphans = scheduler.list_orphans()["orphans"]
    advice = "`schedulemesh orphans` lists and ends them"
    if orphans:
        yield _row("orphans", WARNING, f"{len(orphans)} that the journal does not know", advice)
    else:
        yield _row("orphans", OK, "none")
    for strategy in scheduler.strategies()["strategies"]:
        if strategy["disabled"]:
            advice = "mend the strategy and start the scheduler again"
            finding = f"{strategy['name']} is disabled: {strategy['disabled']}"
            yield _row("strategies", WARNING, finding, advice)
