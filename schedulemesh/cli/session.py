"""The command lease: another command on this machine, such as a shell, for as long as a lease is held.

The lease ends with the Ray job of this process, so nothing of it is left however the process ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from schedulemesh.cli.changes import pairs
from schedulemesh.cli.command import Target, TerminatedError, command, note
from schedulemesh.cli.texts import megabytes, seconds
from schedulemesh.core.agent.process_marks import living as living_process
from schedulemesh.core.agent.process_marks import mark_of, mark_this_process, marked, terminate
from schedulemesh.errors import InvalidRequestError

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway
    from schedulemesh.client.leases import Lease

app = typer.Typer()

#: What a shell adds to the number of a signal that has ended a process, and what it exits with where a
#: command cannot be run.
_SIGNALLED, _NOT_RUNNABLE = 128, 126
#: Seconds between two looks at the lease.
_LOOK_S = 0.2
#: Seconds for what the command has left to end by itself; the same where the lease has ended already, or its
#: grace is nearly over.
_END_S, _LATE_S = 5.0, 1.0
#: The call by which a process asks for a signal at the death of the one that started it.
_PR_SET_PDEATHSIG = 1
#: Seconds that Ray may take to say which devices the lease has.
_DEVICES_S = 60.0


@command(app)
def lease(
    target: Target,
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
    priority: Annotated[float, typer.Option(help="Its priority.")] = 5.0,
    label: Annotated[
        list[str] | None, typer.Option(metavar="LABEL=VALUE", help="A label of it. Repeatable.")
    ] = None,
    owner: Annotated[
        str | None, typer.Option(help="To whom it belongs; else the user of this process.")
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="From SIGTERM to its end when it is evicted: 90s."),
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
    claim = {
        "cpu": max(1.0, math.ceil(gpus)) if cpus is None else cpus,
        "gpu": gpus,
        "memory": 0.0 if memory is None else megabytes(memory, "--memory"),
    }
    bundle = {kind: amount for kind, amount in claim.items() if amount}
    if not bundle:
        raise InvalidRequestError("a lease holds something; say --gpus, --cpus or --memory")
    command_words = words or [os.environ.get("SHELL", "sh")]
    if shutil.which(command_words[0]) is None:
        raise InvalidRequestError(f"there is no command {command_words[0]!r} on this machine")
    labels = pairs(label or (), "--label", "a label is LABEL=VALUE")
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
            owner=owner,
            label_selector={"ray.io/node-id": _own_node()},
        )
        with granted:
            from schedulemesh.cli.job_ends import QueueNotes

            QueueNotes(gateway, name).until_started()
            granted.wait()
            note(f"lease {name} is granted; it ends with the command")
            environment = {**os.environ, **_environment(gateway, granted, bundle)}
            return Session(granted, command_words, environment).run()


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


class HeldLease(Protocol):
    """What a session needs of a lease."""

    @property
    def state(self) -> str:
        """See Lease."""

    def preempted(self) -> bool:
        """See Lease."""

    def grace_left(self) -> float:
        """See Lease."""


class Session:
    """A command on this terminal, which ends with a lease, and at the latest with this process."""

    def __init__(
        self, granted: HeldLease, words: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._lease, self._words, self._environment = granted, words, environment
        #: What the command and everything that it starts is marked with.
        self._mark = mark_of("session", "", uuid.uuid4().hex)
        self._ended = threading.Event()

    def run(self) -> int:
        """The command's exit code, once it and all that it has started has ended. SIGINT is the command's."""
        mark_this_process(self._mark)
        former = signal.signal(signal.SIGINT, signal.SIG_IGN)
        libc = ctypes.CDLL(None)

        def prepare() -> None:
            signal.signal(signal.SIGINT, former)
            # Killed, this process could not end it.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)

        try:
            process = subprocess.Popen(  # noqa: S603  # what the user wants to run
                self._words,
                env=self._environment,
                preexec_fn=prepare,  # noqa: PLW1509  # it calls the system only
            )
        except OSError as error:
            note(f"{self._words[0]!r} cannot be run: {error}")
            return _NOT_RUNNABLE
        try:
            threading.Thread(target=self._follow, name="lease", daemon=True).start()
            code = process.wait()
        finally:
            self._ended.set()
            signal.signal(signal.SIGINT, former)
            self._end(_END_S)
            process.wait()
        return code if code >= 0 else _SIGNALLED - code

    def _follow(self) -> None:
        """Tell the command of the eviction of its lease, and end it when the lease ends."""
        notified = False
        while not self._ended.wait(_LOOK_S):
            if self._lease.preempted() and not notified:
                notified = True
                left_s = self._lease.grace_left()
                note(
                    f"the lease is evicted: the command is ended in {left_s:.0f} s; save your work"
                )
                self._send(signal.SIGTERM)
            over = notified and self._lease.grace_left() <= _LATE_S
            if over or self._lease.state not in ("running", "preempting"):
                if not notified:
                    note(f"the lease has ended ({self._lease.state}), and the command with it")
                self._end(_LATE_S)
                return

    def _end(self, patience_s: float) -> None:
        """End the command and all that it has started, within some seconds. At SIGHUP shells end."""
        self._send(signal.SIGTERM, signal.SIGHUP, signal.SIGCONT)
        end = time.monotonic() + patience_s
        while marked(self._mark) and time.monotonic() < end:
            time.sleep(_LOOK_S)
        asyncio.run(terminate(self._mark))

    def _send(self, *signals: signal.Signals) -> None:
        for process in marked(self._mark):
            if living_process(process.pid) == process:
                for number in signals:
                    try:
                        os.kill(process.pid, number)
                    except (ProcessLookupError, PermissionError):
                        break
