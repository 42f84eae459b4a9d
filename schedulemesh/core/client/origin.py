"""The scheduler and the task that this process runs for: those of the job or the agent that it belongs to."""

from __future__ import annotations

import os

from schedulemesh.client.origin import Origin, job_origin, task_within
from schedulemesh.config.settings import DEFAULT_NAMESPACE
from schedulemesh.core.agent.control_channel import current


def origin() -> Origin | None:
    """What started this process; None: it is neither the driver of a job nor an agent's process."""
    channel = current()
    if channel is not None:
        return Origin(name=channel.scheduler, namespace=channel.namespace, task_id=channel.task_id)
    return job_origin()


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
    return task_within(origin(), name, namespace)
