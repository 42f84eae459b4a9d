"""The calls that list jobs, and read what their drivers write."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from schedulemesh.api.jobs import ListJobs, ReadJobLog
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import ask, listed
from schedulemesh.client.listings import JobsResult
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count, parse_flag
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import TaskFailedError
from schedulemesh.protocol.answers import JobLog
from schedulemesh.protocol.log_reader import log_pieces


@public_calls
class JobCalls(SchedulerObject):
    """A scheduler object that lists jobs and reads their logs."""

    def jobs(self) -> JobsResult:
        """Return ``jobs``: those that run or wait, then those that have ended lately. Each has its task's
        fields, ``state``, ``attempt``, and where it has them ``node_id``, ``started_at``, ``ended_at``,
        ``reason`` and ``error``.
        """
        return listed(self._connection, ListJobs(), "jobs", JobsResult)

    def job_logs(
        self,
        task_id: str,
        attempt: int | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
    ) -> Iterator[str]:
        """What the driver of an attempt (None: of the last one) has written, in pieces of text.

        ``tail``: the last so many lines only. With ``follow`` the iteration goes on with what is written,
        over all further attempts where none is named, until the job has ended. Raises TaskFailedError where
        there is no such job or log.
        """
        name = parse_name(task_id, "task_id")

        def asked(request: ReadJobLog) -> JobLog:
            answer = ask(self._connection, request, JobLog)
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
