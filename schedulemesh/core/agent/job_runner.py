"""The runner of a job: the agent whose object runs a driver command as a process of its own."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import ray

from schedulemesh.api.logs import TaskKey
from schedulemesh.config.private_files import check_owner, make_private_folder, open_private
from schedulemesh.core.agent.control_channel import current
from schedulemesh.core.agent.exec_process import begin_exec
from schedulemesh.core.agent.job_devices import JobDevices
from schedulemesh.core.agent.job_folders import (
    LogWriter,
    contains_file,
    job_folder,
    last_written,
    occupy,
    prune,
    task_folder,
)
from schedulemesh.core.agent.process_marks import JOB_MARK
from schedulemesh.errors import JobFailedError, shown
from schedulemesh.protocol.agents import JobStart, unpack
from schedulemesh.protocol.exec_messages import ExecOrder
from schedulemesh.protocol.job_command import JobCommand

#: Seconds after which output of a driver that has ended is looked for again, and how often there may be more:
#: a process that it has left behind keeps the pipe open, and may write on.
_OUTPUT_S, _OUTPUT_LOOKS = 2.0, 15
#: Seconds between two looks whether processes that got SIGTERM have ended, and the states of those that have.
_GROUP_LOOK_S, _ENDED = 0.05, "ZX"
#: Seconds between two signs that the folder of a job is in use.
_ALIVE_S = 3600.0
#: Seconds between two looks for what the driver has saved, and by how many times the duration of a look they
#: are longer: the folder may be large, or far away.
_SAVED_S, _SAVED_FACTOR = 10.0, 20.0
#: By how many seconds the wall clock must have been set back, so that it counts as set.
_CLOCK_STEP_S = 1.0
#: What a shell exits with where there is no such command, and where it cannot be run.
_NOT_FOUND, _NOT_RUNNABLE = 127, 126
#: What a shell adds to the number of the signal that has ended its command, and the highest such number.
_BY_SIGNAL, _LAST_SIGNAL = 128, 64
#: Bytes that are read from the driver at once.
_READ_BYTES = 64 * 1024

#: Variables that Ray sets in the processes of actors; a driver is a process like any other.
_OF_ACTORS = (
    "PYTHONBREAKPOINT",
    "RAY_CLIENT_MODE",
    "RAY_JOB_ID",
    "RAY_LD_PRELOAD_ON_WORKERS",
    "RAY_RAYLET_PID",
    "SPT_NOENV",
)
#: Variables that Ray changes in the processes of actors that take no CPUs or GPUs; a driver has those of its
#: node.
_OF_THE_NODE = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
#: The module that Ray's job API asks for its address, and which says whose submissions they are.
_SUBMISSIONS = "schedulemesh.core.agent.job_submissions"


class JobRunner:
    """Runs the driver of one attempt. Notice and cancellation come on another thread than the run."""

    def __init__(
        self,
        name: str,
        labels: dict[str, str],  # noqa: ARG002  # every agent's class takes them
        command: JobCommand,
        job: JobStart | None = None,
    ) -> None:
        if job is None:
            raise ValueError("a job is submitted with submit_job, which says what its runner needs")
        self._command, self._job = command, job
        key = TaskKey(
            root=job.folder,
            namespace=job.namespace,
            scheduler=job.scheduler,
            task_id=job.task_id,
            agent_name=name,
        )
        self._folder = job_folder(key)
        self._checkpoints = (
            Path(command.checkpoint_dir)
            if command.checkpoint_dir
            else task_folder(key) / "checkpoint"
        )
        self._attempt_folder = self._folder / f"attempt-{job.attempt}"
        self._saved = _SavedWork(self._checkpoints, self._attempt_folder / "saved")
        self._lock = threading.Lock()
        self._driver: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        #: When the driver is terminated, on the monotonic clock, which all processes of the node have in
        #: common; None: it is not being evicted.
        self._deadline: float | None = None
        #: Whether the driver was, or is to be, terminated.
        self._stopped = False
        #: How many processes the kernel killed on this node while the driver ran, because memory was short.
        self._oom_kills = 0
        self._devices = JobDevices(job, command, node_id())

    def begins_from_saved(self) -> bool | None:
        """Whether the driver finds something in its checkpoint folder, or an earlier attempt on this node has
        said that it saved something; None: this is the first attempt.
        """
        if self._job.attempt == 1:
            return None
        return contains_file(self._checkpoints) or any(self._folder.glob("attempt-*/saved"))

    def run_driver(self) -> dict[str, Any]:
        """Run the driver to its end: its exit code, the attempt, and the node. Raises JobFailedError for
        another exit code than 0.
        """
        self._make_folders()
        with occupy(self._folder):
            return self._run_in_folder()

    def _run_in_folder(self) -> dict[str, Any]:
        # Another runner may remove the same folders.
        with contextlib.suppress(OSError):
            prune(self._folder)
        for work in (self._stay_new, lambda: self._saved.follow(self._ended)):
            threading.Thread(target=work, name="schedulemesh-job", daemon=True).start()
        log = LogWriter(self._folder, self._job.attempt)
        try:
            self._devices.take(log.say)
            code = self._run(log)
        finally:
            self._ended.set()
            self._devices.release()
            log.close()
        return self._result(code, log.last_line)

    def on_preemption_notice(self, seconds: float) -> None:
        """Tell the driver that it is evicted in so many seconds; returns when they are over, or before, when
        it has ended. A repeated notice changes nothing.
        """
        if self._deadline is None:
            self._deadline = time.monotonic() + seconds
            if self._attempt_folder.is_dir():
                # It has its time also where the disk is full, so that it cannot be told.
                with contextlib.suppress(OSError):
                    self._give_notice(self._deadline)
                with contextlib.suppress(OSError):
                    self._signal_those_who_asked()
        self._ended.wait(max(0.0, self._deadline - time.monotonic()))
        self._saved.report()

    def cancel(self, task_id: str) -> dict[str, Any]:  # noqa: ARG002  # it runs one task
        """Send SIGTERM to the driver's processes, and return when it has ended."""
        with self._lock:
            self._stopped = True
            driver = self._driver
        if driver is not None:
            # Once it has been waited for, its id may belong to another process.
            if driver.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGTERM)
            self._ended.wait()
            self._saved.report()
        return {"success": True}

    def begin_exec(self, order: bytes) -> dict[str, Any]:
        """Start a command beside the driver, as a packed ExecOrder says. No success: no driver runs.
        Raises OSError where nobody takes its output.
        """
        driver = self._driver
        if driver is None or driver.poll() is not None or self._stopped:
            return {"success": False}
        begin_exec(unpack(order, ExecOrder), self._environment(), None)
        return {"success": True}

    def _make_folders(self) -> None:
        """Make the folders of the attempt. Nothing in them is of an eviction, except for the notice that may
        have come before the driver is started. Raises OSError, also where another user has made them first.
        """
        check_owner(Path(self._job.folder))
        for file in ("notice", "seen", "saved"):
            (self._attempt_folder / file).unlink(missing_ok=True)
        for folder in (self._attempt_folder / "signals", self._checkpoints):
            make_private_folder(folder)
        if self._deadline is not None:
            self._give_notice(self._deadline)

    def _give_notice(self, deadline: float) -> None:
        _write(self._attempt_folder / "notice", str(deadline))

    def _run(self, log: LogWriter) -> int:
        """The exit code of the driver, once it and its output have ended."""
        with self._lock:
            if self._stopped:
                return -signal.SIGTERM
            oom_kills_before = oom_kills()
            driver = self._driver = self._start_process()
        assert driver.stdout is not None  # noqa: S101  # it was asked for
        output = _Output(driver.stdout, log)
        output.start()
        threading.Thread(
            target=self._devices.follow,
            args=(driver.pid, self._ended, log.say),
            name="schedulemesh-devices",
            daemon=True,
        ).start()
        code = driver.wait()
        self._wait_for_group_of(driver)
        self._oom_kills = oom_kills() - oom_kills_before
        output.wait()
        return code

    def _wait_for_group_of(self, driver: subprocess.Popen[bytes]) -> None:
        """Where a driver was terminated, return when no process of its group runs any more: SIGTERM ends a
        shell at once, but what it has started may need its time to save.
        """
        while self._stopped and _group_runs(driver.pid):
            time.sleep(_GROUP_LOOK_S)

    def _start_process(self) -> subprocess.Popen[bytes]:
        """Start the job's command, in a session of its own."""
        entrypoint = self._command.entrypoint
        try:
            return subprocess.Popen(  # noqa: S603  # running what the user gave is what a job is
                entrypoint,
                shell=isinstance(entrypoint, str),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment(),
            )
        except OSError as error:
            raise self._not_started(error) from error

    def _not_started(self, error: OSError) -> JobFailedError:
        """The failure of a command that cannot be run, with the exit code that shells have for it."""
        code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE
        command = shown(command_line(self._command.entrypoint))
        message = f"the command cannot be started: {error.strerror}: {command}"
        return JobFailedError(message, self._job.task_id, exit_code=code)

    def _stay_new(self) -> None:
        """Keep other jobs from taking the folder for one that nobody uses, while the driver is silent."""
        alive = self._attempt_folder / "alive"
        while True:
            with contextlib.suppress(OSError):
                alive.touch(mode=0o600)
            if self._ended.wait(_ALIVE_S):
                return

    def _environment(self) -> dict[str, str]:
        runtime_env = dict(self._command.runtime_env)
        if self._job.working_dir:
            runtime_env["working_dir"] = self._job.working_dir
        address = ray_address()
        scheduler_variables = {
            "RAY_ADDRESS": address,
            "RAY_API_SERVER_ADDRESS": f"{_SUBMISSIONS}://{address}",
            "SCHEDULEMESH_ATTEMPT_DIR": str(self._attempt_folder),
            "SCHEDULEMESH_CHECKPOINT_DIR": str(self._checkpoints),
        }
        chosen = dict(runtime_env.get("env_vars") or {})
        base = driver_environment(os.environ, node_environment(), chosen)
        devices = self._devices.environment(base, chosen)
        variables = job_variables(self._job, runtime_env, self._command.keep_actors)
        return {**base, **devices, **variables, **scheduler_variables, **self._command.env}

    def _signal_those_who_asked(self) -> None:
        """Send SIGUSR1 to the processes of the driver's session that have installed a handler for it."""
        driver = self._driver
        for file in (self._attempt_folder / "signals").iterdir():
            with contextlib.suppress(ProcessLookupError, PermissionError, ValueError):
                if driver is not None and os.getsid(int(file.name)) == driver.pid:
                    os.kill(int(file.name), signal.SIGUSR1)

    def _result(self, code: int, last_line: str) -> dict[str, Any]:
        if self._stopped or (self._deadline is not None and (code or self._notice_seen())):
            # It has ended because it is evicted: this is not the end of its task.
            channel = current()
            if channel is not None:
                channel.note_cancelled(self._job.task_id)
        elif code:
            failure = _failure(code, last_line, self._oom_kills)
            raise JobFailedError(failure, self._job.task_id, exit_code=code)
        return {
            "exit_code": code,
            "attempt": self._job.attempt,
            "node_id": node_id(),
        }

    def _notice_seen(self) -> bool:
        return (self._attempt_folder / "seen").exists()


