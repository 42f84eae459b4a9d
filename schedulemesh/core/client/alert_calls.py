"""The call of both scheduler objects about alerts."""

from __future__ import annotations

from schedulemesh.api.metrics import AlertInfo, GetAlerts
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.asking import listed
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.results import Result


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
