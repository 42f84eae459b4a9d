"""The adoption of Ray jobs: which one is meant, and what is claimed for it."""

from __future__ import annotations

import pytest

from schedulemesh.core.client.job_adoption import adoption
from schedulemesh.core.client.task_request import Caller
from schedulemesh.errors import InvalidRequestError

CALLER = Caller(namespace="space", runtime_env={})


def row(job_id, submission_id=None, *, ended=False, **resources):
    """What a Ray job holds in one namespace."""
    metadata = {} if submission_id is None else {"job_submission_id": submission_id}
    return {
        "job_id": job_id,
        "ended": ended,
        "metadata": metadata,
        "resources": resources,
        "driver_pid": 7,
        "driver_node_id": "n1",
        "started_at": 1.0,
    }


def adopted(ray_job_id, *rows, jobs=()):
    return adoption(CALLER, {"ray_job_id": ray_job_id, "pool_name": "p"}, rows, jobs).submission


@pytest.mark.parametrize("named", ["02000000", "raysubmit_x"])
def test_a_ray_job_is_named_by_its_id_or_by_that_of_its_submission(named):
    rows = row("02000000", "raysubmit_x", cpu=1.0), row("02000000", "raysubmit_x", cpu=0.5)
    found = adopted(named, *rows, row("03000000", "raysubmit_y", cpu=8.0))
    assert found.agent.payload.adopts == "02000000"
    assert found.task.task_id == "ray-job-02000000"
    assert found.agent.resources.public() == {"cpu": 1.5}


def test_a_submission_with_several_drivers_is_refused_with_their_ids():
    rows = row("02000000", "raysubmit_x", cpu=1.0), row("03000000", "raysubmit_x", cpu=1.0)
    with pytest.raises(InvalidRequestError, match="02000000, 03000000"):
        adopted("raysubmit_x", *rows)
    assert adopted("03000000", *rows).agent.payload.adopts == "03000000"


@pytest.mark.parametrize("named", ["04000000", "05000000", "raysubmit_z"])
def test_what_has_ended_or_does_not_exist_is_refused(named):
    with pytest.raises(InvalidRequestError, match=r"external_usage\(\) lists those that there are"):
        adopted(
            named, row("04000000", "raysubmit_z", ended=True, cpu=1.0), row("06000000", cpu=1.0)
        )


def test_one_whose_driver_is_still_being_started_is_refused_for_the_moment():
    starting = row("raysubmit_x", gpu=1.0) | {"driver_pid": None}
    with pytest.raises(InvalidRequestError, match=r"still being started.*Adopt it in a moment"):
        adopted("raysubmit_x", starting)


def test_one_that_is_adopted_already_is_for_the_scheduler_to_refuse():
    found = adopted("04000000", jobs=[{"task_id": "t"}, {"ray_job_id": "04000000"}])
    assert (found.agent.payload.adopts, found.task.task_id) == ("04000000", "ray-job-04000000")


def test_a_driver_of_a_submission_that_is_adopted_already_is_adopted_with_it():
    """The list of external usage may be older than the adoption."""
    rows = [row("04000000", "raysubmit_x", cpu=1.0)]
    assert adopted(
        "04000000", *rows, jobs=[{"ray_job_id": "raysubmit_x"}]
    ).agent.payload.adopts == ("raysubmit_x")
    other = adopted("04000000", *rows, jobs=[{"ray_job_id": "05000000"}])
    assert other.agent.payload.adopts == "04000000"
