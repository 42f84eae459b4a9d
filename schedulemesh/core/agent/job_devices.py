"""The part of a job's claim that its driver itself holds in Ray, and the devices that it sees.

A claim is for what the driver starts in Ray, so Ray knows of no device that the driver could use by itself. A
small actor beside the runner holds devices in its place, and Ray says to it which they are. Where no part is
asked for, it holds all GPUs of the claim on this node while the driver is not connected to Ray: two scripts
that do not use Ray then see different devices.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from schedulemesh.core.agent.ray_process import gpu_variable, metadata_of_living_jobs
from schedulemesh.errors import JobFailedError
from schedulemesh.protocol.agents import DEVICES_NAMESPACE, JobStart
from schedulemesh.protocol.job_command import JobCommand

#: Seconds after which the log says that Ray has not given the driver its part of the claim yet; and, where it
#: takes that again, for which it waits for it, and for the same devices.
_SAID_S, _AGAIN_S, _SAME_S = 15.0, 60.0, 5.0
#: By how much a part exceeds a claim at least: amounts are counted in ten-thousandths.
_LEAST_EXCESS = 1.5e-4
#: Seconds between two looks at whether the driver has connected to Ray, by its files and by Ray's table; and
#: at whether it still is, by the table.
_LOOK_S, _TABLE_S, _CONNECTED_S = 0.25, 30.0, 5.0
#: Looks after which a connection that is in no table is over: Ray lists it a moment after its log is opened.
_ABSENT_LOOKS = 3
#: How the log of a process that is connected to Ray begins; the process keeps it open.
_LOG_OF_DRIVERS = "python-core-driver-"
#: The key in the metadata of a Ray job that names its owner.
_OWNER = "schedulemesh_actor"
_THREADS = "OMP_NUM_THREADS"
#: What helps where Ray does not give a driver its part.
_NOT_GIVEN = (
    "other work in Ray may use them: look at `schedulemesh external`, or start the driver without them, with "
    "--driver-gpus 0"
)
_KEEP = "--driver-gpus keeps a part for the driver all the time"


@dataclass(frozen=True, kw_only=True)
class DriverPart:
    """What the driver itself takes of its claim."""

    cpus: float
    gpus: float
    #: Whether it was asked for; otherwise it is given up while the driver is connected to Ray.
    asked_for: bool


class JobDevices:
    """Holds the driver's part of a claim in Ray from ``take`` to ``release``."""

    def __init__(self, job: JobStart, command: JobCommand, node_id: str) -> None:
        self._job, self._node_id = job, node_id
        self._claimed = cpus, gpus = job.claimed.get(node_id, (0.0, 0.0))
        self.part = driver_part(command, cpus, gpus)
        #: The threads of numerical libraries; 0: as many as the claim has CPUs on this node.
        self._threads = int(cpus if command.driver_cpus is None else command.driver_cpus)
        self._holder: Any = None
        self._ids: str | None = None

    def take(self, say: Callable[[str], None]) -> None:
        """Hold the driver's part; ``say`` writes a line to its log. Raises JobFailedError where what was
        asked for is more than the claim on this node, or Ray gives no part within the limit of the start: a
        driver that computes on CPUs instead would not be noticed.
        """
        self._check_part()
        part, limit_s = self.part, self._job.devices_limit_s
        if not (part.gpus or (part.cpus and part.asked_for)):
            return
        what = (
            f"Ray has not given the driver {part.gpus:g} GPUs and {part.cpus:g} CPUs of its claim"
        )
        try:
            self._holder = self._holding(self._job.owner)
            self._ids = self._held_soon(limit_s, say, what)
        except (RayError, ValueError) as error:
            self.release()
            why = f"within {limit_s:g} s" if isinstance(error, GetTimeoutError) else f"({error})"
            message = f"{what} {why}; {_NOT_GIVEN}"
            raise JobFailedError(message, self._job.task_id, exit_code=1) from error
        say(self._held_line())

    def _held_soon(self, limit_s: float, say: Callable[[str], None], what: str) -> str:
        """The devices, which the log says are waited for where that takes long."""
        try:
            return self._held_ids(min(_SAID_S, limit_s))
        except GetTimeoutError:
            if limit_s <= _SAID_S:
                raise
        say(f"{what} within {_SAID_S:g} s; it is started when it has them, within {limit_s:g} s")
        return self._held_ids(limit_s - _SAID_S)

    def _held_line(self) -> str:
        part = self.part
        if part.asked_for:
            return f"the driver holds {part.cpus:g} CPUs and GPU {self._ids or '-'} of its claim"
        return (
            f"the driver sees GPU {self._ids}, all that it claims here; its actors and tasks get them while "
            f"it is connected to Ray. {_KEEP}"
        )

    def _check_part(self) -> None:
        """Raise JobFailedError where the driver's part is more than the claim on this node."""
        cpus, gpus = self._claimed
        part = self.part
        if part.cpus - cpus >= _LEAST_EXCESS or part.gpus - gpus >= _LEAST_EXCESS:
            message = (
                f"driver_gpus and driver_cpus ask for {part.gpus:g} GPUs and {part.cpus:g} CPUs, but on the "
                f"driver's node the job claims {gpus:g} GPUs and {cpus:g} CPUs; lower them, or claim more "
                "there with resources or bundles"
            )
            raise JobFailedError(message, self._job.task_id, exit_code=1)

    def release(self) -> None:
        """Give up what is held, at once."""
        holder, self._holder = self._holder, None
        if holder is not None:
            with contextlib.suppress(RayError, ValueError):
                ray.kill(holder, no_restart=True)

    def follow(self, session: int, ended: threading.Event, say: Callable[[str], None]) -> None:
        """Until the processes of a session have ended: give up what is held by default while one of them is
        connected to Ray, and take it again when none is any more. ``say`` writes a line to the driver's log.
        """
        if self._holder is None or self.part.asked_for:
            return
        logs: Collection[str] = ()
        while self._until_connected(session, ended, logs):
            self.release()
            if not self._until_disconnected(ended):
                return
            # Ray may leave them open.
            logs = logs_of_drivers(session)
            say(self._taken_again())

    def _until_connected(
        self, session: int, ended: threading.Event, old_logs: Collection[str]
    ) -> bool:
        """Whether a process of the session has connected to Ray; False: all have ended. ``old_logs``: of
        connections that are over.
        """
        waited = 0.0
        while not ended.wait(_LOOK_S):
            waited += _LOOK_S
            asks = waited % _TABLE_S < _LOOK_S
            if logs_of_drivers(session).difference(old_logs) or (asks and self._is_connected()):
                return True
        return False

    def _until_disconnected(self, ended: threading.Event) -> bool:
        """Whether no process is connected to Ray any more; False: all have ended."""
        absent = 0
        while absent < _ABSENT_LOOKS:
            if ended.wait(_CONNECTED_S):
                return False
            absent = absent + 1 if self._is_connected() is False else 0
        return True

    def _taken_again(self) -> str:
        """Hold as many devices as before, the same where that can be; returns the line about it."""
        what, names = "the driver's connection to Ray has ended", gpu_variable()
        try:
            self._holder = self._holding(self._job.owner)
            ids = self._held_ids(_AGAIN_S)
            if ids != self._ids:
                ids = self._held_behind_another()
        except (RayError, ValueError) as error:
            self.release()
            why = f"within {_AGAIN_S:g} s" if isinstance(error, GetTimeoutError) else f"({error})"
            return (
                f"{what}, and Ray has not given it GPU {self._ids} again {why}: others may use what its "
                f"{names} names. {_KEEP}"
            )
        if ids == self._ids:
            return f"{what}; GPU {ids} of the claim is held for it again"
        return (
            f"{what}, and others have got GPU {self._ids} meanwhile, which its {names} names; GPU {ids} is "
            f"held for it instead, so set {names}={ids} before it uses GPUs again. {_KEEP}"
        )

    def _held_behind_another(self) -> str:
        """What Ray gives while another actor has the devices that it has given first."""
        self.release()
        first = self._holding(None)
        try:
            ray.get(first.ids.remote(), timeout=_SAME_S)
            self._holder = self._holding(self._job.owner)
            return self._held_ids(_SAME_S)
        except GetTimeoutError:
            self._holder = self._holder or self._holding(self._job.owner)
        finally:
            ray.kill(first, no_restart=True)
        return self._held_ids(_AGAIN_S)

    def _held_ids(self, limit_s: float) -> str:
        """The devices that Ray has given to the holder, within so many seconds."""
        return str(ray.get(self._holder.ids.remote(), timeout=limit_s))

    def environment(self, base: Mapping[str, str], chosen: Collection[str]) -> dict[str, str]:
        """The variables by which libraries find their devices and their number of threads, as Ray sets them.
        Those of the runtime environment (``chosen``) and of the node are the user's.
        """
        name = gpu_variable()
        variables = {}
        if name not in chosen and not _is_on(base.get(f"RAY_EXPERIMENTAL_NOSET_{name}", "")):
            variables[name] = self._ids or ""
        if _THREADS not in base:
            variables[_THREADS] = str(max(1, self._threads))
        return variables

    def _holding(self, name: str | None) -> Any:
        """An actor that holds the driver's part; the supervisor knows one by the name of its owner."""
        pinned = NodeAffinitySchedulingStrategy(self._node_id, soft=False)
        options = ray.remote(DeviceHolder).options(
            num_cpus=self.part.cpus if self.part.asked_for else 0,
            num_gpus=self.part.gpus,
            name=name,
            namespace=DEVICES_NAMESPACE,
            scheduling_strategy=pinned,
        )
        return options.remote()

    def _is_connected(self) -> bool | None:
        """Whether a driver of the job is connected to Ray; None: Ray does not answer."""
        try:
            return self._job.owner in metadata_of_living_jobs(_OWNER)
        except RayError:
            return None


class DeviceHolder:
    """Holds devices, and says which they are."""

    def ids(self) -> str:
        """The GPUs that Ray has given to it, as libraries read them."""
        return ",".join(map(str, ray.get_runtime_context().get_accelerator_ids().get("GPU", ())))


def driver_part(command: JobCommand, cpus: float, gpus: float) -> DriverPart:
    """What the driver takes of a claim of so many CPUs and GPUs on its node."""
    if command.driver_cpus is None and command.driver_gpus is None:
        return DriverPart(cpus=cpus, gpus=gpus, asked_for=False)
    return DriverPart(
        cpus=command.driver_cpus or 0.0, gpus=command.driver_gpus or 0.0, asked_for=True
    )


def logs_of_drivers(session: int) -> set[str]:
    """The logs of the connections to Ray that processes of a session have, or had."""
    logs: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(process.name)) == session:
                logs.update(filter(_is_log, _files(process)))
    return logs


def _files(process: Path) -> list[str]:
    return [file.readlink().name for file in (process / "fd").iterdir() if file.is_symlink()]


def _is_log(name: str) -> bool:
    return name.startswith(_LOG_OF_DRIVERS)


def _is_on(flag: str) -> bool:
    return flag.lower() in ("1", "true")
