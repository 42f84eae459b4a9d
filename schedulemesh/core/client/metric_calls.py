"""The calls of both scheduler objects about metrics."""

from __future__ import annotations

from collections.abc import Iterable

from schedulemesh.core.client import reported_metrics
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.reported_metrics import ReportedMetricsResult


@public_calls
class MetricCalls:
    """Answers what agents have reported, and what the scheduler has counted."""

    _connection: Connection

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
        return reported_metrics.get_metrics(self._connection, by, pool, agent, label, names)

    def metrics_text(self, agents: bool = False) -> str:
        """Return all metrics of the scheduler in the Prometheus text format; docs/metrics.md lists them.

        ``agents``: also what each agent really uses, one line for each agent and resource.
        """
        return reported_metrics.metrics_text(self._connection, agents)
