"""The documented metrics are on Ray's own exporter."""

from __future__ import annotations

import re
import socket
import urllib.request

import ray

from schedulemesh.core.client import ray_cluster
from tests.integration.agents import Plain
from tests.integration.polling import until


def exported():
    """The scheduler's lines on the exporter of this node; none while its process does not answer."""
    (node,) = [node for node in ray.nodes() if node["Alive"]]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return []
    return [line for line in lines if "schedulemesh_" in line]


def value(name, pool):
    """The value of a metric of a pool; None: there is none yet."""
    wanted = re.compile(rf'^ray_schedulemesh_{name}{{.*pool="{re.escape(pool)}".*}} (\S+)$')
    found = [match[1] for line in exported() if (match := wanted.match(line))]
    return float(found[-1]) if found else None


def test_the_documented_names_are_exported_and_counts_equal_the_statistics(scheduler):
    scheduler.create_pool("r池", resources={"cpu": 2.0})
    scheduler.submit_task_with_preemption("low", "r池", Plain, {"cpu": 2.0}, priority=1.0)
    answer = scheduler.submit_task_with_preemption("high", "r池", Plain, {"cpu": 2.0}, priority=9.0)
    assert answer["preempted"], answer
    pool = "r\\\\u6c60"
    counted = scheduler.get_preemption_stats()["total_preemptions"]
    assert counted == 1
    # Ray passes metrics on every 10 s, from process to process.
    until(lambda: value("preemption_count", pool) == counted, lambda: "\n".join(exported()), 60)
    for name, observations in (
        ("preemption_execution_latency_ms_count", 1),
        ("task_schedule_latency_ms_count", 2),
    ):
        until(lambda n=name, o=observations: value(n, pool) == o, lambda: "\n".join(exported()), 60)


def test_a_taken_port_is_a_warning_and_another_port(caplog):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        other = ray_cluster._free_port(port)
        assert other > port
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"port {port} for the metrics is taken; they are at http://127.0.0.1:{other}/metrics"
    )
