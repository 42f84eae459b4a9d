"""The timeline of a simulation: jobs that wait and GPUs that are held, as means over intervals."""

import pytest

from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim import Job, NodeKind, Timing, simulate, timeline
from schedulemesh.sim.policy import parse_policy
from schedulemesh.sim.timeline import interval_means

POOLS = [{"name": name, "cohort": "all", "resources": {"gpu": 8}} for name in ("a", "b")]
JOBS = [
    Job(job_id="long", submit_s=100, duration_s=300, gpus=16, pool="a"),
    Job(job_id="own", submit_s=200, duration_s=100, gpus=8, pool="b"),
]


@pytest.fixture
def lent():
    """Pool a borrows the quota of pool b until b's own job comes."""
    nodes, timing = [NodeKind(count=2, gpu=8)], Timing(save_s=0, restore_s=0)
    return timeline(simulate(JOBS, nodes, parse_policy({"pools": POOLS}), timing))


def of_pool(intervals, pool):
    return [one for one in intervals if one.pool == pool]


def test_it_spans_the_time_from_the_first_submission_to_the_last_end(lent):
    # The borrower runs from 100 to 200 and, after the owner, from 300 to 500.
    assert (lent.begin_s, lent.end_s) == (100, 500)
    assert [one.time_s for one in of_pool(lent.over_time(100), "")] == [100, 200, 300, 400]


def test_what_a_pool_holds_is_a_part_of_its_quota_and_may_be_more_than_all_of_it(lent):
    found = of_pool(lent.over_time(100), "a")
    assert [one.held_gpus for one in found] == [16, 0, 16, 16]
    assert [one.utilisation for one in found] == [2, 0, 2, 2]
    assert [one.held_gpus for one in of_pool(lent.over_time(100), "b")] == [0, 8, 0, 0]


def test_the_whole_is_the_sum_of_the_pools_as_a_part_of_the_cluster(lent):
    found = of_pool(lent.over_time(100), "")
    assert [one.held_gpus for one in found] == [16, 8, 16, 16]
    assert [one.utilisation for one in found] == [1, 0.5, 1, 1]


def test_in_a_cluster_with_gpus_a_job_on_cpus_holds_nothing_of_the_whole():
    """So the parts of the pools are never more than all of it."""
    pools = [{"name": "a", "resources": {"gpu": 8}}, {"name": "c", "resources": {"cpu": 64}}]
    jobs = [
        Job(job_id="gpus", submit_s=0, duration_s=100, gpus=4, pool="a"),
        Job(job_id="cpus", submit_s=0, duration_s=100, cpus=32, pool="c"),
    ]
    found = timeline(simulate(jobs, [NodeKind(cpu=64, gpu=8)], parse_policy({"pools": pools})))
    whole, a, c = found.over_time(100)
    assert (whole.held_gpus, a.held_gpus, c.held_gpus) == (4, 4, 0)
    assert (whole.utilisation, a.utilisation, c.utilisation) == (0.5, 0.5, 0.5)
    assert (found.pools["c"].quota_gpus, found.largest()) == (0, 8)


def test_a_job_waits_again_after_its_eviction(lent):
    assert [one.waiting for one in of_pool(lent.over_time(100), "a")] == [0, 1, 0, 0]
    assert [one.waiting for one in of_pool(lent.over_time(50), "a")] == [0, 0, 1, 1, 0, 0, 0, 0]


def test_the_last_interval_may_be_shorter(lent):
    _, last = of_pool(lent.over_time(250), "a")
    assert last.time_s == 350
    assert last.held_gpus == 16


def test_delays_are_sorted(lent):
    assert lent.delays_s == (0, 100)


def test_too_many_intervals_are_refused(lent):
    with pytest.raises(InvalidRequestError, match="choose 1 s or more"):
        lent.over_time(0.01)
    with pytest.raises(InvalidRequestError, match="must be above 0"):
        lent.over_time(0)


@pytest.mark.parametrize(
    ("interval_s", "expected"), [(10, [1.5, 3.0]), (20, [2.25]), (5, [0, 3, 3, 3])]
)
def test_a_mean_is_weighted_by_time(interval_s, expected):
    steps = [(-50, 7.0), (0, 0.0), (5, 3.0), (5, 3.0), (40, 9.0)]
    assert interval_means(steps, 0, 20, interval_s) == pytest.approx(expected)


def test_without_jobs_there_is_nothing_to_wait_for():
    empty = timeline(simulate([], [NodeKind(gpu=8)]))
    assert [one.held_gpus for one in empty.over_time(1)] == [0, 0]
