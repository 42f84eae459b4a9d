"""A real Prometheus server scrapes the scheduler: it takes every line, and its counts are the statistics."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import urllib.parse
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import ray
import yaml
from typer.testing import CliRunner

from schedulemesh.cli.app import app
from schedulemesh.metrics.alert_rules import RULES
from schedulemesh.metrics.dashboard import dashboard
from schedulemesh.metrics.exposition import CONTENT_TYPE
from tests.integration.agents import Plain
from tests.integration.polling import until
from tests.runtime.alert_receivers import SECRET, WebhookServer

CONFIG = """
global: {{scrape_interval: {scrape}, scrape_timeout: {scrape}, evaluation_interval: 500ms}}
rule_files: {rules}
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

    def __init__(self, folder, target_port, rules=(), scrape="500ms"):
        self.log = folder / "log"
        config = folder / "prometheus.yml"
        config.write_text(
            CONFIG.format(port=target_port, scrape=scrape, rules=json.dumps(list(map(str, rules))))
        )
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
        until(lambda: "Server is ready" in self.log.read_text(), self.log.read_text)

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

    def target(self):
        """The health of the scheduler as a target, and the error of the last scrape."""
        (found,) = self.ask("targets")["activeTargets"]
        return found["health"], found["lastError"]

    def warnings(self):
        lines = self.log.read_text().splitlines()
        return [line for line in lines if "level=warn" in line or "level=error" in line]

    def close(self):
        self.process.terminate()
        self.process.wait(30)


@contextmanager
def served(scheduler):
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
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def watching(scheduler, folder, **how):
    """A Prometheus server that scrapes the scheduler."""
    with served(scheduler) as port:
        server = Prometheus(folder, port, **how)
        try:
            yield server
        finally:
            server.close()


@pytest.fixture
def prometheus(scheduler, tmp_path):
    with watching(scheduler, tmp_path) as server:
        yield server


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
    expected = {
        completed: 3,
        f"schedulemesh_preemption_count{label}": 3,
        "sum(schedulemesh_preemption_count)": stats["total_preemptions"],
        f"schedulemesh_preemption_execution_latency_ms_count{label}": stats[
            "same_pool_preemptions"
        ],
        'schedulemesh_task_schedule_latency_ms_count{pool="训练"}': 6,
    }
    # A scrape that takes too long is an error of the target and leaves no values, until the next one.
    until(
        lambda: {each: prometheus.value(each) for each in expected} == expected,
        lambda: f"{prometheus.ask('targets')['activeTargets']}",
    )
    until(lambda: prometheus.target() == ("up", ""), lambda: f"{prometheus.target()}")
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


@pytest.fixture
def webhook():
    server = WebhookServer()
    yield server
    server.close()


def alert_settings(webhook, **rules):
    """Quick evaluations with these rules alone."""
    return {
        "interval_s": 0.5,
        "recent_s": 20.0,
        "rules": {**dict.fromkeys(RULES, False), **rules},
        "webhooks": [{"url": webhook.url, "secret": SECRET, "name": "hook"}],
    }


