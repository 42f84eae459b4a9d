"""The simulator reproduces published schedules: with the same rules, every job starts and ends at the same
second as in the simulator of the authors of Helios (SC'21), and averages of preemptive policies are the same
within 1 %.
"""

import csv
import gzip
from statistics import fmean

import msgspec
import pytest

from benchmarks import calibration
from schedulemesh.sim import NodeKind, read_trace, reported, simulate
from schedulemesh.sim.policy import parse_policy
from tests.sim.traces_folder import TRACES, needs_traces

#: Nodes of 8 GPUs of each virtual cluster.
NODES = {"7f04ca": 32, "2869ce": 16}
ORDERS = {"fifo": "fifo", "sjf": "shortest_remaining"}


def published(kind, cluster):
    """(submission, duration, GPUs, start, end) of every job, in seconds."""
    path = TRACES / f"helios_philly_dev_ref_{kind}.csv.gz"
    keys = ("submit_time", "duration", "gpu_num", "start_time", "end_time")
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["rvc"] == cluster]
    return sorted(tuple(float(row[key]) for key in keys) for row in rows)


def simulated(kind, cluster):
    jobs = [job for job in read_trace(TRACES / "helios_philly_dev.csv.gz") if job.pool == cluster]
    if kind == "sjf":
        jobs = [msgspec.structs.replace(job, estimate_s=job.duration_s) for job in jobs]
    gpus = NODES[cluster] * 8
    pools = [{"name": cluster, "resources": {"gpu": gpus}, "queueing": "strict"}]
    policy = parse_policy({"pools": pools, "policy": {"queue": {"order": ORDERS[kind]}}})
    return simulate(jobs, [NodeKind(count=NODES[cluster], gpu=8)], policy)


@needs_traces
@pytest.mark.parametrize("cluster", NODES)
@pytest.mark.parametrize("kind", ORDERS)
def test_every_job_starts_and_ends_as_published(kind, cluster):
    result = simulated(kind, cluster)
    found = sorted(
        (
            run.job.submit_s,
            run.job.duration_s,
            run.job.gpus,
            run.first_start - result.begin,
            run.ended_at - result.begin,
        )
        for run in result.runs
    )
    assert found == published(kind, cluster)
    with (TRACES / "helios_philly_dev_expected.csv").open() as file:
        (expected,) = (
            row for row in csv.DictReader(file) if (row["vc"], row["policy"]) == (cluster, kind)
        )
    assert round(reported(result)[""].queue_s.mean) == int(expected["rerun_avg_queue_s"])


@needs_traces
@pytest.mark.parametrize("cluster", NODES)
def test_shortest_remaining_time_first_is_within_one_percent(cluster):
    found = calibration.srtf(TRACES, cluster)
    assert abs(found.jct_off) <= 0.01
    assert abs(found.wait_off) <= 0.01


@needs_traces
@pytest.mark.parametrize("cluster", NODES)
def test_quasi_shortest_service_first_is_published_among_what_its_estimates_give(cluster):
    """The published estimates were drawn without a seed: what is published is one of many results."""
    draws = [calibration.qssf(TRACES, cluster, seed) for seed in range(calibration.DRAWS)]
    assert abs(fmean(draw.jct_off for draw in draws)) <= 0.01
    waited = [draw.wait_s for draw in draws]
    assert min(waited) <= draws[0].published_wait_s <= 1.1 * max(waited)


@needs_traces
@pytest.mark.parametrize("trace", calibration.MURI)
@pytest.mark.parametrize("policy", ["SRTF", "SRSF"])
def test_baselines_of_muri_that_know_durations_are_within_one_percent(trace, policy):
    assert abs(calibration.muri(TRACES, trace, policy).jct_off) <= 0.01


@needs_traces
def test_backfill_is_on_average_never_worse_than_first_come_first_served():
    fcfs, easy = (
        calibration.waits(calibration.hpc2n(TRACES, queueing)).values()
        for queueing in ("strict", "best_effort")
    )
    assert fmean(easy) < fmean(fcfs)
