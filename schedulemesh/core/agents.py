"""The reporting agent under the path that the documents promise."""

from schedulemesh.core.agent.metrics_agent import MetricsReportingAgent

__all__ = ["MetricsReportingAgent"]
