"""Marks that every child of a process inherits; finds and terminates all processes that carry one.

The mark is the soft limit of RLIMIT_RTTIME, the CPU time that a process may take under a real-time
scheduling policy without sleeping. Its values here are above 100,000 years, so they limit nothing. Unlike
an environment variable it survives a cleared environment, unlike the parent's id a double fork, and
unlike a session ``setsid``; one system call reads it. Only a process that is not started by the agent at
all (by a container engine, cron or systemd), that changes its user, or that sets this limit itself is
not found. Linux only: elsewhere nothing is marked and nothing found.

Ray's own workers of a job are started by Ray. They, and what they start, have the mark in their environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from schedulemesh.runtime.backend import Process

logger = logging.getLogger(__name__)

#: Marks lie above this, so that they limit nothing and differ from limits that people set.
_BASE, _BITS = 1 << 62, 61
#: Seconds for the agent's own process, which Ray ends, to exit by itself: killed, it looks like a crash,
#: and Ray warns the user's driver of it.
GRACE_S = 0.25
#: The variable with the mark of a job in the environment of its driver and of Ray's workers for it.
JOB_MARK = "SCHEDULEMESH_JOB_MARK"
#: Seconds for Ray's workers of a job to exit by themselves, which Ray has them do when the job has ended.
WORKER_GRACE_S = 1.0
#: Seconds after which processes that do not end are reported.
PATIENCE_S = 5.0
#: Seconds between two checks of ending processes; after so many checks all processes are listed again.
_LOOK_S, _LOOKS = 0.001, 50

_SUPPORTED = sys.platform == "linux"
if _SUPPORTED:
    import resource


def mark_of(session: str, namespace: str, actor_name: str) -> int:
    """The mark of an actor of ours: the same wherever it is computed, another one in another cluster."""
    digest = hashlib.sha256(f"{session}\0{namespace}\0{actor_name}".encode()).digest()
    return _BASE + (int.from_bytes(digest[:8], "big") >> (64 - _BITS))


def mark_this_process(mark: int) -> None:
    """Mark this process, and with it all that it starts from now on; 0: it has a mark already."""
    if not _SUPPORTED or not mark:
        return
    try:
        _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        resource.setrlimit(resource.RLIMIT_RTTIME, (mark, hard))
    except (OSError, ValueError) as error:
        logger.warning(
            "processes that this agent starts are not ended with it: the limit that marks them cannot "
            "be set (%s); leave RLIMIT_RTTIME unlimited on this node",
            error,
        )


def marked(mark: int) -> list[Process]:
    """The living processes with this mark, but for this one; the eldest first."""
    if not _SUPPORTED:
        return []
    own_pid = os.getpid()
    # On the hot path of every eviction, where making paths would cost twice as much.
    entries = os.listdir("/proc")  # noqa: PTH208
    pids = (int(entry) for entry in entries if entry.isdigit())
    processes = (_living_if(lambda pid: _carries(pid, mark), pid) for pid in pids if pid != own_pid)
    return sorted(process for process in processes if process is not None)


def _living_if(has_mark: Callable[[int], bool], pid: int) -> Process | None:
    """The process with this id; None: it does not have the mark, or has ended.

    The mark is looked for once more when it is known which process it is: one that ends between the two may
    leave its id to another one, which would be killed in its place.
    """
    process = living(pid) if has_mark(pid) else None
    return process if process is not None and has_mark(pid) else None


def left_behind(hosts: Mapping[int, int]) -> dict[int, list[Process]]:
    """By mark, what is left of agents whose own process has died; ``hosts``: the ids of those by mark.

    A child that was forked keeps the socket by which Ray would notice that death.
    """
    if not _SUPPORTED:
        return {}
    dead = {
        mark: pid for mark, pid in hosts.items() if not _carries(pid, mark) or living(pid) is None
    }
    processes_by_mark = {mark: marked(mark) for mark in dead}
    return {
        mark: processes
        for mark, processes in processes_by_mark.items()
        if processes and not any(_own_id(process.pid) == dead[mark] for process in processes)
    }


def living(pid: int) -> Process | None:
    """The process with this id; None: there is none, or it has ended and was not waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else Process(began=int(fields[19]), pid=pid)


async def terminate(mark: int) -> tuple[int, ...]:
    """End every process with this mark; returns the ids of those that have not ended in time.

    The eldest is the agent's own process, which Ray ends at the same time; it is killed where that does
    not help, as when it is stopped.
    """
    return await _end_all(lambda: marked(mark), GRACE_S, 1)


async def terminate_workers(mark: int, staying: Collection[int]) -> tuple[int, ...]:
    """End every process that has the mark of a job in its environment, but for these ids and their
    descendants; returns the ids of those that have not ended in time.
    """
    return await _end_all(lambda: workers_of(mark, staying), WORKER_GRACE_S, None)


def workers_of(mark: int, staying: Collection[int] = ()) -> list[Process]:
    """The living processes of this user that were started with the mark of a job in their environment, but
    for this one, and for these ids and their descendants; the eldest first.
    """
    if not _SUPPORTED:
        return []
    job_mark = f"{JOB_MARK}={mark}".encode()
    own_pid = os.getpid()
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208

    def is_worker(pid: int) -> bool:
        return job_mark in _environment(pid) and not _descends(pid, staying)

    processes = (_living_if(is_worker, pid) for pid in pids if pid != own_pid)
    return sorted(process for process in processes if process is not None)


async def _end_all(
    find: Callable[[], list[Process]], grace_s: float, spared: int | None
) -> tuple[int, ...]:
    """End the processes that are found again and again: the first so many, with None all of them, may exit by
    themselves for a while. Returns the ids of those that have not ended in time.
    """
    begun = time.monotonic()
    all_killed = False
    while processes := await asyncio.get_running_loop().run_in_executor(None, find):
        age = time.monotonic() - begun
        # Where this process has stood still, the time may be over before anything was killed.
        if all_killed and age > PATIENCE_S:
            return tuple(process.pid for process in processes)
        all_killed = age > grace_s
        kill(processes if all_killed else processes[len(processes) if spared is None else spared :])
        await _wait_for_ends(processes)
    return ()


def kill(processes: Iterable[Process]) -> None:
    """Kill these, unless they have ended or their ids belong to other processes by now."""
    for process in processes:
        if living(process.pid) == process:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)


async def _wait_for_ends(processes: Iterable[Process]) -> None:
    """Return when all of these processes have ended, or after ``_LOOKS`` looks."""
    remaining = list(processes)
    for _ in range(_LOOKS):
        remaining = [process for process in remaining if living(process.pid) == process]
        if not remaining:
            return
        await asyncio.sleep(_LOOK_S)


def _environment(pid: int) -> list[bytes]:
    """The environment that a process was started with; empty where it has ended, or is another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _descends(pid: int, ancestors: Collection[int]) -> bool:
    """Whether a process is one of these, or was started by one that was."""
    while pid > 1 and ancestors:
        if pid in ancestors:
            return True
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        pid = int(stat.rpartition(")")[2].split()[1])
    return False


def _own_id(pid: int) -> int | None:
    """The id that a process has for itself, which is another one in a container."""
    try:
        lines = (
            Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        )
    except (FileNotFoundError, ProcessLookupError):
        return None
    ids = next((line for line in lines if line.startswith("NSpid:")), f"NSpid: {pid}")
    return int(ids.split()[-1])


def _carries(pid: int, mark: int) -> bool:
    try:
        return resource.prlimit(pid, resource.RLIMIT_RTTIME)[0] == mark
    except (ProcessLookupError, PermissionError):
        return False