def exported(settings, folder):
    """The rules file of a scheduler with these settings, as the command prints it."""
    (folder / "alerts.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    done = CliRunner().invoke(app, ["export", "alerts", "--settings", str(folder / "alerts.yaml")])
    assert done.exit_code == 0, done.output
    (folder / "rules.yml").write_text(done.stdout, encoding="utf-8")
    return folder / "rules.yml"


STORM = 'ALERTS{alertname="preemption_storm",alertstate="firing",pool="训练"}'


def test_a_preemption_storm_fires_and_is_resolved_once_here_and_in_prometheus(
    make_scheduler, webhook, tmp_path
):
    settings = alert_settings(webhook, preemption_storm={"threshold": 1})
    scheduler = make_scheduler(alerts=settings)
    rules = exported(settings, tmp_path)
    scheduler.create_pool("训练", resources={"cpu": 3.0})
    # A scrape that takes too long would resolve the alert in Prometheus.
    with watching(scheduler, tmp_path, rules=[rules], scrape="5s") as prometheus:
        (group,) = prometheus.ask("rules")["groups"]
        assert [rule["name"] for rule in group["rules"]] == ["preemption_storm"]
        until(lambda: prometheus.value("schedulemesh_recent_preemptions") == 0, "it scrapes")
        lows = [f"low-{number}" for number in range(3)]
        for name in lows:
            low = scheduler.submit_task_with_preemption(
                name, "训练", Plain, {"cpu": 1.0}, priority=1.0
            )
            assert low["success"], low
        # All at once: a storm whose preemptions are far apart ends between them, and fires again.
        high = scheduler.submit_task_with_preemption(
            "high", "训练", Plain, {"cpu": 3.0}, priority=9.0
        )
        assert sorted(victim["task_id"] for victim in high["preempted"]) == lows
        scheduler.complete_task("high", end_agent=True)
        fired = webhook.next(60.0)
        assert (fired["rule"], fired["state"]) == ("preemption_storm", "firing")
        assert fired["labels"] == {"pool": "训练"}
        until(lambda: prometheus.value(STORM) == 1, lambda: f"{prometheus.ask('alerts')}")
        resolved = webhook.next(60.0)
        assert (resolved["id"], resolved["state"]) == (fired["id"], "resolved")
        until(lambda: prometheus.value(STORM) is None, lambda: f"{prometheus.ask('alerts')}")
        # Each time that an alert becomes active has another value.
        (times,) = prometheus.ask(
            "query", query='ALERTS_FOR_STATE{alertname="preemption_storm"}[5m]'
        )["result"]
        assert len({value for _, value in times["values"]}) == 1
        assert [row["id"] for row in scheduler.alerts()["alerts"]] == [fired["id"]]
        assert (webhook.attempts, webhook.accepted.qsize()) == (2, 0)
        delivered = 'schedulemesh_alert_deliveries_total{receiver="hook",outcome="delivered"}'
        until(lambda: prometheus.value(delivered) == 2, "both deliveries are counted")
        assert prometheus.warnings() == []


def test_a_supervisor_that_is_killed_does_not_raise_an_alert_again(make_scheduler, webhook):
    settings = alert_settings(
        webhook,
        quota_nearly_full={"threshold": 0.5, "for_s": 0},
        supervisor_restarted={},
    )
    scheduler = make_scheduler(detached=True, alerts=settings)
    scheduler.create_pool("训练", resources={"cpu": 1.0})
    answer = scheduler.submit_task_with_preemption("t", "训练", Plain, {"cpu": 1.0})
    assert answer["success"], answer
    fired = webhook.next(60.0)
    assert (fired["rule"], fired["state"]) == ("quota_nearly_full", "firing")
    before = scheduler.about()["pid"]
    os.kill(before, signal.SIGKILL)
    alerts = []
    while not alerts or alerts[-1]["rule"] != "supervisor_restarted":
        alerts.append(webhook.next(60.0))
    assert scheduler.about()["pid"] != before
    scheduler.complete_task("t", end_agent=True)
    while alerts[-1]["state"] != "resolved":
        alerts.append(webhook.next(60.0))
    # The delivery before the kill may be repeated; nothing has another id.
    assert {alert["id"] for alert in alerts if alert["rule"] == "quota_nearly_full"} == {
        fired["id"]
    }
    assert sum(alert["rule"] == "supervisor_restarted" for alert in alerts) == 1
    shown = {row["rule"]: row for row in scheduler.alerts()["alerts"]}
    assert shown["quota_nearly_full"]["id"] == fired["id"]
    assert shown["supervisor_restarted"]["state"] == "firing"


#: Panels that have a value once a task runs on a cluster without placement groups and loans.
NEVER_EMPTY = (
    "Tasks by state",
    "Queue depth",
    "GPU quota in use",
    "CPU quota in use",
    "Decision and journal, p99",
    "GPUs of the cluster",
    "Nodes by state",
    "Agents by state",
)


def test_rules_and_panels_work_with_rays_exporter_alone(make_scheduler, webhook, tmp_path):
    settings = alert_settings(webhook, quota_nearly_full={"threshold": 0.5, "for_s": 0})
    scheduler = make_scheduler(alerts=settings)
    rules = exported(settings, tmp_path)
    scheduler.create_pool("exported", resources={"cpu": 1.0, "gpu": 1.0})
    resources = {"cpu": 1.0, "gpu": 1.0}
    assert scheduler.submit_task_with_preemption("t", "exported", Plain, resources)["success"]
    (node,) = [node for node in ray.nodes() if node["Alive"]]
    prometheus = Prometheus(tmp_path, node["MetricsExportPort"], rules=[rules], scrape="2s")
    try:
        firing = 'ALERTS{alertname="quota_nearly_full",alertstate="firing",pool="exported"}'
        until(lambda: prometheus.value(firing) == 1, lambda: f"{prometheus.ask('alerts')}", 90)
        assert prometheus.value("schedulemesh_pool_quota") is None, "it has the other name only"

        def values(panel):
            asked = [each["expr"].replace("$instance", ".*") for each in panel["targets"]]
            return [prometheus.value(expression) for expression in asked]

        panels = [panel for panel in json.loads(dashboard())["panels"] if "targets" in panel]
        assert {panel["title"] for panel in panels} >= set(NEVER_EMPTY)
        for panel in panels:
            values(panel)  # Prometheus takes the expression, whatever there is
            if panel["title"] in NEVER_EMPTY:
                until(lambda p=panel: None not in values(p), panel["title"], 60)
        scheduler.complete_task("t", end_agent=True)
        until(lambda: prometheus.value(firing) is None, lambda: f"{prometheus.ask('alerts')}", 90)
    finally:
        prometheus.close()
