"""The call of both scheduler objects about alerts."""

from __future__ import annotations

from typing import TypedDict

from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.asking import listed
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.results import Result
from schedulemesh.protocol.alert_requests import GetAlerts


class AlertInfo(TypedDict, total=False):
    """An alert; times are seconds since 1970."""

    #: The same from pending to resolved, and another one each time.
    id: str
    rule: str
    #: "pending", "firing" or "resolved".
    state: str
    severity: str
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


class AlertsResult(Result, total=False):
    """The answer of ``alerts``."""

    alerts: list[AlertInfo]


@public_calls
class AlertCalls:
    """Answers which alerts there are."""

    _connection: Connection

    def alerts(self) -> AlertsResult:
        """Return ``alerts``: those that fire, those that are pending, and the last 200 that were resolved."""
        return listed(self._connection, GetAlerts(), "alerts", AlertsResult)
