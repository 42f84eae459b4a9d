"""Cleaners of nodes: the supervisor's own node in this process, every other node through an actor there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from schedulemesh.api.exec_sessions import ReadExec, WriteExec
from schedulemesh.api.logs import LogPiece, ReadTaskLog, TaskKey
from schedulemesh.config.private_files import check_owner, make_private_folder
from schedulemesh.core.agent.exec_relay import ExecRelay
from schedulemesh.core.agent.job_folders import LogWriter, job_folder, read_log
from schedulemesh.core.agent.process_logs import read_process_log, write_process_log
from schedulemesh.core.agent.process_marks import (
    kill,
    left_behind,
    living,
    terminate,
    terminate_workers,
)
from schedulemesh.core.backend.environment_errors import last_line_of
from schedulemesh.core.backend.ray_errors import translated
from schedulemesh.core.backend.ray_internals import session_folder
from schedulemesh.protocol.local_sockets import SocketAddress
from schedulemesh.runtime.backend import ExecPart, Process


class OwnNodeCleaner:
    """Ends processes on the node of this process; see NodeCleaner."""

    def __init__(self) -> None:
        #: The commands inside claims of this node; None: there was none yet.
        self._relay: ExecRelay | None = None

    async def terminate(self, mark: int) -> tuple[int, ...]:
        """See process_marks.terminate."""
        return await terminate(mark)

    async def terminate_workers(self, mark: int, staying: Sequence[int]) -> tuple[int, ...]:
        """See process_marks.terminate_workers."""
        return await terminate_workers(mark, staying)

    async def left_behind(self, hosts: Mapping[int, int]) -> dict[int, list[Process]]:
        """See process_marks.left_behind."""
        return await asyncio.get_running_loop().run_in_executor(None, left_behind, hosts)

    async def kill(self, processes: Sequence[Process]) -> None:
        """See process_marks.kill."""
        kill(Process(*process) for process in processes)

    async def read_log(self, key: TaskKey, request: ReadTaskLog) -> LogPiece | None:
        """See NodeCleaner."""

        def read() -> LogPiece | None:
            if request.stream is not None:
                return read_process_log(session_folder(), key, request)
            return read_log(job_folder(key), request.attempt, request.begin, request.limit)

        return await asyncio.get_running_loop().run_in_executor(None, read)

    async def node_lives(self) -> bool:
        """See NodeCleaner."""
        return raylet_lives()

    async def environment_line(self) -> str:
        """See NodeCleaner."""
        return await asyncio.get_running_loop().run_in_executor(None, last_environment_line)

    async def write_log(
        self, key: TaskKey, attempt: int, text: str, incarnation: int | None
    ) -> None:
        """See NodeCleaner."""

        def write() -> None:
            if incarnation is not None:
                write_process_log(session_folder(), key, incarnation, attempt, text)
                return
            folder = job_folder(key)
            check_owner(Path(key.root))
            make_private_folder(folder)
            log = LogWriter(folder, attempt)
            try:
                log.write(text.encode())
            finally:
                log.close()

        await asyncio.get_running_loop().run_in_executor(None, write)

    async def open_exec(self, session_id: str) -> SocketAddress:
        """See NodeCleaner."""
        if self._relay is None:
            self._relay = ExecRelay(session_folder() / "schedulemesh_exec")
        return self._relay.open(session_id)

    async def read_exec(self, request: ReadExec) -> ExecPart | None:
        """See NodeCleaner."""
        return None if self._relay is None else await self._relay.read(request)

    async def write_exec(self, request: WriteExec) -> int | None:
        """See NodeCleaner."""
        return None if self._relay is None else await self._relay.write(request)

    async def end_exec(self, session_id: str) -> None:
        """See NodeCleaner."""
        if self._relay is not None:
            self._relay.end(session_id)

    def close(self) -> None:
        """End the commands inside claims."""
        if self._relay is not None:
            self._relay.close()


class RemoteNodeCleaner:
    """Ends processes on another node through a child actor of the supervisor; see NodeCleaner."""

    def __init__(self, node_id: str) -> None:
        pinned = NodeAffinitySchedulingStrategy(node_id, soft=False)
        options = ray.remote(OwnNodeCleaner).options(num_cpus=0, scheduling_strategy=pinned)
        self._actor = options.remote()

    async def terminate(self, mark: int) -> tuple[int, ...]:
        """See process_marks.terminate."""
        remaining_pids: tuple[int, ...] = await self._call("terminate", mark)
        return remaining_pids

    async def terminate_workers(self, mark: int, staying: Sequence[int]) -> tuple[int, ...]:
        """See process_marks.terminate_workers."""
        remaining_pids: tuple[int, ...] = await self._call("terminate_workers", mark, list(staying))
        return remaining_pids

    async def left_behind(self, hosts: Mapping[int, int]) -> dict[int, list[Process]]:
        """See process_marks.left_behind."""
        processes_by_mark: dict[int, list[Process]] = await self._call("left_behind", hosts)
        return processes_by_mark

    async def kill(self, processes: Sequence[Process]) -> None:
        """See process_marks.kill."""
        await self._call("kill", list(processes))

    async def read_log(self, key: TaskKey, request: ReadTaskLog) -> LogPiece | None:
        """See NodeCleaner."""
        piece: LogPiece | None = await self._call("read_log", key, request)
        return piece

    async def node_lives(self) -> bool:
        """See NodeCleaner."""
        lives: bool = await self._call("node_lives")
        return lives

    async def environment_line(self) -> str:
        """See NodeCleaner."""
        line: str = await self._call("environment_line")
        return line

    async def write_log(
        self, key: TaskKey, attempt: int, text: str, incarnation: int | None
    ) -> None:
        """See NodeCleaner."""
        await self._call("write_log", key, attempt, text, incarnation)

    async def open_exec(self, session_id: str) -> SocketAddress:
        """See NodeCleaner."""
        address: SocketAddress = await self._call("open_exec", session_id)
        return address

    async def read_exec(self, request: ReadExec) -> ExecPart | None:
        """See NodeCleaner."""
        part: ExecPart | None = await self._call("read_exec", request)
        return part

    async def write_exec(self, request: WriteExec) -> int | None:
        """See NodeCleaner."""
        taken: int | None = await self._call("write_exec", request)
        return taken

    async def end_exec(self, session_id: str) -> None:
        """See NodeCleaner."""
        await self._call("end_exec", session_id)

    def close(self) -> None:
        """End the actor."""
        with translated():
            ray.kill(self._actor, no_restart=True)

    async def _call(self, method: str, *args: Any) -> Any:
        with translated():
            return await getattr(self._actor, method).remote(*args)


def raylet_lives() -> bool:
    """Whether the raylet of this process lives, by the id that Ray gives to workers; True also where it gives
    none. Workers look for it once a second, and end without it.
    """
    pid = os.environ.get("RAY_RAYLET_PID", "")
    return not pid.isdecimal() or living(int(pid)) is not None


def last_environment_line() -> str:
    """What Ray wrote last on this node about runtime environments of this scheduler's actors."""
    job_id = ray.get_runtime_context().get_job_id()
    return last_line_of(session_folder() / "logs" / f"runtime_env_setup-{job_id}.log")
