"""The calls that submit and list jobs, and read what the processes of tasks write."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence

from typing_extensions import Unpack

from schedulemesh.api.jobs import ListJobs
from schedulemesh.api.logs import ReadTaskLog
from schedulemesh.client.arguments import parse_ids, public, public_calls
from schedulemesh.client.asking import ask, listed_all, with_ids
from schedulemesh.client.listings import JobsResult
from schedulemesh.client.results import SubmitResult
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.client.task_fields import JobFields
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count, parse_flag
from schedulemesh.domain.task import DEFAULT_PRIORITY
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import TaskFailedError
from schedulemesh.protocol.answers import TaskLog
from schedulemesh.protocol.log_reader import log_pieces


@public_calls
class JobCalls(SchedulerObject):
    """A scheduler object that submits and lists jobs, and reads the logs of tasks."""

    def _send_job(self, arguments: Mapping[str, object]) -> SubmitResult:
        """Submit a job from the arguments of ``submit_job``, by name; connections differ in this."""
        raise NotImplementedError

    @public(JobFields)
    def submit_job(
        self,
        task_id: str,
        entrypoint: str | Sequence[str] = "",
        pool: str | None = None,
        resources: Mapping[str, object] | None = None,
        priority: float | str = DEFAULT_PRIORITY,
        **fields: Unpack[JobFields],
    ) -> SubmitResult:
        """Run a driver command, such as ``["python", "train.py"]``, as a task on the cluster.

        The driver is a process of its own with ``RAY_ADDRESS`` set, so a plain ``ray.init()`` joins the
        cluster. ``resources``, or the sum of ``bundles``, are for what it starts in Ray. When it ends, and
        when it is cancelled or evicted, everything that it has started in Ray ends with it, detached actors
        and placement groups too. An evicted job joins the queue again and finds its checkpoint folder (see
        ``schedulemesh.job``). A string is run by the shell, a list is not. With exit code 0 the task is
        completed, and its ``result`` is a dict with ``exit_code``; otherwise it has failed, and ``result``
        raises JobFailedError.

        A local ``working_dir`` is sent with the job; it may take up to 16 MB packed. The other fields are
        those of ``submit_task_with_preemption``.
        """
        identity = {"task_id": task_id, "entrypoint": entrypoint, "pool_name": pool}
        arguments = {**identity, "resources": resources, "priority": priority, **fields}
        return self._send_job(arguments)

    def jobs(self, task_ids: str | Iterable[str] | None = None) -> JobsResult:
        """Return ``jobs``: those that run or wait, then those that have ended lately (or those with these
        ids). Each has its task's fields, ``state``, ``attempt``, and where it has them ``node_id``,
        ``started_at``, ``ended_at``, ``reason`` and ``error``.
        """
        ids = None if task_ids is None else parse_ids(task_ids, "task_ids")
        requests = with_ids(ListJobs(), "task_ids", ids)
        return listed_all(self._connection, requests, "jobs", JobsResult)

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
        return self.task_logs(task_id, attempt, follow=follow, tail=tail)

    def task_logs(
        self,
        task_id: str,
        attempt: int | None = None,
        *,
        rank: int = 0,
        stream: str | None = None,
        follow: bool = False,
        tail: int | None = None,
    ) -> Iterator[str]:
        """As ``job_logs``, also of a task that runs in an agent or a gang.

        Their processes have a log for each ``stream``: "stdout" or "stderr" (None: the former; a job has both
        in one). ``rank``: the member of a gang.
        """
        request = ReadTaskLog(
            task_id=parse_name(task_id, "task_id"),
            attempt=None if attempt is None else parse_count(attempt, "attempt", 1),
            rank=parse_count(rank, "rank"),
            stream=stream,
        )

        def asked(part: ReadTaskLog) -> TaskLog:
            answer = ask(self._connection, part, TaskLog)
            if isinstance(answer, Refused):
                raise TaskFailedError(answer.error, task_id, answer.reason.value)
            return answer

        pieces = log_pieces(
            asked,
            request,
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
