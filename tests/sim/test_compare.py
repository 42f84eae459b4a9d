"""Policies are compared on the same copies of a trace."""

import pytest

from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim import Job, NodeKind, compare, jittered
from schedulemesh.sim.policy import parse_policy

JOBS = [
    Job(job_id=f"job-{n}", submit_s=500.0 * n, duration_s=2000.0 + 100 * n, gpus=1 + n % 8)
    for n in range(40)
]
FIFO = parse_policy({"policy": {"queue": {"order": "fifo"}}}, "fifo")
LAS = parse_policy({"policy": {"queue": {"order": "two_level_las"}}}, "las")


def test_copies_differ_by_their_seeds_alone():
    first, again, other = jittered(JOBS, 1), jittered(JOBS, 1), jittered(JOBS, 2)
    assert first == again != other
    assert all(abs(a.submit_s - b.submit_s) <= 1800.5 for a, b in zip(JOBS, first, strict=True))
    assert min(job.submit_s for job in first) >= 0


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_shifts_are_finite_and_not_negative(seconds):
    with pytest.raises(InvalidRequestError, match="jitter_s"):
        jittered(JOBS, 1, seconds)


@pytest.mark.parametrize("processes", [1, 2])
def test_every_policy_runs_on_the_same_copies(processes):
    found = compare(JOBS, [NodeKind(gpu=8)], [FIFO, FIFO, LAS], copies=3, processes=processes)
    assert [one.policy for one in found] == ["fifo", "fifo", "las"]
    assert found[0].reports == found[1].reports != found[2].reports
    figure = found[0].figure("delay_s.mean")
    delays = [report[""].delay_s.mean for report in found[0].reports]
    assert len(delays) == 4
    assert figure.mean == pytest.approx(sum(delays) / 4)
    assert figure.worst == max(delays)
    assert figure.deviation > 0
    assert found[0].mean()["delay_s"]["mean"] == pytest.approx(figure.mean)


def test_an_unknown_figure_is_refused():
    (found,) = compare(JOBS[:3], [NodeKind(gpu=8)], [FIFO])
    with pytest.raises(InvalidRequestError, match="is no figure"):
        found.figure("delay_s")
