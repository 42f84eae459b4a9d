"""Agents that tell the scheduler how far they are."""

from __future__ import annotations

import time
from typing import Any

from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.agent.control_channel import current
from schedulemesh.protocol.agents import encoded_metrics


class MetricsReportingAgent(AgentActor):
    """An agent that reports metrics while it works, without waiting for anyone.

    ``supervisor`` is needed only outside of ScheduleMesh's own agents, which know theirs.
    ``report_interval`` is the fewest seconds between two reports that are sent.
    """

    def __init__(
        self,
        name: str,
        labels: dict[str, str] | None = None,
        supervisor: Any = None,
        report_interval: float = 1.0,
    ) -> None:
        super().__init__(name, labels)
        self.supervisor = supervisor
        self.report_interval = report_interval
        self._last_report = float("-inf")

    def report_metrics(
        self, metrics: dict[str, Any] | None = None, *, at_once: bool = False, **more: Any
    ) -> bool:
        """Send metrics (numbers, texts, flags) at most once per ``report_interval``; also a safe point.

        ``at_once`` sends them whenever the last were sent, as for the last step of a loop. Returns whether
        they were sent. ``progress`` (0 to 1) is the one that states of tasks show.
        """
        sent = self._send({**(metrics or {}), **more}, at_once)
        self.safe_point()
        return sent

    def _send(self, metrics: dict[str, Any], at_once: bool) -> bool:
        now = time.monotonic()
        if not at_once and now - self._last_report < self.report_interval:
            return False
        link = current()
        if link is not None:
            link.report_metrics(metrics)
        elif self.supervisor is not None:
            self.supervisor.report_metrics.remote(self.name, encoded_metrics(metrics))
        else:
            return False
        self._last_report = now
        return True
