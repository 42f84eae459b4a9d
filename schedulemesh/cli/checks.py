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
from schedulemesh.cli.wording import in_commands
from schedulemesh.core.backend.ray_internals import lost_by_node
from schedulemesh.core.client.connection import living_schedulers, shown_schedulers
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.sentences import Text, say
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

Row = dict[str, Text]


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
        return [*rows, _row("Ray", FAILED, str(error), say("doctor_start_ray"))]


def _row(check: Text, status: str, finding: Text, advice: Text = "") -> Row:
    return {"check": check, "status": status, "found": finding, "advice": advice}


def _versions() -> Iterator[Row]:
    yield _row(
        "ScheduleMesh",
        OK,
        say("doctor_version", version=__version__, python=platform.python_version()),
    )
    installed = metadata.version("ray")
    requirement = next(
        (one for one in metadata.requires(_DISTRIBUTION) or () if re.match(r"ray\b", one)), "ray"
    )
    if _is_in_range(installed, requirement):
        yield _row(say("doctor_ray_version"), OK, installed)
    else:
        yield _row(
            say("doctor_ray_version"),
            FAILED,
            installed,
            say("doctor_install", requirement=requirement.partition(";")[0]),
        )


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
    check = say("doctor_disk", folder=folder)
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return _row(check, WARNING, str(error), say("doctor_make_folder"))
    finding = say("doctor_free", free=usage.free / 2**30, total=usage.total / 2**30)
    if usage.free < min(_LOW_BYTES, usage.total / 20):
        return _row(check, FAILED, finding, say("doctor_free_space"))
    return _row(check, OK, finding)


def _cluster() -> Iterator[Row]:
    nodes = ray.nodes()
    alive = [node for node in nodes if node["Alive"]]
    cpus = ray.cluster_resources().get("CPU", 0.0)
    gpus = ray.cluster_resources().get("GPU", 0.0)
    yield _row("Ray", OK, say("doctor_nodes", count=len(alive), cpus=f"{cpus:g}", gpus=f"{gpus:g}"))
    if dead := len(nodes) - len(alive):
        died = say("doctor_died", count=dead)
        yield _row(say("doctor_ray_nodes"), WARNING, died, say("doctor_lost_tasks"))
    yield _resources(_lost())


def _resources(lost: dict[str, Resources]) -> Row:
    """Whether something that lives has all that Ray says is taken."""
    if not lost:
        return _row(say("doctor_ray_resources"), OK, say("doctor_all_in_use"))
    amounts = [say("doctor_of_node", amount=amount, node=node) for node, amount in lost.items()]
    finding = say("doctor_nobody_has", amounts=amounts)
    return _row(say("doctor_ray_resources"), WARNING, finding, say("doctor_ray_lost"))


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
            finding = say("doctor_alive", epoch=about["epoch"], took=took * 1000)
            slow = took > _SLOW_S
            advice = say("doctor_busy") if slow else ""
            yield _row(say("doctor_scheduler"), WARNING if slow else OK, finding, advice)
            yield _clock(about["time"], began, took)
            yield _http(about["http"])
            yield from _others(about["namespace"], about["name"])
            yield from _journal(about)
            yield from _findings(scheduler)
    except ScheduleMeshError as error:
        yield _row(say("doctor_scheduler"), FAILED, in_commands(str(error)), say("doctor_list"))


def _clock(theirs: float, began: float, took: float) -> Row:
    """Whether the scheduler's clock agrees with this machine's, within the time that its answer took."""
    ahead = theirs - (began + took / 2)
    by = abs(ahead)
    finding = say("doctor_ahead", by=by) if ahead > 0 else say("doctor_behind", by=by)
    if abs(ahead) > _CLOCK_S + took:
        return _row(say("doctor_clock"), WARNING, finding, say("doctor_synchronise"))
    return _row(say("doctor_clock"), OK, finding)


def _http(url: str | None) -> Row:
    """Whether the HTTP API accepts connections, where there is one."""
    if url is None:
        return _row("HTTP API", OK, say("doctor_no_api"))
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), _CONNECT_S).close()
    except OSError as error:
        finding = say("doctor_api_silent", url=url, error=str(error))
        return _row("HTTP API", WARNING, finding, say("doctor_firewall"))
    return _row("HTTP API", OK, url)


def _others(namespace: str, name: str) -> Iterator[Row]:
    """A warning where other schedulers promise the same resources."""
    if others := [one for one in living_schedulers() if one != (namespace, name)]:
        finding = say("doctor_others", schedulers=shown_schedulers(others))
        yield _row(say("doctor_other_schedulers"), WARNING, finding, say("doctor_one_scheduler"))


def _journal(about: Any) -> Iterator[Row]:
    """Whether the journal can be written, where it is a file of this node."""
    address = str(about["journal"])
    path = Path(address)
    if "://" in address or about["node_id"] != ray.get_runtime_context().get_node_id():
        yield _row(say("doctor_journal"), OK, say("doctor_journal_away", address=address))
    elif not path.exists():
        gone = say("doctor_journal_gone", address=address)
        yield _row(say("doctor_journal"), FAILED, gone, say("doctor_restore_journal"))
    elif not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        finding = say("doctor_journal_closed", address=address)
        yield _row(say("doctor_journal"), FAILED, finding, say("doctor_open_journal"))
    else:
        yield _row(
            say("doctor_journal"),
            OK,
            say("doctor_journal_size", address=address, size=path.stat().st_size / 2**20),
        )
        yield _disk(str(path.parent))


def _findings(scheduler: RayScheduler) -> Iterator[Row]:
    """What the scheduler itself knows to be wrong."""
    orphans = scheduler.list_orphans()["orphans"]
    if orphans:
        finding = say("doctor_unknown", count=len(orphans))
        yield _row(say("doctor_orphans"), WARNING, finding, say("doctor_end_orphans"))
    else:
        yield _row(say("doctor_orphans"), OK, say("cell_none"))
    for strategy in scheduler.strategies()["strategies"]:
        if strategy["disabled"]:
            finding = say("doctor_disabled", name=strategy["name"], why=str(strategy["disabled"]))
            yield _row(say("doctor_strategies"), WARNING, finding, say("doctor_mend"))
