"""The connection to a supervisor: find or make it, shake hands, and call it."""

from __future__ import annotations

import platform
import time
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from schedulemesh.config.settings import PROTOCOL_VERSION, SchedulerSettings
from schedulemesh.core.backend.ray_backend import actor_id
from schedulemesh.core.backend.supervisor_actor import Supervisor
from schedulemesh.errors import (
    InvalidRequestError,
    ProtocolMismatchError,
    SchedulerExistsError,
    SchedulerNotFoundError,
    SchedulerUnavailableError,
)
from schedulemesh.protocol.clients import Hello

#: Seconds that a supervisor may take to begin.
_BEGIN_S = 60.0
#: Seconds that the name of an actor which has ended may still be taken.
_NAME_S = 2.0


class Connection:
    """A line to one supervisor; threads may share it."""

    def __init__(self, handle: Any, settings: SchedulerSettings, hello: Hello) -> None:
        self.handle = handle
        self.settings = settings
        self.hello = hello

    def call(self, method: str, *args: Any) -> Any:
        """Call the supervisor and wait. Raises SchedulerUnavailableError where it is gone."""
        try:
            return ray.get(getattr(self.handle, method).remote(*args))
        except ActorUnschedulableError as error:
            raise SchedulerUnavailableError(_without_node(self.settings.name)) from error
        except SchedulerUnavailableError as error:
            raise _as_told(error) from None
        except RayActorError as error:
            raise SchedulerUnavailableError(
                f"scheduler {self.settings.name!r} does not answer: {error}. If it was shut down, "
                "make a new one"
            ) from error

    def end(self) -> None:
        """Have the supervisor end everything, then end it."""
        end(self.handle, self.settings.name)


def end(handle: Any, name: str) -> None:
    """Have a supervisor end everything, also one that cannot begin, then end it."""
    try:
        ray.get(handle.shutdown.remote())
    except RayActorError:
        return
    except ActorUnschedulableError:
        # It can never come back, but its name is taken until it is killed.
        ray.kill(handle)
        raise SchedulerUnavailableError(_without_node(name)) from None
    ray.kill(handle)


def connect(settings: SchedulerSettings, node_id: str | None = None) -> Connection:
    """The connection to the living supervisor of this name, or to a new one.

    A new one is pinned to ``node_id`` (None: this node), because its journal lies there. Raises
    SchedulerExistsError where a living one belongs to another job and is not detached.
    """
    require_ray()
    job_id = ray.get_runtime_context().get_job_id()
    actor = ray.remote(Supervisor).options(
        name=actor_name(settings.name),
        namespace=settings.namespace,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_concurrency=100_000,
        # Killed, it comes back by itself, and calls that were under way are made again: each carries
        # what tells a repeated request.
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(
            # A file lies on its node; a database is reached from any.
            node_id or ray.get_runtime_context().get_node_id(),
            soft="://" in (settings.state_path or ""),
        ),
    )
    handle = actor.remote(settings, job_id)
    try:
        hello = _greet(handle, settings)
    except SchedulerUnavailableError:
        _withdraw(handle, settings)
        raise
    if not hello.detached and hello.job_id != job_id:
        raise SchedulerExistsError(
            f"scheduler {settings.name!r} in namespace {settings.namespace!r} is alive and tied to job "
            f"{hello.job_id}; choose another name, or make it detached to share it"
        )
    return Connection(handle, settings, hello)


def _withdraw(handle: Any, settings: SchedulerSettings) -> None:
    """End a new supervisor that cannot begin; its name is free then."""
    try:
        ray.get(handle.withdraw.remote(), timeout=_BEGIN_S)
    except RayError:
        # It ended itself, which is known a moment before its name is free.
        deadline = time.monotonic() + _NAME_S
        while time.monotonic() < deadline and _is_named(handle, settings):
            time.sleep(0.005)


def _is_named(handle: Any, settings: SchedulerSettings) -> bool:
    """Whether this actor still has the supervisor's name."""
    try:
        found = ray.get_actor(actor_name(settings.name), namespace=settings.namespace)
    except ValueError:
        return False
    return actor_id(found) == actor_id(handle)


def find(settings: SchedulerSettings) -> Connection:
    """The connection to a living supervisor. Raises SchedulerNotFoundError where there is none."""
    handle = registered(settings)
    return Connection(handle, settings, _greet(handle, settings))


def registered(settings: SchedulerSettings) -> Any:
    """The handle of the supervisor of this name, which may be unable to begin. Raises
    SchedulerNotFoundError.
    """
    require_ray()
    try:
        return ray.get_actor(actor_name(settings.name), namespace=settings.namespace)
    except ValueError as error:
        start = f"RayScheduler({settings.name!r}, namespace={settings.namespace!r}, detached=True"
        if settings.state_path is not None:
            start += f", state_path={settings.state_path!r}"
        raise SchedulerNotFoundError(
            f"no scheduler {settings.name!r} lives in namespace {settings.namespace!r}; "
            f"start one with {start})"
        ) from error


def actor_name(name: str) -> str:
    """The Ray name of a scheduler's supervisor."""
    return f"schedulemesh:{name}"


def require_ray() -> None:
    """Raise where this process is not connected to a Ray."""
    if not ray.is_initialized():
        raise InvalidRequestError(
            "Ray is not running in this process; call ray.init() first, or use SimpleScheduler, which does"
        )


def _greet(handle: Any, settings: SchedulerSettings) -> Hello:
    try:
        hello: Hello = ray.get(handle.hello.remote(), timeout=_BEGIN_S)
    except ActorUnschedulableError as error:
        raise SchedulerUnavailableError(_without_node(settings.name)) from error
    except SchedulerUnavailableError as error:
        raise _as_told(error) from None
    except RayError as error:
        raise SchedulerUnavailableError(
            f"scheduler {settings.name!r} could not begin: {error}"
        ) from error
    mine = platform.python_version_tuple()[:2]
    theirs = tuple(hello.python.split(".")[:2])
    if hello.protocol != PROTOCOL_VERSION or mine != theirs:
        raise ProtocolMismatchError(
            f"the supervisor speaks protocol {hello.protocol} on Python {hello.python}, this process "
            f"protocol {PROTOCOL_VERSION} on Python {platform.python_version()}; use the same versions"
        )
    return hello


def _as_told(error: SchedulerUnavailableError) -> SchedulerUnavailableError:
    """What the supervisor raised, without Ray's traceback around it."""
    return SchedulerUnavailableError(str(getattr(error, "cause", error)))


def _without_node(name: str) -> str:
    """A journal in a file cannot move, so its supervisor cannot either."""
    return (
        f"scheduler {name!r} cannot serve: the node that its journal lies on is gone, and a journal in a "
        "file is served from its own node only. Its agents on other nodes live on without it; shutdown() "
        "gives its name up, and a new one goes on where its state_path leads to a copy of the file"
    )
