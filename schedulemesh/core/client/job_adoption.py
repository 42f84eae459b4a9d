"""The adoption of a Ray job that somebody else has started: its submission as a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from schedulemesh.core.agent.job_adopter import JobAdopter
from schedulemesh.core.client.task_request import Caller, PreparedSubmission, task_submission
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_duration
from schedulemesh.domain.payloads import RUN_DRIVER, JobPayload, parse_over_claim
from schedulemesh.domain.resources import NOTHING, UNIT, Resources, parse_resources, sum_of
from schedulemesh.errors import InvalidRequestError, RayJobNotFoundError

#: Fields of adopt_job that are none of a submission.
_OF_JOBS = ("ray_job_id", "grace_s", "over_claim")
#: What a job that is adopted already holds outside of the scheduler.
_NOTHING_HELD: Mapping[str, object] = {
    "ended": False,
    "metadata": {},
    "resources": {},
    "driver_pid": 0,
    "driver_node_id": "",
    "started_at": 0.0,
}


def adoption(
    caller: Caller,
    arguments: Mapping[str, object],
    rows: Iterable[Mapping[str, object]],
    jobs: Iterable[Mapping[str, object]],
) -> PreparedSubmission:
    """The submission that adopts a Ray job, from the arguments of ``adopt_job``, by name. ``rows``: the
    external usage at present; ``jobs``: those of the scheduler. Raises RayJobNotFoundError where it has no
    such job that runs; the submission of one that is adopted already is refused.
    """
    ray_job_id = parse_name(arguments["ray_job_id"], "ray_job_id")
    adopted_ids = {job["ray_job_id"] for job in jobs if job.get("ray_job_id")}
    if ray_job_id in adopted_ids:
        rows = [{**_NOTHING_HELD, "job_id": ray_job_id}]
    job_rows = _named(rows, ray_job_id)
    submission_id = _submission_id(job_rows[0])
    # What a submission that is adopted already has started since is a part of it.
    adopted_with = submission_id in adopted_ids
    ray_job_id = str(submission_id if adopted_with else job_rows[0]["job_id"])
    fields = {name: value for name, value in arguments.items() if name not in _OF_JOBS}
    if fields.get("resources") is None:
        fields["resources"] = _total_of(job_rows).public()
    if fields.get("task_id") is None:
        fields["task_id"] = f"ray-job-{ray_job_id}"
    driver = job_rows[0]
    if not driver["driver_pid"] and ray_job_id not in adopted_ids:
        raise InvalidRequestError(
            f"the Ray job {ray_job_id!r} is still being started: Ray does not know the process of its driver "
            "yet. Adopt it in a moment"
        )
    task = {
        "actor_class": JobAdopter,
        "actor_kwargs": {
            "driver_pid": driver["driver_pid"] or 0,
            "started_at": driver["started_at"] or 0.0,
        },
        "ray_options": {"label_selector": {"ray.io/node-id": driver["driver_node_id"]}},
        "run": RUN_DRIVER,
        "on_preempted": "drop",
    }
    made = task_submission(msgspec.structs.replace(caller, runtime_env={}), {**fields, **task})
    grace_s, over_claim = arguments.get("grace_s"), arguments.get("over_claim")
    job = JobPayload(
        grace_s=None if grace_s is None else parse_duration(grace_s, "grace_s"),
        over_claim="" if over_claim is None else parse_over_claim(over_claim),
        adopts=ray_job_id,
    )
    agent = msgspec.structs.replace(
        made.submission.agent, payload=job, restartable=False, node_labels=()
    )
    # Ray places the process beside the driver; the claim is not there, but where the job's work is.
    return made.changed(agent=agent, may_preempt=False, choose_node=False)


def _named(rows: Iterable[Mapping[str, object]], ray_job_id: str) -> Sequence[Mapping[str, object]]:
    """What the job holds, by namespace. ``ray job submit`` names it by a submission id of its own, which is
    among the metadata of its driver.
    """
    job_rows = [
        row
        for row in rows
        if not row["ended"] and ray_job_id in (row["job_id"], _submission_id(row))
    ]
    if not job_rows:
        raise RayJobNotFoundError(
            f"there is no Ray job {ray_job_id!r} that runs and holds something outside of this scheduler; "
            "external_usage() lists those that there are, and jobs() those that are adopted already"
        )
    drivers = sorted({str(row["job_id"]) for row in job_rows})
    if len(drivers) > 1:
        raise InvalidRequestError(
            f"{ray_job_id!r} has several drivers, which are Ray jobs of their own; adopt each of them: "
            + ", ".join(drivers)
        )
    return job_rows


def _submission_id(row: Mapping[str, object]) -> object:
    metadata = row["metadata"]
    return metadata.get("job_submission_id") if isinstance(metadata, Mapping) else None


def _total_of(rows: Iterable[Mapping[str, object]]) -> Resources:
    """What a job holds in all namespaces. GPUs above one are claimed whole."""
    amounts = sum_of(_amounts(row["resources"]) for row in rows)
    if amounts.gpu > UNIT and amounts.gpu % UNIT:
        return msgspec.structs.replace(amounts, gpu=-(-amounts.gpu // UNIT) * UNIT)
    return amounts


def _amounts(amounts: object) -> Resources:
    """Amounts of one namespace, of which several GPUs need not be whole."""
    if not isinstance(amounts, Mapping):
        return NOTHING
    others = parse_resources({kind: amount for kind, amount in amounts.items() if kind != "gpu"})
    return msgspec.structs.replace(others, gpu=round(float(amounts.get("gpu", 0.0)) * UNIT))
