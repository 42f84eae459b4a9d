"""Durations of earlier runs in virtual time: they are learned as in production, and shorten the waiting."""

from __future__ import annotations

from benchmarks.estimates import made_up
from schedulemesh.sim import Job, NodeKind, reported, simulate
from schedulemesh.sim.policy import parse_policy

EIGHT = [NodeKind(gpu=8)]


def policy(order, *, estimates=True):
    return parse_policy({"policy": {"queue": {"order": order, "estimates": estimates}}})


def job(name, submit_s, duration_s, gpus=8.0, user="u", **more):
    return Job(job_id=name, submit_s=submit_s, duration_s=duration_s, gpus=gpus, user=user, **more)


def starts(result):
    return {run.job.job_id: run.first_start - result.begin for run in result.runs}


def earlier(gpus=8.0):
    """Three short runs, then three long ones, one after the other: over by 3,300."""
    found = [job(f"short-{n}", 100.0 * n, 100.0, gpus) for n in range(3)]
    return found + [job(f"long-{n}", 300.0 + 1000.0 * n, 1000.0, gpus) for n in range(3)]


def test_a_job_whose_user_ran_short_ones_of_this_name_comes_first():
    jobs = [*earlier(), job("busy", 3300.0, 500.0), job("long-9", 3400.0, 1000.0)]
    jobs.append(job("short-9", 3500.0, 100.0))
    found = starts(simulate(jobs, EIGHT, policy("shortest_remaining")))
    assert (found["short-9"], found["long-9"]) == (3800.0, 3900.0)
    without = starts(simulate(jobs, EIGHT, policy("shortest_remaining", estimates=False)))
    assert (without["long-9"], without["short-9"]) == (3800.0, 4800.0)


def test_a_short_job_passes_one_that_waits_for_a_long_one():
    jobs = [*earlier(4), job("long-8", 3300.0, 1000.0, 4), job("head", 3400.0, 100.0, 8)]
    jobs += [job("short-9", 3500.0, 100.0, 4), job("long-9", 3600.0, 1000.0, 4)]
    found = starts(simulate(jobs, EIGHT, policy("fifo")))
    assert found["short-9"] == 3500.0
    assert found["head"] == 4300.0
    assert found["long-9"] == 4400.0


def test_a_simulation_with_estimates_gives_the_same_again():
    jobs = made_up(150)
    first, again = (simulate(jobs, EIGHT * 4, policy("shortest_remaining")) for _ in range(2))
    assert starts(first) == starts(again)


def test_a_load_of_repeated_work_waits_less():
    jobs = made_up(300)
    for order in ("fifo", "shortest_remaining"):
        without, estimated = (
            reported(simulate(jobs, [NodeKind(count=4, gpu=8)], policy(order, estimates=known)))
            for known in (False, True)
        )
        assert estimated[""].delay_s.mean < without[""].delay_s.mean
