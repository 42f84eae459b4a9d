"""How actors died, as Ray's actor table says it, in words for people.

Ray knows the exit code of a process that Python has ended, and who killed it where it was Ray itself. Of one
that was killed by the system, has crashed or has called ``os._exit`` it knows only that its connection was
closed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from ray import ActorID
from ray.core.generated import common_pb2, gcs_pb2

from schedulemesh.core.backend.environment_errors import cause_of
from schedulemesh.core.backend.ray_internals import actor_data, actor_entries
from schedulemesh.domain.agent import Death

#: In the message of Ray's memory monitor: what the node had in use and has, in GB; and its id.
_NODE_MEMORY = re.compile(r"([\d.]+)GB(?: used)? / ([\d.]+)GB")
_NODE_ID = re.compile(r"\bID: ([0-9a-f]{20,})")
#: What an actor had, in GB, after its id.
_USED = re.compile(r"[^\n]*?memory used=([\d.]+)GB")
_DETAIL = re.compile(r"Worker exit detail: (.*)", re.DOTALL)
_MB_PER_GB = 1024
#: Characters of a message of Ray that is not known here.
_MAX_CHARS = 300
_WITHOUT_NOTICE = (
    "ended without notice to Ray: it was killed (SIGKILL, which the kernel also sends where memory runs "
    "out), it crashed, or it called os._exit()"
)
#: What Ray says of the end of a process, and that as a clause. It has no other form than text; the first one
#: is that of a connection that was closed.
_EXITS = (
    (re.compile("connection error code"), _WITHOUT_NOTICE),
    (re.compile(r"exit_actor\(\)|requested to exit the actor"), "called exit_actor()"),
    (re.compile("SIGTERM"), "was ended by SIGTERM"),
    (re.compile(r"exit code (\d+)"), r"exited with code \1"),
)
_DIED = common_pb2.ActorDiedErrorContext


def death_of(handle: Any) -> Death | None:
    """How an actor died; None: it is not dead, or Ray does not know it."""
    data = actor_data(handle)
    return None if data is None or data.state != gcs_pb2.ActorTableData.DEAD else _death(data)


def has_lost_room(handle: Any) -> bool:
    """Whether an actor is dead because its node has died, or because the node or placement group is gone in
    which it was to be made.
    """
    data = actor_data(handle)
    if data is None or data.state != gcs_pb2.ActorTableData.DEAD:
        return False
    cause = data.death_cause
    kind = cause.WhichOneof("context")
    if kind == "actor_died_error_context":
        return bool(cause.actor_died_error_context.reason == _DIED.NODE_DIED)
    return bool(kind == "actor_unschedulable_context")


def deaths_of(addresses: Collection[tuple[str, str]]) -> dict[tuple[str, str], Death]:
    """How the actors with these (namespace, name) died last; those that never did are left out. All dead
    actors are looked through, of which Ray keeps up to 100,000.
    """
    namespaces = {namespace.encode() for namespace, _ in addresses}
    last: dict[tuple[str, str], Any] = {}
    for entry in actor_entries(("DEAD",)):
        if not any(namespace in entry for namespace in namespaces):
            continue
        data = gcs_pb2.ActorTableData.FromString(entry)
        address = data.ray_namespace, data.name
        if address in addresses:
            before = last.get(address)
            if before is None or before.end_time <= data.end_time:
                last[address] = data
    return {address: _death(data) for address, data in last.items()}


def _death(data: Any) -> Death:
    cause = data.death_cause
    kind = cause.WhichOneof("context")
    if kind == "oom_context":
        return _out_of_memory(cause.oom_context.error_message, ActorID(data.actor_id).hex())
    if kind == "runtime_env_failed_context":
        line = cause_of(cause.runtime_env_failed_context.error_message)
        return Death(
            how=f"was not started: its runtime environment could not be set up: {line}",
            detail=cause.runtime_env_failed_context.error_message,
        )
    if kind == "actor_unschedulable_context":
        message = _shortened(cause.actor_unschedulable_context.error_message)
        return Death(how=f"was not started: Ray cannot place it: {message}")
    if kind == "actor_died_error_context":
        return Death(how=_died(cause.actor_died_error_context, data.address.node_id.hex()))
    return Death(how="died, and Ray does not say how")


def _out_of_memory(message: str, actor_id: str) -> Death:
    """What Ray's memory monitor said when it killed an actor."""
    node_match = _NODE_ID.search(message)
    node = "its node" if node_match is None else f"node {node_match[1]}"
    usage_match = _USED.match(message.partition(actor_id)[2])
    memory = _NODE_MEMORY.search(message)
    figures = [f"it had {usage_match[1]} GB"] if usage_match is not None else []
    if memory is not None:
        figures.append(f"{memory[1]} of {memory[2]} GB were in use there")
    details = f": {', and '.join(figures)}" if figures else ""
    return Death(
        how=f"was killed by Ray because {node} was short of memory{details}",
        out_of_memory=True,
        memory_mb=0.0 if usage_match is None else float(usage_match[1]) * _MB_PER_GB,
    )


def _died(context: Any, node_id: str) -> str:
    """What the context of a death says, as a clause."""
    if context.reason == _DIED.NODE_DIED:
        why = _shortened(context.node_death_info.reason_message)
        return f"was on node {node_id}, which has died" + (f": {why}" if why else "")
    if context.reason == _DIED.RAY_KILL:
        return "was ended with ray.kill()"
    detail_match = _DETAIL.search(context.error_message)
    if detail_match is None:
        return f"died: {_shortened(context.error_message)}".removesuffix(": ")
    detail = detail_match[1]
    for pattern, how in _EXITS:
        if match := pattern.search(detail):
            return match.expand(how)
    return f"died: {_shortened(detail)}"


def _shortened(message: str) -> str:
    """The first line of a message."""
    line = message.strip().partition("\n")[0].rstrip(".")
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}..."