def ray_address() -> str:
    """The address of the cluster that this process belongs to."""
    return str(ray.get_runtime_context().gcs_address)


def node_id() -> str:
    """The node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def driver_environment(
    actor: Mapping[str, str], node: Mapping[str, str], chosen: Collection[str] = ()
) -> dict[str, str]:
    """The environment of a driver: that of its actor, where Ray has set the variables of the runtime
    environment (``chosen``). Left out is what belongs to the actor alone, and every variable of
    ScheduleMesh: one of them may be the token of whoever started the node.
    """
    passed_on = {
        name: value
        for name, value in actor.items()
        if name in chosen or (name not in _OF_ACTORS and not name.startswith("SCHEDULEMESH_"))
    }
    for name in _OF_THE_NODE:
        if name not in chosen:
            passed_on.pop(name, None)
            if name in node:
                passed_on[name] = node[name]
    return passed_on


def job_variables(
    job: JobStart, runtime_env: Mapping[str, Any], keep_actors: Sequence[str] = ()
) -> dict[str, str]:
    """The variables that say which job and attempt a driver is; Ray reads the first, and so the Ray jobs of
    all drivers carry the job's metadata, and their workers its mark.
    """
    metadata = {
        "schedulemesh_scheduler": job.scheduler,
        "schedulemesh_namespace": job.namespace,
        "schedulemesh_task": job.task_id,
        "schedulemesh_actor": job.owner,
    }
    if keep_actors:
        metadata["schedulemesh_keep_actors"] = json.dumps(keep_actors)
    marks = {JOB_MARK: str(job.mark)} if job.mark else {}
    config: dict[str, Any] = {"metadata": metadata}
    if env_vars := {**(runtime_env.get("env_vars") or {}), **marks}:
        config["runtime_env"] = {**runtime_env, "env_vars": env_vars}
    elif runtime_env:
        config["runtime_env"] = dict(runtime_env)
    placement = {
        "SCHEDULEMESH_LABEL_SELECTOR": json.dumps(job.label_selector) if job.label_selector else "",
        "SCHEDULEMESH_ALTERNATIVE": str(job.alternative) if job.alternative else "",
    }
    return {
        **marks,
        **{name: value for name, value in placement.items() if value},
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(config),
        "SCHEDULEMESH_TASK_ID": job.task_id,
        "SCHEDULEMESH_ATTEMPT": str(job.attempt),
        **job.array,
        "SCHEDULEMESH_NAME": job.scheduler,
        "SCHEDULEMESH_NAMESPACE": job.namespace,
        # Output is seen when it is printed.
        "PYTHONUNBUFFERED": "1",
    }


def node_environment() -> dict[str, str]:
    """The environment of Ray's process on this node; empty where it cannot be read."""
    pid = os.environ.get("RAY_RAYLET_PID", "")
    try:
        entries = Path(f"/proc/{int(pid)}/environ").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


