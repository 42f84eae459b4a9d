"""Metrics, and the alerts that are derived from them."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypedDict

from schedulemesh.api.call import Call, ChangingCall
from schedulemesh.api.routes import ListRoute, post
from schedulemesh.api.rows import OneOf
from schedulemesh.api.values import Name, Names
from schedulemesh.config.alerts import Severity
from schedulemesh.errors import InvalidRequestError, shown

#: By what reported metrics are aggregated.
METRIC_GROUPINGS = ("agent", "pool", "label")


class ReportedMetric(TypedDict, total=False):
    """The newest values of one metric of an agent, or of all agents of a pool or with a label."""

    agent_name: str
    pool_name: str
    label: str
    label_value: str
    metric: str
    #: How many agents have reported it.
    agents: int
    #: How many values the following are made from.
    count: int
    last: float
    #: When the last and the first of these values arrived, in seconds since 1970.
    last_at: float
    since: float
    mean: float
    min: float
    max: float
    p50: float
    p95: float


class AlertInfo(TypedDict):
    """An alert; times are seconds since 1970."""

    #: The same from pending to resolved, and another one each time.
    id: str
    rule: str
    #: "pending", "firing" or "resolved".
    state: Annotated[str, OneOf("pending", "firing", "resolved")]
    severity: Annotated[str, OneOf.codes(Severity)]
    labels: dict[str, str]
    #: The last value for which the condition held; None: infinite, a quota of 0 in use.
    value: float | None
    threshold: float
    summary: str
    #: What to do about it.
    action: str
    #: Since when the condition has held.
    active_at: float
    fired_at: float | None
    resolved_at: float | None


class AlertDelivery(TypedDict, total=False):
    """What became of a test message to one receiver of alerts."""

    receiver: str
    accepted: bool
    #: Why it was not accepted; empty: it was.
    error: str


class AlertDeliveries(TypedDict, total=False):
    """What became of test messages."""

    #: How many receivers accepted theirs.
    accepted: int
    failed: int
    deliveries: list[AlertDelivery]


class GetMetrics(Call, tag="get_metrics", frozen=True, kw_only=True):
    """Get all metrics in the Prometheus text format, as ``text``."""

    #: Whether also those of what each agent uses, one for each agent and resource.
    agents: bool = False


class GetReportedMetrics(Call, tag="get_reported_metrics", frozen=True, kw_only=True):
    """Aggregate the metrics that agents have reported; None: not filtered."""

    listings: ClassVar = (
        ListRoute(
            path="/metrics/agents",
            summary="Aggregate the metrics that agents reported in the last minutes, by agent",
            row=ReportedMetric,
            key=("agent_name", "metric"),
            fixed={"by": "agent"},
        ),
        ListRoute(
            path="/metrics/pools",
            summary="Aggregate the metrics that agents reported in the last minutes, by pool",
            row=ReportedMetric,
            key=("pool_name", "metric"),
            fixed={"by": "pool"},
        ),
        ListRoute(
            path="/metrics/labels",
            summary="Aggregate the metrics that agents reported in the last minutes, by label",
            row=ReportedMetric,
            key=("label", "label_value", "metric"),
            fixed={"by": "label"},
        ),
    )

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


class SendTestAlert(ChangingCall, tag="send_test_alert", frozen=True, kw_only=True):
    """Send each receiver of alerts (or one) a message that says that it is a test, without a repetition."""

    routes: ClassVar = (
        post(
            "/alerts/test",
            "Send each receiver of alerts, or one, a test message, and tell which accepted it",
        ),
    )

    #: None: all.
    receiver: Name | None = None


class GetAlerts(Call, tag="get_alerts", frozen=True, kw_only=True):
    """List the alerts that fire, those that are pending, and the last that were resolved."""

    listings: ClassVar = (
        ListRoute(
            path="/alerts",
            summary="List the alerts that fire or are pending, and the last that were resolved",
            row=AlertInfo,
            key=("id",),
        ),
    )
