"""Jobs are compared with the same jobs in pools that share nothing."""

import pytest

from schedulemesh.sim import Job, NodeKind, Timing, compare, delays_alone, reported, simulate
from schedulemesh.sim.policy import parse_policy

NODES = [NodeKind(count=2, gpu=8)]
NO_COSTS = Timing(save_s=0, restore_s=0)
LENDING = parse_policy(
    {
        "pools": [
            {"name": name, "cohort": "all", "resources": {"gpu": 8}, "on_preempted": "requeue"}
            for name in ("a", "b")
        ]
    }
)


def job(name, submit_s, duration_s, gpus, pool, **more):
    return Job(job_id=name, submit_s=submit_s, duration_s=duration_s, gpus=gpus, pool=pool, **more)


def test_a_pool_alone_has_its_own_quota_and_nothing_else():
    jobs = [job("a1", 0, 100, 8, "a"), job("a2", 0, 100, 8, "a"), job("b1", 50, 100, 8, "b")]
    assert delays_alone(jobs, NODES, LENDING, NO_COSTS) == {"a1": 0, "a2": 100, "b1": 0}


def test_alone_jobs_start_in_the_order_of_submission_whatever_their_priority():
    jobs = [
        job("first", 0, 100, 6, "a", priority=1),
        job("large", 1, 100, 8, "a"),
        job("small", 2, 100, 1, "a", priority=9),
    ]
    found = delays_alone(jobs, NODES, LENDING, NO_COSTS)
    assert found == {"first": 0, "large": 99, "small": 198}


def test_a_job_that_is_larger_than_the_quota_does_not_run_alone_and_is_not_worse_off():
    jobs = [job("large", 0, 100, 16, "a"), job("own", 50, 100, 8, "b")]
    delays = delays_alone(jobs, NODES, LENDING, NO_COSTS)
    assert delays == {"own": 0}
    report = reported(simulate(jobs, NODES, LENDING, NO_COSTS), delays)
    assert report["a"].delay_s.mean == 100
    assert report["a"].alone.worse_off == 0


def test_an_owner_that_waits_until_a_borrower_is_saved_is_worse_off_than_alone():
    jobs = [job("long", 0, 1000, 8, "a"), job("more", 0, 1000, 8, "a"), job("own", 50, 10, 8, "b")]
    found = compare(jobs, NODES, [LENDING], Timing(save_s=60, restore_s=0), alone=True)
    report = found[0].reports[0]
    assert (report["b"].alone.worse_off, report["b"].alone.worse_off_by_s.max) == (1, 60)
    assert report["a"].alone.worse_off == 0
    assert report["a"].alone.delay_s.max == 1000
    assert report[""].alone.worse_off == 1


def test_without_pools_the_whole_cluster_is_one():
    jobs = [job(f"job-{n}", 0, 100, 16, "") for n in range(3)]
    assert sorted(delays_alone(jobs, NODES).values()) == [0, 100, 200]


def test_it_is_only_reported_where_it_was_asked_for():
    (found,) = compare([job("a1", 0, 100, 8, "a")], NODES, [LENDING])
    assert found.reports[0][""].alone is None
    assert "alone" not in found.mean()


def test_each_copy_is_compared_with_itself_alone():
    jobs = [job(f"job-{n}", 500.0 * n, 2000, 1 + n % 8, "ab"[n % 2]) for n in range(40)]
    walls = parse_policy(
        {
            "pools": [
                {"name": name, "resources": {"gpu": 8}, "queueing": "strict"} for name in "ab"
            ],
            "policy": {"queue": {"order": "fifo"}},
        }
    )
    (found,) = compare(jobs, [NodeKind(count=4, gpu=8)], [walls], copies=3, alone=True)
    assert found.figure("alone.worse_off").worst == 0
    assert found.figure("delay_s.mean").mean == pytest.approx(
        found.figure("alone.delay_s.mean").mean
    )
    assert found.figure("delay_s.mean").mean > 0
