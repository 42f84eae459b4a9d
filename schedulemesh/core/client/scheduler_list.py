"""The schedulers of a Ray cluster: which there are, what each says of itself, and which one is meant."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import ray
from typing_extensions import TypedDict

from schedulemesh.api.cluster import GetAbout
from schedulemesh.api.results import Result
from schedulemesh.client.asking import details
from schedulemesh.client.listings import AboutResult
from schedulemesh.config.settings import DEFAULT_NAME, DEFAULT_NAMESPACE
from schedulemesh.core.client.connection import (
    find,
    living_schedulers,
    require_ray,
    shown_schedulers,
)
from schedulemesh.core.client.new_settings import parse_settings
from schedulemesh.core.client.origin import named_scheduler
from schedulemesh.core.client.ray_cluster import join, join_running
from schedulemesh.errors import (
    InvalidRequestError,
    ScheduleMeshError,
    SchedulerNotFoundError,
    shown,
)

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
    with _connected(address), ThreadPoolExecutor(_AT_ONCE) as at_once:
        schedulers = list(at_once.map(lambda one: described(*one), living_schedulers()))
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


class Chosen(NamedTuple):
    """The scheduler that is meant."""

    name: object
    namespace: object


def chosen_scheduler(name: object, namespace: object) -> Chosen:
    """The name and the namespace of the scheduler that these arguments mean: where nothing gives a name, the
    one that lives in the cluster, or in this namespace; where none does, a new one of the default name.

    Raises InvalidRequestError where several live.
    """
    name, namespace = named_scheduler(name, namespace)
    if name is not None:
        return Chosen(name, namespace)
    require_ray()
    living = living_schedulers(namespace)
    if len(living) > 1:
        raise InvalidRequestError(
            f"{len(living)} schedulers live in this Ray cluster: {shown_schedulers(living)}; name the one "
            f"that is meant: as the argument, with --name {living[0][1]}, or in SCHEDULEMESH_NAME"
        )
    if living:
        return Chosen(living[0][1], living[0][0])
    return Chosen(DEFAULT_NAME, DEFAULT_NAMESPACE if namespace is None else namespace)


@contextmanager
def _connected(address: object) -> Iterator[None]:
    """Within, this process is connected to the cluster at an address, or to its own (None). Raises
    InvalidRequestError where it is connected to another one, and SchedulerNotFoundError where there is none.
    """
    if address is not None and not isinstance(address, str):
        raise InvalidRequestError(f"address must be host:port, not {shown(address)}")
    if ray.is_initialized():
        own_address = str(ray.get_runtime_context().gcs_address)
        if address not in (None, "auto", own_address):
            raise InvalidRequestError(
                f"this process is connected to the Ray at {own_address}, so it cannot list the schedulers at "
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
