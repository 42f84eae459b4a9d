"""Waiting for what happens outside of this process, and looking at what lives in Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray


def until(
    condition: Callable[[], Any], what: str | Callable[[], str], deadline_s: float = 30.0
) -> Any:
    """What the condition gives, once that is true; the test fails after the deadline."""
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        if time.monotonic() > end:
            pytest.fail(f"after {deadline_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)  # between two looks at what has no event
    return found


def complete_lines(written: str) -> list[str]:
    """The lines that have their end: the Python of a driver writes each part of a line by itself."""
    return written.rpartition("\n")[0].splitlines()


def actors_in(namespace: str) -> list[str]:
    """Names of the living actors in a Ray namespace."""
    listed = ray.util.list_named_actors(all_namespaces=True)
    return sorted(entry["name"] for entry in listed if entry["namespace"] == namespace)


def groups_in(namespace: str | None = None) -> dict[str, dict[str, Any]]:
    """The placement groups that are not removed, by name: all, or those of schedulers in a namespace."""
    return {
        entry["name"]: entry
        for entry in ray.util.placement_group_table().values()
        if entry["state"] != "REMOVED" and (namespace is None or f"@{namespace}:" in entry["name"])
    }


def process_exists(pid: int) -> bool:
    """Whether a process with this id exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (
        FileNotFoundError,
        ProcessLookupError,
    ):  # the latter: it ended between opening and reading
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """All threads of a process stand still meanwhile."""

    def are_still() -> bool:
        threads = Path(f"/proc/{pid}/task").iterdir()
        try:
            stats = [(thread / "stat").read_text(encoding="utf-8") for thread in threads]
        except (FileNotFoundError, ProcessLookupError):  # a thread has ended meanwhile
            return False
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    os.kill(pid, signal.SIGSTOP)
    try:
        until(are_still, f"process {pid} does not stop")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def supervisor_of(namespace: str, name: str = "mesh") -> int:
    """The process id of a scheduler's supervisor, as Ray knows it, whether or not that answers.

    Ray ends an actor before its process has exited, so processes of other supervisors may still be there.
    """
    handle = ray.get_actor(f"schedulemesh:{name}", namespace=namespace)
    return int(ray._private.state.actors(handle._actor_id.hex())["Pid"])


def quota(scheduler: Any, pool: str) -> dict[str, Any]:
    """A pool's line of list_pools."""
    return next(p for p in scheduler.list_pools()["pools"] if p["name"] == pool)


def used_by(scheduler: Any, job: str) -> dict[str, float] | None:
    """What the actors and placement groups of a job hold; None while it does not run."""
    jobs = {each["task_id"]: each.get("used") for each in scheduler.jobs()["jobs"]}
    return jobs.get(job)


def assert_nothing_held(scheduler: Any) -> None:
    """Assert that every pool is free and that no agent or task is listed."""
    for pool in scheduler.list_pools()["pools"]:
        assert pool["free"] == pool["resources"], pool
        held = {key: pool[key] for key in ("reserved", "used", "lent", "borrowed", "agents")}
        assert not any(held.values()), pool
    assert scheduler.list_agents()["agents"] == []
    assert scheduler.list_tasks()["tasks"] == []


def touched(path: Path) -> Callable[[], bool]:
    """A condition: the file exists."""
    return path.exists