class _SavedWork:
    """What a job has saved since its attempt began: the newest file in its checkpoint folder, or what it has
    said. The supervisor is told whenever there is something newer.
    """

    def __init__(self, checkpoints: Path, mark: Path) -> None:
        #: ``mark``: the file that the driver touches when it says so.
        self._checkpoints, self._mark = checkpoints, mark
        self._began = _Moment.at(time.time())
        #: The time of the newest file that was reported.
        self._reported = _Moment.at(0.0)
        #: The most that the wall clock was ahead of the monotonic one.
        self._latest_offset = self._began.offset
        self._lock = threading.Lock()

    def follow(self, ended: threading.Event) -> None:
        """Report what is saved until the driver has ended."""
        wait_s = _SAVED_S
        while not ended.wait(wait_s):
            before = time.monotonic()
            self.report()
            wait_s = max(_SAVED_S, _SAVED_FACTOR * (time.monotonic() - before))

    def report(self) -> None:
        """Tell the supervisor when something was saved, if that is not known to it."""
        channel = current()
        with self._lock:
            limit = self._latest_file_time()
            newest = max(last_written(self._checkpoints, limit), _written_at(self._mark, limit))
            if channel is None or newest < self._began.by_now or newest <= self._reported.by_now:
                return
            if channel.work_saved(max(0.0, time.time() - newest)):
                self._reported = _Moment.at(newest)

    def _latest_file_time(self) -> float:
        """After which time no file counts. Where the clock was set back, those that lie ahead of it were
        written before that; otherwise they are those of a file server with another clock.
        """
        offset = _clock_offset()
        self._latest_offset = max(self._latest_offset, offset)
        was_set_back = self._latest_offset - offset > _CLOCK_STEP_S
        return time.time() + _CLOCK_STEP_S if was_set_back else math.inf


