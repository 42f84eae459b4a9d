"""Where Ray keeps what the processes of agents write to stdout and stderr, and how it is read.

Ray has a file for each stream of each process, named after ids that nobody else knows when the process is
gone. So each process of an agent makes links to its files. Their folder is named after the scheduler, the
task and the agent; a link after the incarnation, the attempt, and the time and the position at which it
began. They are in Ray's folder for the session, as the files are, and go with it.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from schedulemesh.api.logs import STREAMS, LogPiece, ReadTaskLog, TaskKey
from schedulemesh.config.private_files import check_owner, make_private_folder, open_private
from schedulemesh.core.agent.job_folders import folder_name
from schedulemesh.protocol.agents import AgentInit

#: The folder with the links, and that with Ray's files, in Ray's folder for the session.
_LINKS, _LOGS = "schedulemesh_agents", "logs"
_LINK = re.compile(rf"(\d+)\.(\d+)\.(\d+)\.({'|'.join(STREAMS)})\.(\d+)")


class _ProcessLog(NamedTuple):
    """What one process of an agent has written to one stream."""

    incarnation: int
    attempt: int
    #: When the process began to serve the agent, in nanoseconds since 1970.
    began: int
    path: Path
    #: The position in the file from which on it is the agent's: a process may have served Ray before.
    begin: int

    @property
    def size(self) -> int | None:
        """Its bytes; None: Ray has removed the file."""
        try:
            return max(0, self.path.stat().st_size - self.begin)
        except FileNotFoundError:
            return None

    def read(self, position: int, limit: int) -> bytes:
        """At most ``limit`` bytes from a position on."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self.begin + position)
            return file.read(limit)
        return b""


def link_log_files(init: AgentInit, files: Mapping[str, Path]) -> None:
    """Make the links of a process that begins to serve an agent, to Ray's files by stream. An agent whose
    links cannot be made, as where the disk is full, runs all the same.
    """
    with contextlib.suppress(OSError):
        for stream, path in files.items():
            session = path.parent.parent
            folder = _folder(
                session, init.namespace, init.scheduler, init.log_task, init.agent_name
            )
            _link(session, folder, init.incarnation, init.attempt, stream, path)


def write_process_log(
    session: Path, key: TaskKey, incarnation: int, attempt: int, text: str
) -> None:
    """Write a text as what an attempt that has started no process has written to stderr. Raises OSError."""
    folder = _folder(session, key.namespace, key.scheduler, key.task_id, key.agent_name)
    for stream in STREAMS:
        # Ray shows no drivers what is in files of other names than those of its workers.
        path = session / _LOGS / f"schedulemesh-start-{uuid.uuid4().hex}.{stream}"
        with open(path, "x", encoding="utf-8", opener=open_private) as file:
            _link(session, folder, incarnation, attempt, stream, path)
            file.write(text if stream == "stderr" else "")


def _link(
    session: Path, folder: Path, incarnation: int, attempt: int, stream: str, path: Path
) -> None:
    """Make the link by which the file of a process that serves from now on is found."""
    check_owner(session / _LINKS)
    make_private_folder(folder)
    begin = path.stat().st_size
    name = f"{incarnation}.{attempt}.{time.time_ns()}.{stream}.{begin}"
    (folder / name).symlink_to(path)


def read_process_log(session: Path, key: TaskKey, request: ReadTaskLog) -> LogPiece | None:
    """At most ``request.limit`` bytes of what an agent has written to a stream in an attempt
    (None: in the last one): all its processes one after the other, for Ray may have restarted it. None: there
    was no process here.
    """
    folder = _folder(session, key.namespace, key.scheduler, key.task_id, key.agent_name)
    logs = _of_attempt(sorted(_process_logs(session, folder, request)), request.attempt)
    if not logs:
        return None
    sizes = [(log, log.size) for log in logs]
    end = sum(size or 0 for _, size in sizes)
    begin = max(0, end + request.begin if request.begin < 0 else request.begin)
    data, position = b"", begin
    for log, size in sizes:
        # Of a process that writes on, what is written meanwhile is read as well.
        if position < (size or 0) or log is sizes[-1][0]:
            data += log.read(max(0, position), request.limit - len(data))
        position -= size or 0
    return LogPiece(
        incarnation=logs[0].incarnation,
        attempt=logs[0].attempt,
        begin=begin,
        data=data,
        end=max(end, begin + len(data) if data else 0),
        removed=all(size is None for _, size in sizes),
    )


def _folder(session: Path, *names: str) -> Path:
    return session.joinpath(_LINKS, *map(folder_name, names))


def _of_attempt(logs: Sequence[_ProcessLog], attempt: int | None) -> list[_ProcessLog]:
    """The logs of an attempt (None: of the last one), in the order of their times.

    ``logs`` may have those of an earlier task of the same id on an agent of the same name. They are left out:
    after them, attempts were counted from 1 again.
    """
    numbers: dict[int, int] = {}
    for log in reversed(logs):
        if not numbers or log.attempt < min(numbers):
            numbers[log.attempt] = log.incarnation
    if not numbers:
        return []
    attempt = max(numbers) if attempt is None else attempt
    return [
        log for log in logs if (log.attempt, log.incarnation) == (attempt, numbers.get(attempt))
    ]


def _process_logs(session: Path, folder: Path, request: ReadTaskLog) -> Iterator[_ProcessLog]:
    """The logs of a stream that links in a folder name."""
    for link in folder.iterdir() if folder.is_dir() else ():
        match = _LINK.fullmatch(link.name)
        if match is None or match[4] != request.stream:
            continue
        path = link.resolve()
        # Whatever a process links to, only Ray's logs are read. All users may write in their folder: a pipe
        # in the place of one would be waited for.
        if path.parent == (session / _LOGS).resolve() and (path.is_file() or not path.exists()):
            yield _ProcessLog(
                incarnation=int(match[1]),
                attempt=int(match[2]),
                began=int(match[3]),
                path=path,
                begin=int(match[5]),
            )
