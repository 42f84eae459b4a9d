"""The calls about metrics and alerts."""

from __future__ import annotations

from collections.abc import Iterable

from schedulemesh.api.metrics import (
    AlertDeliveries,
    AlertInfo,
    GetAlerts,
    GetMetrics,
    GetReportedMetrics,
    ReportedMetric,
    SendTestAlert,
)
from schedulemesh.api.results import Result
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import ask, details, listed
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import parse_flag
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError, SchedulerUnavailableError, shown
from schedulemesh.protocol.answers import Details


class ReportedMetricsResult(Result, total=False):
    """The answer of ``get_metrics``."""

    metrics: list[ReportedMetric]


class AlertsResult(Result, total=False):
    """The answer of ``alerts``."""

    alerts: list[AlertInfo]


class AlertDeliveriesResult(Result, AlertDeliveries, total=False):
    """The answer of ``test_alerts``."""


@public_calls
class MetricCalls(SchedulerObject):
    """A scheduler object that answers what agents have reported, what it has counted, and which alerts there
    are.
    """

    def get_metrics(
        self,
        by: str = "agent",
        *,
        pool: str | None = None,
        agent: str | None = None,
        label: str | None = None,
        names: Iterable[str] = (),
    ) -> ReportedMetricsResult:
        """Return ``metrics``: what agents have reported in the last minutes, by "agent", "pool" or "label".

        One entry for each metric has ``count``, ``last``, ``mean``, ``min``, ``max``, ``p50`` and ``p95`` of
        its newest values, and how many ``agents`` they come from. ``pool`` and ``agent`` restrict whose
        values count, ``label`` lists only the values of this label, ``names`` only these metrics.
        """
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
        return listed(self._connection, request, "metrics", ReportedMetricsResult)

    def metrics_text(self, agents: bool = False) -> str:
        """Return all metrics of the scheduler in the Prometheus text format; docs/metrics.md lists them.

        ``agents``: also what each agent really uses, one line for each agent and resource.
        """
        answer = ask(self._connection, GetMetrics(agents=parse_flag(agents, "agents")), Details)
        if isinstance(answer, Refused):
            raise SchedulerUnavailableError(answer.error)
        return str(answer.facts["text"])

    def test_alerts(self, receiver: str | None = None) -> AlertDeliveriesResult:
        """Send every receiver of alerts (or one, by its name) a test message, and wait for what it answers.

        ``deliveries`` has an entry for each receiver with ``receiver``, ``accepted`` and ``error``;
        ``accepted`` and ``failed`` count them. Nothing is repeated.
        """
        name = None if receiver is None else parse_name(receiver, "the receiver's name")
        return details(self._connection, SendTestAlert(receiver=name), AlertDeliveriesResult)

    def alerts(self) -> AlertsResult:
        """Return ``alerts``: those that fire, those that are pending, and the last 200 that were resolved."""
        return listed(self._connection, GetAlerts(), "alerts", AlertsResult)