class _Moment(NamedTuple):
    """A time of the wall clock, and what that was ahead of the monotonic clock then, in seconds."""

    time_s: float
    offset: float

    @classmethod
    def at(cls, time_s: float) -> _Moment:
        """A time of the clock as it is set now."""
        return cls(time_s, _clock_offset())

    @property
    def by_now(self) -> float:
        """What the clock would have said at that moment, as it is set now. Only a step back counts: files
        keep their times when it is set forward.
        """
        step = _clock_offset() - self.offset
        return self.time_s + step if step < -_CLOCK_STEP_S else self.time_s


def _clock_offset() -> float:
    """Seconds that the wall clock is ahead of the monotonic one; it changes when the clock is set."""
    return time.time() - time.monotonic()


def _written_at(file: Path, limit: float) -> float:
    """When a file was written, in seconds since 1970; 0: there is none, or its time is after ``limit``."""
    try:
        written_at = file.stat().st_mtime
    except OSError:
        return 0.0
    return written_at if written_at <= limit else 0.0


class _Output(threading.Thread):
    """Copies the output of a driver as it is written."""

    def __init__(self, source: IO[bytes], log: LogWriter) -> None:
        super().__init__(daemon=True)
        self._source, self._log = source, log
        self._has_copied = True

    def run(self) -> None:
        """Copy until nobody has the pipe open for writing."""
        with self._source:
            while data := self._next():
                # Where the disk is full, or the log closed: a driver must not block on its output.
                with contextlib.suppress(OSError, ValueError):
                    self._log.write(data)
                self._has_copied = True

    def _next(self) -> bytes:
        """What comes next; empty: nothing. It counts as not copied before it is taken from the pipe."""
        _readable(self._source, wait=True)
        self._has_copied = False
        return os.read(self._source.fileno(), _READ_BYTES)

    def wait(self) -> None:
        """Return when all is copied that the driver has written, which has ended."""
        for _ in range(_OUTPUT_LOOKS):
            self.join(_OUTPUT_S)
            if not self.is_alive() or (self._has_copied and not self._has_more()):
                return

    def _has_more(self) -> bool:
        try:
            return _readable(self._source, wait=False)
        except ValueError:  # it has been closed meanwhile
            return False


