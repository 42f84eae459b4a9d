"""The command external, and what explain says of the jobs that hold what is short."""

from __future__ import annotations

import json

from rich.cells import cell_len

from schedulemesh.cli.explain import text_of
from schedulemesh.domain.resources import parse_resources
from schedulemesh.runtime.backend import NodeView
from schedulemesh.runtime.cluster_usage import ClusterUsage
from tests.runtime.fake_backend import OWN_NODE
from tests.runtime.test_external_usage import TRAINING, holder


def test_jobs_are_a_table_that_fits_80_columns(scheduler, run):
    backend = scheduler.connection.service.backend
    backend.used = ClusterUsage(jobs={TRAINING.job_id: TRAINING}, holders=(holder("a1"),))
    done = run("external")
    assert (done.exit_code, done.stderr) == (0, "")
    assert all(cell_len(line) <= 80 for line in done.stdout.splitlines())
    assert done.stdout.splitlines()[1].split()[:2] == ["03000000", "team"]
    assert "python train.py" in done.stdout
    (row,) = json.loads(run("external", "-o", "json").stdout)
    assert (row["driver_pid"], row["nodes"]) == (77, {OWN_NODE: {"cpu": 2.0}})


def test_an_explanation_says_which_job_uses_the_node(scheduler):
    service = scheduler.connection.service
    total = parse_resources({"cpu": 8})
    service.backend.free = [
        NodeView(node_id=OWN_NODE, total=total, free=parse_resources({"cpu": 6}), labels={})
    ]
    service.do(service.running.monitor.observe())
    service.backend.used = ClusterUsage(jobs={TRAINING.job_id: TRAINING}, holders=(holder("a1"),))
    scheduler.pool(cpu=8)
    scheduler.submit("t", cpu=8, queue=True)
    answer = scheduler.calls.explain("t")
    said = " ".join(text_of(answer, answer["since"]).split())
    assert "by job 03000000 in team: python train.py" in said
