"""The scheduler and the task that this process runs for: those of the job or the agent that it belongs to."""

from __future__ import annotations

import os

import msgspec

from schedulemesh.config.settings import DEFAULT_NAMESPACE
from schedulemesh.core.agent.control_channel import current


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What started this process: a scheduler, for a task of its own."""

    name: str
    namespace: str
    #: Empty: an agent that was started without a task.
    task_id: str


def origin() -> Origin | None:
    """What started this process; None: it is neither the driver of a job nor an agent's process."""
    channel = current()
    if channel is not None:
        return Origin(name=channel.scheduler, namespace=channel.namespace, task_id=channel.task_id)
    task_id = os.environ.get("SCHEDULEMESH_TASK_ID", "")
    name = os.environ.get("SCHEDULEMESH_NAME", "")
    namespace = os.environ.get("SCHEDULEMESH_NAMESPACE", "")
    # A shell in which commands are given may have the others.
    if not (task_id and name and namespace):
        return None
    return Origin(name=name, namespace=namespace, task_id=task_id)


def own_scheduler(name: object, namespace: object) -> Origin | None:
    """The scheduler that started this process, if these arguments leave out which one is meant, or name its
    namespace only; None: they mean another, or nothing started this process.
    """
    origin_here = origin()
    if origin_here is None or name is not None or namespace not in (None, origin_here.namespace):
        return None
    return origin_here


def named_scheduler(name: object, namespace: object) -> tuple[object, object]:
    """The name and the namespace that these arguments, the job or agent that this process belongs to, or the
    environment give, in this order; None where nothing does.
    """
    if name is not None:
        return name, namespace
    own_origin = own_scheduler(name, namespace)
    if own_origin is not None:
        return own_origin.name, own_origin.namespace
    named_namespace = os.environ.get("SCHEDULEMESH_NAMESPACE") or None
    if namespace not in (None, named_namespace or DEFAULT_NAMESPACE):
        return None, namespace
    return os.environ.get("SCHEDULEMESH_NAME") or None, namespace or named_namespace


def task_of(name: str, namespace: str) -> str:
    """The task of this scheduler that this process runs for; empty: it runs for none, or for another's."""
    origin_here = origin()
    is_own = origin_here is not None and (origin_here.name, origin_here.namespace) == (
        name,
        namespace,
    )
    return origin_here.task_id if origin_here is not None and is_own else ""
