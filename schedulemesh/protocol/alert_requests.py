"""The requests for alerts; see ``requests``."""

from __future__ import annotations

from schedulemesh.protocol.request_base import Request


class GetAlerts(Request, tag="get_alerts", frozen=True, kw_only=True):
    """List the alerts that fire, those that are pending, and the last that were resolved."""
