"""The requests for metrics; see ``requests``."""

from __future__ import annotations

from schedulemesh.protocol.request_base import Request


class GetMetrics(Request, tag="get_metrics", frozen=True, kw_only=True):
    """Get all metrics in the Prometheus text format, as ``text``."""
