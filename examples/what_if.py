"""What would another policy, or four more nodes, have done to the jobs of last week?

Run it with ``python examples/what_if.py``. It needs no Ray: the simulator makes the decisions of the
production engine in virtual time; docs/simulator.md explains the figures.
"""

from __future__ import annotations

import random

from schedulemesh.sim import Comparison, Job, NodeKind, Policy, compare
from schedulemesh.sim.policy import parse_policy

HOUR_S = 3600.0
GPUS_OF_A_NODE = 8
NODES, MORE_NODES = 8, 4
TEAMS = ("vision", "language")


def last_week() -> list[Job]:
    """The jobs of both teams, in the order of their submission."""
    draw = random.Random(15)
    experiments = [experiment(draw, day, number) for day in range(5) for number in range(60)]
    trainings = [training(draw, number) for number in range(28)]
    return sorted([*experiments, *trainings], key=lambda job: job.submit_s)


def experiment(draw: random.Random, day: int, number: int) -> Job:
    """An experiment of the team vision, in the working hours of a day."""
    return Job(
        job_id=f"experiment-{day}-{number}",
        submit_s=(24 * day + draw.uniform(9, 18)) * HOUR_S,
        duration_s=min(12 * HOUR_S, draw.lognormvariate(8, 1.2)),
        gpus=draw.choice((1, 1, 2, 4, 8)),
        pool="vision",
    )


def training(draw: random.Random, number: int) -> Job:
    """A training of the team language, at any hour."""
    return Job(
        job_id=f"training-{number}",
        submit_s=draw.uniform(0, 120) * HOUR_S,
        duration_s=draw.uniform(2, 20) * HOUR_S,
        gpus=draw.choice((8, 16, 16, 32)),
        pool="language",
    )


def policies(nodes: int) -> list[Policy]:
    """Three ways of sharing these nodes; in each, half of the GPUs belong to either team."""
    quota = {"gpu": nodes * GPUS_OF_A_NODE // len(TEAMS)}
    walls = [{"name": team, "resources": quota, "queueing": "strict"} for team in TEAMS]
    cohort = [
        {"name": team, "resources": quota, "cohort": "all", "on_preempted": "requeue"}
        for team in TEAMS
    ]
    las = {
        "queue": {"order": "two_level_las", "las_preempts": True, "las_threshold_gpu_hours": 1},
        "preemption": {"defragment_after_s": 600},
    }
    return [
        # Each team has its half, in the order of submission.
        parse_policy({"pools": walls, "policy": {"queue": {"order": "fifo"}}}, "walls"),
        # Idle GPUs are lent, and come back by evicting borrowers, whose state is saved.
        parse_policy({"pools": cohort, "policy": {"queue": {"order": "fifo"}}}, "lend"),
        # Also, jobs that have used little GPU time come first; no durations are known.
        parse_policy({"pools": cohort, "policy": las}, "las"),
    ]


def simulated(nodes: int) -> list[Comparison]:
    """The week on so many nodes, under each policy."""
    return compare(last_week(), [NodeKind(count=nodes, gpu=GPUS_OF_A_NODE)], policies(nodes))


def print_table(comparisons: list[Comparison]) -> None:
    print("   policy   pool       jobs   mean delay   p95 delay   preemptions   utilisation")
    for one in comparisons:
        for pool, report in one.reports[0].items():
            delay = report.delay_s
            print(
                f"   {one.policy:8} {pool or '(all)':9} {report.jobs:5} {delay.mean / 60:8.0f} min "
                f"{delay.p95 / 60:7.0f} min {report.preemptions:13} {report.utilisation:12.0%}"
            )


def main() -> None:
    print(f"1. Last week on {NODES} nodes of {GPUS_OF_A_NODE} GPUs")
    now = simulated(NODES)
    print_table(now)

    print(f"2. What if there were {MORE_NODES} more nodes?")
    more = simulated(NODES + MORE_NODES)
    print_table(more)

    print("3. Mean delay of all jobs")
    for before, after in zip(now, more, strict=True):
        was, would_be = (one.figure("delay_s.mean").mean / 60 for one in (before, after))
        print(
            f"   {before.policy:8} {was:5.0f} min, with {MORE_NODES} more nodes {would_be:5.0f} min"
        )


if __name__ == "__main__":
    main()
