"""Agents that tell the scheduler how far they are."""

from __future__ import annotations

from ray.actor import ActorHandle

from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.agent.control_channel import current
from schedulemesh.core.agent.metrics_sender import MetricsSender
from schedulemesh.domain.user_data import UserValue


class MetricsReportingAgent(AgentActor):
    """An agent that reports metrics while it works, without waiting for anyone.

    ``supervisor`` is needed only outside of ScheduleMesh's own agents, which know theirs.
    ``report_interval`` is the fewest seconds between two reports that are sent; the last one always is.
    """

    def __init__(
        self,
        name: str,
        labels: dict[str, str] | None = None,
        supervisor: ActorHandle = None,
        report_interval: float = 1.0,
    ) -> None:
        super().__init__(name, labels)
        self.supervisor = supervisor
        self.report_interval = report_interval
        self._sender: MetricsSender | None = None

    def report_metrics(
        self,
        metrics: dict[str, UserValue] | None = None,
        *,
        at_once: bool = False,
        **more: UserValue,
    ) -> bool:
        """Send metrics (numbers, texts, flags, lists and dicts of them), without waiting; also a safe point.

        Those that come within ``report_interval`` of the last are held back: the newest of them goes out when
        the interval is over. With ``at_once`` they are not held back, as for the last step of a loop.
        Returns whether they go out now. ``progress`` (0 to 1) is the one that states of tasks show.
        """
        sender = self._metrics_sender()
        interval = self.report_interval
        given = {**(metrics or {}), **more}
        sent = sender is not None and sender.report(given, interval, at_once=at_once)
        self.safe_point()
        return sent

    def _metrics_sender(self) -> MetricsSender | None:
        """What sends to the supervisor; None: there is none."""
        link = current()
        if link is not None:
            return link.metrics
        if self._sender is None and self.supervisor is not None:
            self._sender = MetricsSender(self.name, None, self.supervisor.report_metrics.remote)
        return self._sender
