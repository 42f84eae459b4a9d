"""Variants of a trace change what they are asked to, and nothing else."""

import msgspec
import pytest

from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim import Job, with_load, with_savable

JOBS = [Job(job_id=f"job-{n}", submit_s=100.0 * n, duration_s=50.0, gpus=1) for n in range(10)]


@pytest.mark.parametrize(
    ("share", "savable"),
    [(0.0, ""), (0.5, "13579"), (0.3, "369"), (0.8, "12346789"), (1.0, "0123456789")],
)
def test_savable_jobs_are_spread_evenly(share, savable):
    found = with_savable(JOBS, share)
    assert "".join(job.job_id[-1] for job in found if job.savable) == savable
    assert [msgspec.structs.replace(job, savable=True) for job in found] == JOBS


def test_at_a_higher_load_submissions_are_closer_and_durations_stay():
    found = with_load(JOBS, 2.0)
    assert [job.submit_s for job in found] == [50.0 * n for n in range(10)]
    assert {job.duration_s for job in found} == {50.0}


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(InvalidRequestError, match="the savable share"):
        with_savable(JOBS, share)


@pytest.mark.parametrize("factor", [0.0, -1.0, 1e-300, float("inf")])
def test_a_load_that_is_none_is_refused(factor):
    with pytest.raises(InvalidRequestError, match="the load"):
        with_load(JOBS, factor)
