"""Processes seen from outside: which live, which is the supervisor, and stopping one for a look."""

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
    """What the condition gives, once that is true."""
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        if time.monotonic() > end:
            told = what if isinstance(what, str) else what()
            raise DrillFailed(f"after {deadline_s:g} s: {told}")
        time.sleep(0.005)  # between two looks at the world outside
    return found


def kill(pid: int) -> float:
    """Kill -9 a process that lives; when, on the monotonic clock."""
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Hold a process still for a look; it goes on afterwards unless it was killed meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: _is_still(pid), f"process {pid} does not stop", 5.0)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def supervisors() -> set[int]:
    """The processes of living supervisors on this node."""
    # The raylet is the worker's own parent's sibling; the node object knows it.
    raylets = ray._private.worker.global_worker.node.all_processes["raylet"]
    found = set()
    for raylet in raylets:
        for child in psutil.Process(raylet.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error, IndexError):
                if child.cmdline()[0].startswith("ray::Supervisor"):
                    found.add(child.pid)
    return found


def lives(folder: Path) -> dict[str, list[int]]:
    """The living agent processes by task id, as they marked themselves."""
    found: dict[str, list[int]] = {}
    for mark in (folder / "lives").iterdir():
        task_id, pid, began = mark.name.split("@")
        if began_at(int(pid)) == began:
            found.setdefault(task_id, []).append(int(pid))
        else:
            mark.unlink(missing_ok=True)
    return found


def daemons(folder: Path) -> list[tuple[str, int, int]]:
    """The living processes that agents started: the task, the agent's process, and their own."""
    found = []
    for name in marks(folder, "daemons"):
        task_id, parent, pid, began = name.split("@")
        if began_at(int(pid)) == began:
            found.append((task_id, int(parent), int(pid)))
        else:
            (folder / "daemons" / name).unlink(missing_ok=True)
    return found


def marked(folder: Path, kind: str, pid: int) -> bool:
    """Whether a process left such a mark."""
    return (folder / kind / str(pid)).exists()


def newly_marked(folder: Path, kind: str, before: set[str]) -> str | None:
    """A mark that was not there before."""
    return next(iter(marks(folder, kind) - before), None)


def marks(folder: Path, kind: str) -> set[str]:
    """All marks of a kind."""
    with contextlib.suppress(FileNotFoundError):
        return {path.name for path in (folder / kind).iterdir()}
    return set()


def _is_still(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def named(namespace: str) -> list[str]:
    """The names of living actors in a Ray namespace."""
    listed = ray.util.list_named_actors(all_namespaces=True)
    return [entry["name"] for entry in listed if entry["namespace"] == namespace]


def thread(call: Callable[[], Any]) -> threading.Thread:
    """A thread that runs this beside the killer."""
    started = threading.Thread(target=call, daemon=True)
    started.start()
    return started
