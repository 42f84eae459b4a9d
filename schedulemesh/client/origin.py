"""The job that this process is the driver of, as the environment of the driver says; who its user is."""

from __future__ import annotations

import getpass
import os

import msgspec

from schedulemesh.domain.names import is_name


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What started this process: a scheduler, for a task of its own."""

    name: str
    namespace: str
    #: Empty: an agent that was started without a task.
    task_id: str


def job_origin() -> Origin | None:
    """What started this process; None: it is not the driver of a job."""
    task_id = os.environ.get("SCHEDULEMESH_TASK_ID", "")
    name = os.environ.get("SCHEDULEMESH_NAME", "")
    namespace = os.environ.get("SCHEDULEMESH_NAMESPACE", "")
    # A shell in which commands are given may have the others.
    if not (task_id and name and namespace):
        return None
    return Origin(name=name, namespace=namespace, task_id=task_id)


def task_within(origin: Origin | None, name: str, namespace: str) -> str:
    """The task of this scheduler that a process runs for; empty: it runs for none, or for another's."""
    if origin is None or (origin.name, origin.namespace) != (name, namespace):
        return ""
    return origin.task_id


def user_name() -> str:
    """The user that this process runs as: by name, or by number where the system has no usable name."""
    try:
        name = getpass.getuser()
    except (ImportError, KeyError, OSError):
        # A container without an entry for its user.
        name = ""
    return name if is_name(name) else f"uid:{os.getuid()}"
