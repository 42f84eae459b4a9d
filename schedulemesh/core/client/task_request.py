"""Requests: what a caller says, validated and made into one stimulus and its blobs."""

from __future__ import annotations

import os
import socket
import uuid
import weakref
from collections.abc import Mapping
from typing import Any

import msgspec
from ray.actor import ActorClass

from schedulemesh.config.groups import parse_bundles
from schedulemesh.core.client.arguments import check_constructor
from schedulemesh.core.client.ray_options import parse_options
from schedulemesh.core.transport.user_code import ship_arguments, ship_class, ship_value
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.containers import as_elements, as_items
from schedulemesh.domain.kinds import is_a
from schedulemesh.domain.labels import parse_labels, parse_selector
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import parse_duration, parse_flag, parse_priority
from schedulemesh.domain.resources import NOTHING, Resources, parse_resources, sum_of
from schedulemesh.domain.task import DEFAULT_PRIORITY, TaskSpec
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.requests import SubmitTask

#: Bytes of classes that were shipped already.
_shipped: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()

#: Characters of this machine's name that clients are recorded under.
_HOST_CHARS = 200


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A submission, ready to be sent."""

    request: SubmitTask
    #: Object references: whole arguments, and those within others.
    refs: tuple[list[Any], list[Any]]


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the calling job."""

    namespace: str
    runtime_env: dict[str, Any]


def submission(
    caller: Caller,
    *,
    task: TaskSpec | None,
    payload: bytes | None,
    pool_name: object,
    pool_selector: object,
    actor_class: object,
    resources: object,
    labels: object,
    actor_args: object,
    actor_kwargs: object,
    agent_name: object,
    ray_options: object,
    request_id: object,
    dry_run: object = False,
    bundles: object = None,
) -> Submission:
    """A submission of an agent, with a task where one is given. Raises InvalidRequestError."""
    cls, beneath = unwrap(actor_class)
    need, parts = _need(resources, bundles)
    # The actor itself lives in the first bundle.
    own = parts[0] if parts else need
    options = parse_options(ray_options, beneath, own, caller.runtime_env, caller.namespace)
    code = class_bytes(cls)
    args, kwargs = _args(actor_args), _kwargs(actor_kwargs)
    check_constructor(cls, args, kwargs)
    shipped = ship_arguments(args, kwargs)
    blobs = {key_of(code): code, key_of(shipped.data): shipped.data}
    if payload is not None:
        blobs[key_of(payload)] = payload
    agent = AgentSpec(
        name="" if agent_name is None else parse_name(agent_name, "agent_name"),
        pool_name=_pool(pool_name, pool_selector),
        resources=NOTHING if need is None else need,
        labels=parse_labels(labels),
        class_key=key_of(code),
        arguments_key=key_of(shipped.data),
        options=options.encoded,
        restartable=not shipped.nested,
        bundles=parts,
        references=len(shipped.refs) + len(shipped.nested),
    )
    request = SubmitTask(
        agent=agent,
        default_resources=need is None,
        task=task,
        selector=() if pool_selector is None else parse_selector(pool_selector),
        request_id=(
            uuid.uuid4().hex if request_id is None else parse_name(request_id, "request_id")
        ),
        choose_node=options.choose_node,
        dry_run=parse_flag(dry_run, "dry_run"),
        client=client_name(),
        blobs=blobs,
    )
    return Submission(request=request, refs=(list(shipped.refs), list(shipped.nested)))


def client_name() -> str:
    """How the scheduler records this process."""
    return f"{socket.gethostname()[:_HOST_CHARS]}:{os.getpid()}"


def parse_task(
    task_id: object,
    pool_name: object,
    priority: object,
    labels: object,
    estimated_duration: object,
    payload: object,
) -> tuple[TaskSpec, bytes | None]:
    """A task and its payload's bytes. Raises InvalidRequestError naming what is wrong."""
    data = None if payload is None else ship_value(payload, "the payload")
    spec = TaskSpec(
        task_id=parse_name(task_id, "task_id"),
        pool_name="" if pool_name is None else parse_name(pool_name, "the pool's name"),
        priority=DEFAULT_PRIORITY if priority is None else parse_priority(priority),
        labels=parse_labels(labels),
        estimated_duration=(
            None if estimated_duration is None else parse_duration(estimated_duration)
        ),
        payload_key=None if data is None else key_of(data),
    )
    return spec, data


def unwrap(actor_class: object) -> tuple[type, Mapping[str, Any]]:
    """The plain class and the options of its ``@ray.remote``, if it has one."""
    if is_a(actor_class, ActorClass):
        metadata = actor_class.__ray_metadata__
        modified = metadata.modified_class
        beneath = getattr(actor_class, "_default_options", None) or {}
        cls = getattr(modified, "__ray_actor_class__", modified)
    else:
        cls, beneath = actor_class, {}
    if not is_a(cls, type):
        raise InvalidRequestError(f"actor_class must be a class, not {shown(actor_class)}")
    return cls, beneath


def class_bytes(cls: type) -> bytes:
    """The class as it is shipped; made once. Raises InvalidRequestError."""
    data = _shipped.get(cls)
    if data is None:
        data = _shipped[cls] = ship_class(cls)
    return data


def _need(resources: object, bundles: object) -> tuple[Resources | None, tuple[Resources, ...]]:
    """What an agent takes in all (None: its pool's default), and its bundles if it names any."""
    need = None if resources is None else parse_resources(resources)
    if bundles is None:
        return need, ()
    parts = parse_bundles(bundles)
    total = sum_of(parts)
    if need is not None and need != total:
        raise InvalidRequestError(
            f"resources are {need}, but the bundles make {total}; leave resources out, or make both the same"
        )
    return total, parts


def _pool(pool_name: object, pool_selector: object) -> str:
    if pool_name is None and pool_selector is None:
        raise InvalidRequestError("name a pool, or give a pool_selector that chooses one")
    if pool_name is not None and pool_selector is not None:
        raise InvalidRequestError("give a pool or a pool_selector, not both")
    return "" if pool_name is None else parse_name(pool_name, "the pool's name")


def _args(given: object) -> tuple[Any, ...]:
    return () if given is None else tuple(as_elements(given, "actor_args", "a list"))


def _kwargs(given: object) -> dict[str, Any]:
    if given is None:
        return {}
    found: dict[str, Any] = {}
    for key, value in as_items(given, "actor_kwargs", "a dict of named arguments"):
        name = as_text(key)
        if name is None:
            raise InvalidRequestError(
                f"actor_kwargs must be a dict of named arguments, not {shown(given)}"
            )
        found[name] = value
    return found
