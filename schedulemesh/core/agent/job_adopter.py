"""The runner of an adopted job: an agent whose object stands for a Ray job that somebody else has started."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

import psutil

from schedulemesh.core.agent.control_channel import current
from schedulemesh.core.agent.exec_process import begin_exec
from schedulemesh.core.agent.job_runner import node_id
from schedulemesh.protocol.agents import JobStart, unpack
from schedulemesh.protocol.exec_messages import ExecOrder

#: Seconds between two looks at whether the driver has ended.
_LOOK_S = 0.2
#: Seconds from SIGTERM to SIGKILL, where it was not given notice.
_KILL_S = 3.0
#: What Ray calls the process of an actor that runs a submitted command, and what is in the command of the
#: shell beside it.
_RAYS_ACTOR, _WATCHER = "JobSupervisor", "while kill -s 0"
#: Seconds by which the clocks of processes and of Ray may differ.
_CLOCKS_S = 2.0


class JobAdopter:
    """Waits for the end of the driver of a Ray job, and ends it. It runs on the driver's node.

    The actors and placement groups of the job are ended by the supervisor. Notice and cancellation come on
    another thread than the run.
    """

    def __init__(
        self,
        name: str,  # noqa: ARG002  # every agent's class takes them
        labels: dict[str, str],  # noqa: ARG002  # as above
        driver_pid: int,
        started_at: float,
        job: JobStart | None = None,
    ) -> None:
        if job is None:
            raise ValueError(
                "a Ray job is adopted with adopt_job, which says what its runner needs"
            )
        process = driver_process(driver_pid, started_at)
        self._driver, self._job = _command_of(process), job
        #: The command is a shell, with a process group of its own.
        self._is_command = self._driver != process
        self._ended = threading.Event()
        self._stopped = False

    def run_driver(self) -> dict[str, Any]:
        """Return when the driver has ended; its exit code is not known."""
        while _runs(self._driver):
            self._ended.wait(_LOOK_S)
        self._ended.set()
        channel = current()
        if self._stopped and channel is not None:
            # It has ended because it is evicted or cancelled.
            channel.note_cancelled(self._job.task_id)
        return {"exit_code": None, "attempt": self._job.attempt, "node_id": node_id()}

    def on_preemption_notice(self, seconds: float) -> None:
        """Send SIGTERM to the driver, which knows no other notice; returns when it has ended, or the seconds
        are over.
        """
        self._end(kill=False)
        self._ended.wait(max(0.0, seconds))

    def cancel(self, task_id: str) -> dict[str, Any]:  # noqa: ARG002  # it runs one task
        """End the driver, and return when it has ended. After a notice its time is over."""
        wait_s = 0.0 if self._stopped else _KILL_S
        self._end(kill=False)
        if not self._ended.wait(wait_s):
            self._end(kill=True)
            self._ended.wait()
        return {"success": True}

    def begin_exec(self, order: bytes) -> dict[str, Any]:
        """Start a command in the environment and the folder that the driver began with; without success where
        it has ended. Raises OSError where nobody takes its output.
        """
        try:
            environment, folder = self._driver.environ(), self._driver.cwd()
        except psutil.NoSuchProcess:
            return {"success": False}
        begin_exec(unpack(order, ExecOrder), environment, Path(folder))
        return {"success": True}

    def _end(self, *, kill: bool) -> None:
        self._stopped = True
        # It may end at any moment.
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            sent = signal.SIGKILL if kill else signal.SIGTERM
            if self._is_command and self._driver.is_running():
                os.killpg(self._driver.pid, sent)
            else:
                self._driver.send_signal(sent)


def driver_process(pid: int, started_at: float) -> psutil.Process:
    """The process of a driver on this node. ``started_at``: when its job began, in seconds since 1970; 0: it
    is just beginning. Raises ValueError where it is none that this process may end.
    """
    try:
        driver = psutil.Process(pid)
        younger = 0 < started_at < driver.create_time() - _CLOCKS_S
    except psutil.NoSuchProcess:
        younger = True
    if younger:
        raise ValueError(
            f"the driver of the Ray job, process {pid}, is no process of its node, as where the driver runs "
            "in a container of its own; it cannot be adopted"
        )
    if driver.uids().real != psutil.Process().uids().real:
        raise ValueError(f"the driver of the Ray job, process {pid}, belongs to another user")
    return driver


def _command_of(process: psutil.Process) -> psutil.Process:
    """The process that runs the command of ``ray job submit``, where this is that of Ray's actor for it,
    which ends by itself when the command has ended.
    """
    with contextlib.suppress(psutil.Error):
        if _RAYS_ACTOR in process.name() or _RAYS_ACTOR in " ".join(process.cmdline()):
            # Beside the command it has a shell that ends the command where the actor dies.
            commands = [
                child for child in process.children() if _WATCHER not in " ".join(child.cmdline())
            ]
            if commands:
                return commands[0]
    return process


def _runs(process: psutil.Process) -> bool:
    """Whether a process runs; its id may belong to another one by now."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
