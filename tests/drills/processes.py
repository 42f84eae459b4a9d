"""Finds the processes of supervisors and agents from outside, and kills or stops them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import ray

from tests.drills.agents import began_at


class DrillFailed(AssertionError):
    """Something was lost, ran twice, did not add up, or took too long."""


def until(condition: Callable[[], Any], what: str | Callable[[], str], deadline_s: float) -> Any:
    """Wait for a condition and return its first true value; DrillFailed after the deadline."""
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        if time.monotonic() > end:
            message = what if isinstance(what, str) else what()
            raise DrillFailed(f"after {deadline_s:g} s: {message}")
        time.sleep(0.005)  # the condition is about other processes, which notify nobody
    return found


def kill(pid: int) -> float:
    """Kill a running process with SIGKILL; the time on the monotonic clock."""
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process; it continues afterwards unless it was killed meanwhile.

    Raises ProcessLookupError if it ends before it stands still.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: _is_still(pid), f"process {pid} does not stop", 30.0)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def supervisors() -> set[int]:
    """The process ids of the supervisors on this node."""
    # The raylet is the worker's own parent's sibling; the node object knows it.
    raylets = ray._private.worker.global_worker.node.all_processes["raylet"]
    found = set()
    for raylet in raylets:
        for child in psutil.Process(raylet.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error, IndexError):
                if child.cmdline()[0].startswith("ray::Supervisor"):
                    found.add(child.pid)
    return found


def agent_processes(folder: Path) -> dict[str, list[int]]:
    """The running agent processes by task id, from their marker files."""
    found: dict[str, list[int]] = {}
    for mark in (folder / "processes").iterdir():
        task_id, pid, began = mark.name.split("@")
        if began_at(int(pid)) == began:
            found.setdefault(task_id, []).append(int(pid))
        else:
            mark.unlink(missing_ok=True)
    return found


def daemons(folder: Path) -> list[tuple[str, int, int]]:
    """The running processes that agents started: task id, process id of the agent, own process id."""
    found = []
    for name in marks(folder, "daemons"):
        task_id, parent, pid, began = name.split("@")
        if began_at(int(pid)) == began:
            found.append((task_id, int(parent), int(pid)))
        else:
            (folder / "daemons" / name).unlink(missing_ok=True)
    return found


def marked(folder: Path, kind: str, pid: int) -> bool:
    """Whether a process created a marker of this kind."""
    return (folder / kind / str(pid)).exists()


def first_new_mark(folder: Path, kind: str, before: set[str]) -> str | None:
    """A marker that is not among those in ``before``."""
    return next(iter(marks(folder, kind) - before), None)


def marks(folder: Path, kind: str) -> set[str]:
    """The names of all markers of a kind."""
    with contextlib.suppress(FileNotFoundError):
        return {path.name for path in (folder / kind).iterdir()}
    return set()


def _is_still(pid: int) -> bool:
    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        status = psutil.STATUS_ZOMBIE
    if status == psutil.STATUS_ZOMBIE:
        raise ProcessLookupError(f"process {pid} has ended")
    return bool(status == psutil.STATUS_STOPPED)


def named(namespace: str) -> list[str]:
    """The names of living actors in a Ray namespace."""
    listed = ray.util.list_named_actors(all_namespaces=True)
    return [entry["name"] for entry in listed if entry["namespace"] == namespace]


def thread(call: Callable[[], Any]) -> threading.Thread:
    """Start a daemon thread that runs the call."""
    started = threading.Thread(target=call, daemon=True)
    started.start()
    return started
