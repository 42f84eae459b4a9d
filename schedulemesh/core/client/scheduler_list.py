"""The schedulers of a Ray cluster: found by the names of their supervisors, and each asked about itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import ray
from typing_extensions import TypedDict

from schedulemesh.core.backend.supervisor_actor import CALLS
from schedulemesh.core.client.about_results import AboutResult
from schedulemesh.core.client.asking import details
from schedulemesh.core.client.connection import actor_name, find
from schedulemesh.core.client.deadline import ask_ray
from schedulemesh.core.client.new_settings import parse_settings
from schedulemesh.core.client.ray_cluster import join, join_running
from schedulemesh.core.client.results import Result
from schedulemesh.errors import (
    InvalidRequestError,
    ScheduleMeshError,
    SchedulerNotFoundError,
    shown,
)
from schedulemesh.protocol.requests import GetAbout

#: Schedulers that are asked at the same time; one that hangs does not delay the others.
_AT_ONCE = 16


class SchedulerInfo(TypedDict):
    """One scheduler of a cluster. What only the scheduler knows is None where it does not answer."""

    name: str
    namespace: str
    #: Whether it answers this process.
    answers: bool
    #: Why it does not; empty: it does.
    error: str
    detached: bool | None
    #: When its supervisor began to serve, in seconds since 1970.
    started_at: float | None
    version: str | None
    node_id: str | None
    running_tasks: int | None
    queued_tasks: int | None


class SchedulersResult(Result, total=False):
    """The answer of ``list``."""

    schedulers: list[SchedulerInfo]


def list_schedulers(address: object = None) -> SchedulersResult:
    """Every scheduler of the cluster at an address, ordered by namespace and name; see RayScheduler.list."""
    with _connected(address):
        named = ask_ray("list the actors", _named)
        with ThreadPoolExecutor(_AT_ONCE) as at_once:
            found = at_once.map(lambda one: described(*one) if _is_scheduler(*one) else None, named)
            schedulers = [one for one in found if one is not None]
    return {"success": True, "schedulers": schedulers}


def described(namespace: str, name: str) -> SchedulerInfo:
    """What one scheduler says of itself, or why it does not answer."""
    facts: AboutResult = {"success": False}
    error = ""
    try:
        settings = parse_settings(name, namespace, None, detached=True)
        facts = details(find(settings), GetAbout(), AboutResult)
        error = "" if facts["success"] else facts["error"]
    except ScheduleMeshError as failed:
        error = str(failed)
    return {
        "name": name,
        "namespace": namespace,
        "answers": not error,
        "error": error,
        "detached": facts.get("detached"),
        "started_at": facts.get("started_at"),
        "version": facts.get("version"),
        "node_id": facts.get("node_id"),
        "running_tasks": facts.get("running_tasks"),
        "queued_tasks": facts.get("queued_tasks"),
    }


def _named() -> list[tuple[str, str]]:
    """The Ray namespace and the name of every actor that has the name of a supervisor, or of an agent: a
    scheduler's name may be the beginning of another's.
    """
    prefix = actor_name("")
    actors = ray.util.list_named_actors(all_namespaces=True)
    return sorted(
        (actor["namespace"], actor["name"].removeprefix(prefix))
        for actor in actors
        if actor["name"].startswith(prefix)
    )


def _is_scheduler(namespace: str, name: str) -> bool:
    """Whether the actor is a supervisor: no agent has all its methods."""
    if ":" not in name:
        return True
    try:
        handle = ask_ray(
            "find an actor", lambda: ray.get_actor(actor_name(name), namespace=namespace)
        )
    except ValueError:
        return False  # it has ended meanwhile
    return all(hasattr(handle, call) for call in CALLS)


@contextmanager
def _connected(address: object) -> Iterator[None]:
    """Within, this process is connected to the cluster at an address, or to its own (None). Raises
    InvalidRequestError where it is connected to another one, and SchedulerNotFoundError where there is none.
    """
    if address is not None and not isinstance(address, str):
        raise InvalidRequestError(f"address must be host:port, not {shown(address)}")
    if ray.is_initialized():
        own = str(ray.get_runtime_context().gcs_address)
        if address not in (None, "auto", own):
            raise InvalidRequestError(
                f"this process is connected to the Ray at {own}, so it cannot list the schedulers at "
                f"{address}; leave the address out, or call ray.shutdown() first"
            )
        yield
        return
    try:
        if address is None and not join_running():
            raise SchedulerNotFoundError(
                "there is no Ray to list the schedulers of: give an address, or set RAY_ADDRESS"
            )
        if address is not None:
            join(address, log_to_driver=False)
    except ConnectionError as error:
        raise SchedulerNotFoundError(f"no Ray cluster was joined: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()
