"""Calls about metrics. MetricCalls documents each call."""

from __future__ import annotations

from schedulemesh.api.metrics import GetMetrics, GetReportedMetrics, ReportedMetric
from schedulemesh.core.client.asking import ask, listed
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.results import Result
from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import parse_flag
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError, SchedulerUnavailableError, shown
from schedulemesh.protocol.answers import Details


class ReportedMetricsResult(Result, total=False):
    """The answer of ``get_metrics``."""

    metrics: list[ReportedMetric]


def get_metrics(
    connection: Connection, by: object, pool: object, agent: object, label: object, names: object
) -> ReportedMetricsResult:
    """What agents have reported, aggregated."""
    grouping = as_text(by)
    if grouping is None:
        raise InvalidRequestError(f"by is {shown(by)}; it is a text")
    request = GetReportedMetrics(
        by=grouping,
        pool_name=None if pool is None else parse_name(pool, "the pool's name"),
        agent_name=None if agent is None else parse_name(agent, "the agent's name"),
        label=None if label is None else parse_name(label, "label"),
        names=tuple(
            parse_name(name, "each of names")
            for name in as_elements(names, "names", "a list of names of metrics", sets=True)
        ),
    )
    return listed(connection, request, "metrics", ReportedMetricsResult)


def metrics_text(connection: Connection, agents: object) -> str:
    """All metrics in the Prometheus text format."""
    answer = ask(connection, GetMetrics(agents=parse_flag(agents, "agents")), Details)
    if isinstance(answer, Refused):
        raise SchedulerUnavailableError(answer.error)
    return str(answer.facts["text"])