def _readable(source: IO[bytes], *, wait: bool) -> bool:
    """Whether something can be read, or nobody has the pipe open for writing; ``wait`` for that. Raises
    ValueError where this end is closed.
    """
    look = select.poll()
    look.register(source.fileno(), select.POLLIN)
    return bool(look.poll(None if wait else 0))


def _group_runs(group: int) -> bool:
    """Whether a process of a group runs; one that has ended does not, also before its parent has noticed."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return any(state not in _ENDED for state in _states_of_group(group))


def _states_of_group(group: int) -> Iterator[str]:
    """The states of the processes of a group, as Linux abbreviates them."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name of a command, in parentheses, may contain anything.
            state, _, group_id = file.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(group_id) == group:
                yield state


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """How many processes the kernel has killed on this node because memory was short; 0: also where it does
    not say so.
    """
    try:
        lines = vmstat.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    counts = (line.partition(" ")[2] for line in lines if line.startswith("oom_kill "))
    return int(next(counts, "0"))


def _failure(code: int, last_line: str, killed: int = 0) -> str:
    """How a driver failed. ``killed``: how many processes the kernel killed there for its memory."""
    detail = f"; the last line of its log: {last_line}" if last_line else ""
    return f"the driver ended with {_end_of_driver(code, killed)}{detail}"


def _end_of_driver(code: int, killed: int) -> str:
    """The exit code of a driver, or the signal that has ended it or the last command of its shell, which
    exits with 128 more.
    """
    by_shell = _BY_SIGNAL < code <= _BY_SIGNAL + _LAST_SIGNAL
    number = code - _BY_SIGNAL if by_shell else -code
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {code}" if code >= 0 else f"signal {number}"
    details = [name] if by_shell else []
    if number == signal.SIGKILL and killed > 0:
        details.append(
            f"the kernel killed {killed} processes on this node meanwhile because memory was short"
        )
    end = f"exit code {code}" if by_shell else name
    return f"{end} ({'; '.join(details)})" if details else end


def _write(path: Path, text: str) -> None:
    """Write a file that others see whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    with open(part, "w", encoding="utf-8", opener=open_private) as file:
        file.write(text)
    part.replace(path)


def command_line(entrypoint: str | Sequence[str]) -> str:
    """A command as people read it."""
    return entrypoint if isinstance(entrypoint, str) else shlex.join(entrypoint)
