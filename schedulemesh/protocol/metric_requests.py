"""The requests for metrics; see ``requests``."""

from __future__ import annotations

from schedulemesh.domain.names import parse_name
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.request_base import Names, Request, check_number

#: By what reported metrics are aggregated.
METRIC_GROUPINGS = ("agent", "pool", "label")


class GetMetrics(Request, tag="get_metrics", frozen=True, kw_only=True):
    """Get all metrics in the Prometheus text format, as ``text``."""

    #: Whether also those of what each agent uses, one for each agent and resource.
    agents: bool = False


class GetReportedMetrics(Request, tag="get_reported_metrics", frozen=True, kw_only=True):
    """Aggregate the metrics that agents have reported; None: not filtered."""

    by: str = "agent"
    pool_name: str | None = None
    agent_name: str | None = None
    #: Of the labels only those with this key.
    label: str | None = None
    #: Only these metrics; empty: all.
    names: Names = ()

    def __post_init__(self) -> None:
        if self.by not in METRIC_GROUPINGS:
            allowed = ", ".join(METRIC_GROUPINGS)
            raise InvalidRequestError(f"by is {shown(self.by)}; allowed are {allowed}")
        for name in ("pool_name", "agent_name", "label"):
            if (given := getattr(self, name)) is not None:
                parse_name(given, name)
        if self.label is not None and self.by != "label":
            raise InvalidRequestError(
                "a label's key is given only where metrics are aggregated by label"
            )
        check_number(self.names, "names")
        for name in self.names:
            parse_name(name, "each of names")
