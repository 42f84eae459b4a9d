"""A Grafana dashboard of all metrics that an operator looks at first."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec

from schedulemesh.metrics.alert_conditions import selector

#: The variable that stands for the Prometheus data source.
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: The version of Grafana's model of dashboards (Grafana 10 and later read it).
_SCHEMA_VERSION = 39
#: A dashboard is 24 units wide; a panel takes a third of it.
_WIDTH, _HEIGHT, _IN_A_ROW = 8, 8, 3
_SELECTOR = re.compile(r"(schedulemesh_\w+)(?:\{([^}]*)\})?")


class Query(msgspec.Struct, frozen=True):
    """An expression of a panel, and how its series are named."""

    expression: str
    legend: str


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """A panel: a graph over time, or the present value."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    #: Whether it shows only the present values.
    stat: bool = False


def _graph(title: str, unit: str, *queries: tuple[str, str]) -> Panel:
    return Panel(title=title, unit=unit, queries=tuple(Query(*query) for query in queries))


def _quantile(metric: str, part: float) -> str:
    return f"histogram_quantile({part}, sum by (pool, le) (rate({metric}_bucket[5m])))"


def _p99(metric: str) -> str:
    return f"histogram_quantile(0.99, sum by (le) (rate({metric}_bucket[5m])))"


def _quota_in_use(resource: str) -> str:
    used, reserved, quota = (
        f'schedulemesh_pool_quota{part}{{resource="{resource}"}}'
        for part in ("_used", "_reserved", "")
    )
    return f"({used} + {reserved}) / {quota}"


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Alerts and work",
        (
            Panel(
                title="Alerts that fire",
                unit="none",
                queries=(Query('sum(schedulemesh_alerts{state="firing"})', "alerts"),),
                stat=True,
            ),
            _graph(
                "Alerts by rule",
                "none",
                ('sum by (rule) (schedulemesh_alerts{state="firing"})', "{{rule}}"),
            ),
            _graph(
                "Tasks by state",
                "none",
                ("sum by (state) (schedulemesh_tasks)", "{{state}}"),
            ),
        ),
    ),
    (
        "Queue",
        (
            _graph("Queue depth", "none", ("schedulemesh_queue_depth", "{{pool}}")),
            _graph("Oldest wait", "s", ("schedulemesh_queue_oldest_wait_seconds", "{{pool}}")),
            _graph(
                "Wait until admission, p95",
                "s",
                (_quantile("schedulemesh_queue_wait_seconds", 0.95), "{{pool}}"),
            ),
            _graph(
                "Submissions by outcome",
                "cpm",
                (
                    "60 * sum by (outcome) (rate(schedulemesh_submissions_total[5m]))",
                    "{{outcome}}",
                ),
            ),
            _graph(
                "Tasks completed per minute",
                "cpm",
                ("schedulemesh_throughput_tasks_per_minute", "completed"),
            ),
            _graph(
                "Longest start of an agent",
                "s",
                ("schedulemesh_admission_oldest_seconds", "{{pool}}"),
            ),
        ),
    ),
    (
        "Quotas",
        (
            _graph(
                "GPU quota in use",
                "percentunit",
                (_quota_in_use("gpu"), "{{pool}}"),
            ),
            _graph(
                "CPU quota in use",
                "percentunit",
                (_quota_in_use("cpu"), "{{pool}}"),
            ),
            _graph(
                "GPUs lent and borrowed",
                "none",
                ('schedulemesh_pool_quota_lent{resource="gpu"}', "{{pool}} lent"),
                ('schedulemesh_pool_quota_borrowed{resource="gpu"}', "{{pool}} borrowed"),
            ),
        ),
    ),
    (
        "Preemptions",
        (
            _graph(
                "Preemptions of the last 5 minutes",
                "none",
                ("schedulemesh_recent_preemptions", "{{pool}}"),
            ),
            _graph(
                "Preemptions by reason",
                "none",
                ("sum by (reason) (schedulemesh_preemption_count)", "{{reason}}"),
            ),
            _graph(
                "Time until resources are free, p95",
                "ms",
                (_quantile("schedulemesh_preemption_execution_latency_ms", 0.95), "{{pool}}"),
            ),
            _graph(
                "Lost work",
                "none",
                ("sum by (pool) (rate(schedulemesh_lost_work_gpu_seconds_total[1h]))", "{{pool}}"),
            ),
        ),
    ),
    (
        "Latency and decisions",
        (
            _graph(
                "Submission until running, p95",
                "ms",
                (_quantile("schedulemesh_task_schedule_latency_ms", 0.95), "{{pool}}"),
            ),
            _graph(
                "Decisions per second",
                "ops",
                ("rate(schedulemesh_decision_seconds_count[1m])", "decisions"),
            ),
            _graph(
                "Decision and journal, p99",
                "s",
                (_p99("schedulemesh_decision_seconds"), "decision"),
                (_p99("schedulemesh_journal_write_seconds"), "journal"),
            ),
        ),
    ),
    (
        "Agents, groups and GPUs",
        (
            _graph(
                "Agents by state", "none", ("sum by (state) (schedulemesh_agents)", "{{state}}")
            ),
            _graph(
                "Oldest heartbeat",
                "s",
                ("max by (pool) (schedulemesh_agent_heartbeat_age_seconds)", "{{pool}}"),
            ),
            _graph(
                "Placement groups by state",
                "none",
                ("sum by (state) (schedulemesh_placement_groups)", "{{state}}"),
            ),
            _graph(
                "GPUs of the cluster",
                "none",
                ('sum(schedulemesh_node_resources{resource="gpu"})', "total"),
                ('sum(schedulemesh_node_resources_free{resource="gpu"})', "free"),
                ('sum(schedulemesh_node_external_usage{resource="gpu"})', "other Ray work"),
            ),
            _graph("Nodes by state", "none", ("schedulemesh_nodes", "{{state}}")),
            _graph("Orphans", "none", ("schedulemesh_orphans", "{{kind}}")),
        ),
    ),
)


