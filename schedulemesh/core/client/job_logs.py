"""Lists jobs, and reads their logs in pieces. RayScheduler documents each call."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from schedulemesh.api.jobs import ListJobs, ReadJobLog
from schedulemesh.core.client.asking import ask, listed
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.job_listings import JobsResult
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count, parse_flag
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import TaskFailedError
from schedulemesh.protocol.answers import JobLog
from schedulemesh.protocol.log_reader import log_pieces


def jobs(connection: Connection) -> JobsResult:
    """Every job."""
    return listed(connection, ListJobs(), "jobs", JobsResult)


def read(
    connection: Connection, task_id: object, attempt: object, *, follow: object, tail: object
) -> Iterator[str]:
    """What the driver of an attempt has written, as text."""
    name = parse_name(task_id, "task_id")

    def asked(request: ReadJobLog) -> JobLog:
        answer = ask(connection, request, JobLog)
        if isinstance(answer, Refused):
            raise TaskFailedError(answer.error, name, answer.reason.value)
        return answer

    pieces = log_pieces(
        asked,
        name,
        None if attempt is None else parse_count(attempt, "attempt", 1),
        follow=parse_flag(follow, "follow"),
        tail=None if tail is None else parse_count(tail, "tail"),
    )
    return _texts(pieces)


def _texts(pieces: Iterator[bytes]) -> Iterator[str]:
    """The pieces as text; a character may lie on the border of two of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        if text := decoder.decode(piece):
            yield text
