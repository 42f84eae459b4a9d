"""The command lease: another command on this machine, such as a shell, for as long as a lease is held.

The lease ends with the Ray job of this process, so nothing of it is left however the process ends.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from schedulemesh.cli.changes import pairs
from schedulemesh.cli.command import Target, TerminatedError, command, note
from schedulemesh.cli.job_options import DescriptionOptions, task_arguments
from schedulemesh.cli.language import phrase
from schedulemesh.cli.priorities import PriorityOption
from schedulemesh.cli.texts import megabytes, seconds
from schedulemesh.errors import InvalidRequestError

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway
    from schedulemesh.client.leases import Lease

app = typer.Typer()

#: Seconds that Ray may take to say which devices the lease has.
_DEVICES_S = 60.0


@command(app)
def lease(
    target: Target,
    described: DescriptionOptions,
    pool: Annotated[str, typer.Option(help="The pool that it is leased from.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND…", help="The command, after `--`; else your shell."),
    ] = None,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs.")] = 0.0,
    cpus: Annotated[
        float | None, typer.Option(min=0, help="CPUs; else one for each GPU, at least one.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory: 512MB, 64GB, or a number of MB.")
    ] = None,
    task_id: Annotated[str | None, typer.Option("--id", help="Its id; else one is made.")] = None,
    priority: PriorityOption = 5.0,
    grace: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="From SIGTERM to its end when it is evicted: 90s."),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID[,ID]",
            help="Tasks that it is granted after: when they have completed, any:ID however it ends, fail:ID "
            "when it does not complete. Repeatable.",
        ),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Refuse it where it does not fit, instead of queueing it.")
    ] = False,
) -> int:
    """Run a command on this machine under a lease, such as `schedulemesh lease --gpus 1 -- bash`.

    It waits for its turn, and the lease ends with the command. What the command leaves behind is ended, too.
    """
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.cli.ray_gateway import attached
    from schedulemesh.domain.names import parse_name

    name = f"lease-{uuid.uuid4().hex[:8]}" if task_id is None else parse_name(task_id, "--id")
    bundle, command_words = _bundle(gpus, cpus, memory), _command(words)
    labels = pairs(described.label or (), "--label", "a label is LABEL=VALUE")
    arguments = task_arguments(described)
    grace_s = None if grace is None else seconds(grace, "--grace")
    with gateway_to(target) as gateway, attached(target) as calls, _ended_by_hangup():
        granted = calls.lease(
            name,
            pool,
            [[bundle]],
            priority=priority,
            queue=not now,
            grace_s=grace_s,
            labels=labels,
            after=",".join(after) if after else None,
            label_selector={"ray.io/node-id": _own_node()},
            **arguments,
        )
        with granted:
            return _session(gateway, granted, bundle, command_words)


def _bundle(gpus: float, cpus: float | None, memory: str | None) -> dict[str, float]:
    """What the lease holds; memory in MB. Raises InvalidRequestError where that is nothing."""
    amounts = {
        "cpu": max(1.0, math.ceil(gpus)) if cpus is None else cpus,
        "gpu": gpus,
        "memory": 0.0 if memory is None else megabytes(memory, "--memory"),
    }
    bundle = {kind: amount for kind, amount in amounts.items() if amount}
    if not bundle:
        raise InvalidRequestError("a lease holds something; say --gpus, --cpus or --memory")
    return bundle


def _command(words: list[str] | None) -> list[str]:
    """The command that is run, which is the user's shell where none is said. Raises InvalidRequestError."""
    command_words = words or [os.environ.get("SHELL", "sh")]
    if shutil.which(command_words[0]) is None:
        raise InvalidRequestError(f"there is no command {command_words[0]!r} on this machine")
    return command_words


def _session(
    gateway: Gateway, waiting_lease: Lease, bundle: Mapping[str, float], words: list[str]
) -> int:
    """Wait for the lease, and run the command under it; its exit code."""
    from schedulemesh.cli.job_ends import QueueNotes
    from schedulemesh.cli.terminal import Session

    QueueNotes(gateway, waiting_lease.task_id).until_started()
    waiting_lease.wait()
    note(phrase("remark_lease_granted", name=waiting_lease.task_id))
    environment = {**os.environ, **_environment(gateway, waiting_lease, bundle)}
    return Session(waiting_lease, words, environment).run()


def _own_node() -> str:
    import ray

    node_id: str = ray.get_runtime_context().get_node_id()
    return node_id


@contextmanager
def _ended_by_hangup() -> Iterator[None]:
    """Within, the end of the terminal ends this command as SIGTERM does, unless it is to be ignored."""

    def hung_up(_number: int, _frame: FrameType | None) -> None:
        raise TerminatedError

    former = signal.getsignal(signal.SIGHUP)
    if former is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, hung_up)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, former)


def _environment(gateway: Gateway, granted: Lease, bundle: Mapping[str, float]) -> dict[str, str]:
    """The variables by which the command finds its devices, the lease and the scheduler."""
    from schedulemesh.core.agent.ray_process import gpu_variable

    (group,) = granted.placement_groups
    return {
        gpu_variable(): _devices(granted, bundle.get("gpu", 0.0)),
        "OMP_NUM_THREADS": os.environ.get(
            "OMP_NUM_THREADS", str(max(1, int(bundle.get("cpu", 1))))
        ),
        "SCHEDULEMESH_NAME": gateway.name,
        "SCHEDULEMESH_NAMESPACE": gateway.namespace,
        "SCHEDULEMESH_LEASE": granted.task_id,
        "SCHEDULEMESH_PLACEMENT_GROUP": group.id.hex(),
    }


def _devices(granted: Lease, gpus: float) -> str:
    """The GPUs of the lease, as libraries read them. An actor holds them while this process lives."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from schedulemesh.core.agent.job_devices import DeviceHolder

    if not gpus:
        return ""
    place = PlacementGroupSchedulingStrategy(granted.placement_groups[0], 0)
    options = ray.remote(DeviceHolder).options(num_cpus=0, num_gpus=gpus, scheduling_strategy=place)
    try:
        holder = options.remote()
        ids: str = ray.get(holder.ids.remote(), timeout=_DEVICES_S)
    except RayError as error:
        raise InvalidRequestError(f"Ray does not say which GPUs the lease has: {error}") from None
    _HOLDERS.append(holder)
    return ids


#: Actors that hold devices: one to which nothing refers is ended by Ray.
_HOLDERS: list[object] = []
