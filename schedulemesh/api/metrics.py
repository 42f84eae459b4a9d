"""Metrics, and the alerts that are derived from them."""

from __future__ import annotations

from schedulemesh.api.call import Call
from schedulemesh.api.values import Name, Names
from schedulemesh.errors import InvalidRequestError, shown

#: By what reported metrics are aggregated.
METRIC_GROUPINGS = ("agent", "pool", "label")


class GetMetrics(Call, tag="get_metrics", frozen=True, kw_only=True):
    """Get all metrics in the Prometheus text format, as ``text``."""

    #: Whether also those of what each agent uses, one for each agent and resource.
    agents: bool = False


class GetReportedMetrics(Call, tag="get_reported_metrics", frozen=True, kw_only=True):
    """Aggregate the metrics that agents have reported; None: not filtered."""

    by: str = "agent"
    pool_name: Name | None = None
    agent_name: Name | None = None
    #: Of the labels only those with this key.
    label: Name | None = None
    #: Only these metrics; empty: all.
    names: Names = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by not in METRIC_GROUPINGS:
            allowed = ", ".join(METRIC_GROUPINGS)
            raise InvalidRequestError(f"by is {shown(self.by)}; allowed are {allowed}")
        if self.label is not None and self.by != "label":
            raise InvalidRequestError(
                "a label's key is given only where metrics are aggregated by label"
            )


class GetAlerts(Call, tag="get_alerts", frozen=True, kw_only=True):
    """List the alerts that fire, those that are pending, and the last that were resolved."""
