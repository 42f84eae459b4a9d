"""Reserved starts and backfill, against the rules of EASY (Lifka, 1995) written down once more."""

import random

import pytest

from schedulemesh.sim import Job, NodeKind, simulate
from schedulemesh.sim.policy import parse_policy


def job(name, submit_s, duration_s, gpus, **fields):
    return Job(
        job_id=name,
        submit_s=submit_s,
        duration_s=duration_s,
        gpus=gpus,
        estimate_s=duration_s,
        **fields,
    )


def starts(jobs, gpus, order="fifo", queueing="best_effort"):
    """When each job starts in a pool of one node."""
    pool = {"name": "default", "resources": {"gpu": gpus}, "queueing": queueing}
    policy = parse_policy({"pools": [pool], "policy": {"queue": {"order": order}}})
    done = simulate(jobs, [NodeKind(gpu=gpus)], policy)
    return {run.job.job_id: run.first_start - done.begin for run in done.runs}


def easy(jobs, gpus):
    """The same by the rules of EASY: the first that waits has a reserved start. Others may pass it in their
    order if they end before that, or need no more than what is left then.
    """
    running, waiting, found, todo = {}, [], {}, sorted(jobs, key=lambda j: j.submit_s)

    def start(one, now):
        waiting.remove(one)
        running[one.job_id] = (now + one.duration_s, one.gpus)
        found[one.job_id] = now

    while todo or waiting:
        now = min(
            [end for end, _ in running.values()] + [each.submit_s for each in todo[:1]],
        )
        running = {name: run for name, run in running.items() if run[0] > now}
        while todo and todo[0].submit_s <= now:
            waiting.append(todo.pop(0))
        free = gpus - sum(size for _, size in running.values())
        while waiting and waiting[0].gpus <= free:
            free -= waiting[0].gpus
            start(waiting[0], now)
        if not waiting:
            continue
        first, left, end = waiting[0], free, now
        for run_end, size in sorted(running.values()):
            if left < first.gpus:
                left, end = left + size, run_end
        left -= first.gpus
        for one in waiting[1:]:
            if one.gpus <= free and (now + one.duration_s <= end or one.gpus <= left):
                left -= 0 if now + one.duration_s <= end else one.gpus
                free -= one.gpus
                start(one, now)
    return found


def test_a_short_job_passes_a_long_one_of_its_size():
    jobs = [
        job("running", 0.0, 130.0, 6.0),
        job("first", 55.0, 279.0, 8.0),
        job("long", 113.0, 262.0, 2.0),
        job("short", 117.0, 10.0, 2.0),
    ]
    assert starts(jobs, 8.0) == pytest.approx(easy(jobs, 8.0))


def test_nothing_passes_in_a_strict_pool():
    jobs = [
        job("running", 0.0, 100.0, 6.0),
        job("first", 1.0, 100.0, 8.0),
        job("short", 2.0, 10.0, 2.0),
    ]
    assert starts(jobs, 8.0, queueing="strict")["short"] == 200.0


@pytest.mark.parametrize("seed", range(30))
def test_a_random_load_starts_as_under_easy(seed):
    """Few sizes, so that many jobs are of one class and differ in their durations alone."""
    chance = random.Random(seed)
    at, jobs = 0.0, []
    for number in range(chance.randint(20, 120)):
        at += chance.uniform(0, chance.choice([5, 60, 300]))
        size = float(chance.choice([1, 1, 2, 4, 8]))
        jobs.append(job(f"j{number}", at, chance.uniform(5, 2000), size))
    assert starts(jobs, 8.0) == pytest.approx(easy(jobs, 8.0))


def test_jobs_that_all_differ_start_as_under_easy():
    """No two are of one class: what would delay a start is known for those that need more and run longer."""
    chance = random.Random(7)
    at, jobs = 0.0, []
    for number in range(150):
        at += chance.uniform(0, 60)
        size = float(chance.choice([1, 1, 1, 2, 3, 5, 8]))
        jobs.append(
            job(f"j{number}", at, chance.uniform(5, 2000), size, labels={"number": str(number)})
        )
    assert starts(jobs, 8.0) == pytest.approx(easy(jobs, 8.0))