def dashboard() -> str:
    """The dashboard as JSON, to be imported into Grafana."""
    document = {
        "title": "ScheduleMesh",
        "uid": "schedulemesh",
        "tags": ["schedulemesh", "ray"],
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": _placed(),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _variables() -> list[dict[str, object]]:
    """The data source, and the scheduler's address as Prometheus labels it."""
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "instance",
            "label": "Scheduler",
            "type": "query",
            "datasource": _SOURCE,
            "query": f"label_values({selector('schedulemesh_supervisor_epoch')}, instance)",
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
        },
    ]


def _placed() -> list[dict[str, object]]:
    """All panels with their places, those of each row below its title."""
    placed: list[dict[str, object]] = []
    y = 0
    for title, panels in ROWS:
        place = {"x": 0, "y": y, "w": _WIDTH * _IN_A_ROW, "h": 1}
        placed.append({"id": len(placed) + 1, "type": "row", "title": title, "gridPos": place})
        y += 1
        placed += _row(panels, y, len(placed) + 1)
        y += _HEIGHT * -(-len(panels) // _IN_A_ROW)
    return placed


def _row(panels: Sequence[Panel], y: int, first_id: int) -> list[dict[str, object]]:
    return [
        {
            "id": first_id + number,
            "type": "stat" if panel.stat else "timeseries",
            "title": panel.title,
            "datasource": _SOURCE,
            "gridPos": {
                "x": _WIDTH * (number % _IN_A_ROW),
                "y": y + _HEIGHT * (number // _IN_A_ROW),
                "w": _WIDTH,
                "h": _HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                _target(query, chr(ord("A") + at)) for at, query in enumerate(panel.queries)
            ],
        }
        for number, panel in enumerate(panels)
    ]


def _target(query: Query, ref: str) -> dict[str, object]:
    return {
        "refId": ref,
        "datasource": _SOURCE,
        "expr": _of_instance(query.expression),
        "legendFormat": query.legend,
    }


def _of_instance(expression: str) -> str:
    """The expression, of the chosen schedulers, with both names of each metric."""
    chosen = 'instance=~"$instance"'
    return _SELECTOR.sub(
        lambda match: selector(match[1], chosen, *filter(None, [match[2]])), expression
    )


def metric_names() -> frozenset[str]:
    """The metrics that panels ask for, as PromQL names them."""
    queries = (query for _, panels in ROWS for panel in panels for query in panel.queries)
    return frozenset(
        match[1] for query in queries for match in _SELECTOR.finditer(query.expression)
    )
