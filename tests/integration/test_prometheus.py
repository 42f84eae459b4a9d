"""A real Prometheus server scrapes the scheduler: it takes every line, and its counts are the statistics."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from schedulemesh.metrics.exposition import CONTENT_TYPE
from tests.integration.agents import Plain
from tests.integration.polling import until

CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs:
  - job_name: schedulemesh
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
#: What promtool says of the documented names, which are as they are.
NAMES = {
    "schedulemesh_preemption_execution_latency_ms metric names should not contain abbreviated units",
    "schedulemesh_task_schedule_latency_ms metric names should not contain abbreviated units",
    'schedulemesh_preemption_count counter metrics should have "_total" suffix',
    'schedulemesh_preemption_count non-histogram and non-summary metrics should not have "_count" suffix',
}

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="there is no Prometheus server here (Debian: apt-get install prometheus)",
)


class Prometheus:
    """A server of its own folder and port."""

    def __init__(self, folder, target_port):
        self.log = folder / "log"
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(port=target_port))
        command = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--log.level=info",
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stderr=log)
        until(self._address, self.log.read_text)

    def _address(self):
        for line in self.log.read_text().splitlines():
            if 'msg="Listening on"' in line:
                return line.partition("address=")[2].split()[0]
        return None

    def ask(self, path, **query):
        """Data of the HTTP API."""
        url = f"http://{self._address()}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def value(self, expression):
        """The value of an expression now; None: there is none."""
        found = self.ask("query", query=expression)["result"]
        return float(found[0]["value"][1]) if found else None

    def warnings(self):
        lines = self.log.read_text().splitlines()
        return [line for line in lines if "level=warn" in line or "level=error" in line]

    def close(self):
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture
def endpoint(scheduler):
    """A port of this machine on which the scheduler's metrics are served."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            text = scheduler.metrics_text().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def prometheus(endpoint, tmp_path):
    server = Prometheus(tmp_path, endpoint)
    yield server
    server.close()


def test_prometheus_scrapes_without_a_warning_and_counts_equal_the_statistics(
    scheduler, prometheus
):
    scheduler.create_pool("训练", resources={"cpu": 2.0})
    for number in range(3):
        low = scheduler.submit_task_with_preemption(
            f"low-{number}", "训练", Plain, {"cpu": 2.0}, priority=1.0
        )
        assert low["success"], low
        high = scheduler.submit_task_with_preemption(
            f"high-{number}", "训练", Plain, {"cpu": 2.0}, priority=9.0
        )
        assert [victim["task_id"] for victim in high["preempted"]] == [f"low-{number}"]
        scheduler.complete_task(f"high-{number}", end_agent=True)
    stats = scheduler.get_preemption_stats()
    assert stats["total_preemptions"] == 3
    label = '{pool="训练",reason="same_pool_preemption"}'
    completed = 'schedulemesh_tasks_ended_total{pool="训练",state="completed"}'
    until(
        lambda: prometheus.value(completed) == 3,
        lambda: f"{prometheus.ask('targets')['activeTargets']}",
    )
    assert prometheus.value(f"schedulemesh_preemption_count{label}") == 3
    assert prometheus.value("sum(schedulemesh_preemption_count)") == stats["total_preemptions"]
    latency = f"schedulemesh_preemption_execution_latency_ms_count{label}"
    assert prometheus.value(latency) == stats["same_pool_preemptions"]
    assert prometheus.value('schedulemesh_task_schedule_latency_ms_count{pool="训练"}') == 6
    (target,) = prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    known = prometheus.ask("metadata", metric="schedulemesh_preemption_count")
    assert known["schedulemesh_preemption_count"][0]["type"] == "counter"
    assert prometheus.warnings() == []


def test_promtool_has_nothing_to_say_but_of_the_documented_names(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 2.0})
    scheduler.submit_task_with_preemption("t", "pool", Plain, {"cpu": 1.0})
    scheduler.preempt_task(task_id="t")
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=scheduler.metrics_text(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(checked.stderr.splitlines()) <= NAMES
    assert checked.stdout == ""
