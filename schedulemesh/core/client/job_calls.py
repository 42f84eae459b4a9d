"""The calls of a scheduler object about jobs: driver commands that run as tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from typing_extensions import Unpack

from schedulemesh.core.client import job_listings, job_logs, results, submissions
from schedulemesh.core.client.arguments import public, public_calls
from schedulemesh.core.client.lifecycle import SchedulerObject
from schedulemesh.core.client.task_fields import AdoptionFields, JobFields
from schedulemesh.domain.task import DEFAULT_PRIORITY


@public_calls
class JobCalls(SchedulerObject):
    """Submits jobs, lists them, and reads what their drivers write."""

    @public(JobFields)
    def submit_job(
        self,
        task_id: str,
        entrypoint: str | Sequence[str] = "",
        pool: str | None = None,
        resources: Mapping[str, object] | None = None,
        priority: float = DEFAULT_PRIORITY,
        **fields: Unpack[JobFields],
    ) -> results.SubmitResult:
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
        own = {"task_id": task_id, "entrypoint": entrypoint, "pool_name": pool}
        given = {**own, "resources": resources, "priority": priority, **fields}
        return submissions.submit_job(self._connection, given)

    @public(AdoptionFields)
    def adopt_job(
        self,
        ray_job_id: str,
        pool: str,
        resources: Mapping[str, object] | None = None,
        priority: float = DEFAULT_PRIORITY,
        **fields: Unpack[AdoptionFields],
    ) -> results.SubmitResult:
        """Make a Ray job that somebody else has started, one of ``external_usage``, a task of this scheduler:
        accounted, evicted and cancelled as such.

        Its claim is what it holds now, or ``resources``. Nothing is evicted for it. It is not started again:
        when it is evicted or cancelled, its driver gets SIGTERM, then SIGKILL, and its actors and placement
        groups end, detached ones too. When its driver ends by itself, the task is completed, and what is
        detached stays. The runner needs the node of the driver; the driver must belong to the same user.
        """
        own = {"ray_job_id": ray_job_id, "pool_name": pool, "resources": resources}
        return submissions.adopt_job(self._connection, {**own, "priority": priority, **fields})

    def jobs(self) -> job_listings.JobsResult:
        """Return ``jobs``: those that run or wait, then those that have ended lately. Each has its task's
        fields, ``state``, ``attempt``, and where it has them ``node_id``, ``started_at``, ``ended_at``,
        ``reason`` and ``error``.
        """
        return job_logs.jobs(self._connection)

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
        return job_logs.read(self._connection, task_id, attempt, follow=follow, tail=tail)
