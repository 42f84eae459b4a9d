"""MetricsReportingAgent: a base class of agents that report metrics while they work."""

from __future__ import annotations

import functools
import os

import msgspec
from ray import ObjectRef
from ray.actor import ActorHandle

from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.agent.control_channel import current
from schedulemesh.core.agent.metrics_sender import MetricsSender
from schedulemesh.domain.user_data import UserValue
from schedulemesh.protocol.credentials import ENVIRONMENT_VARIABLE, Credential


class MetricsReportingAgent(AgentActor):
    """An agent that reports metrics to the scheduler without waiting for the answer.

    ``supervisor`` is needed only in processes that ScheduleMesh did not start; where the scheduler accepts
    tokens only, these have one in SCHEDULEMESH_TOKEN. ``report_interval`` is the
    minimum number of seconds between two reports; the last report is always sent.
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

        Metrics reported within ``report_interval`` of the last ones are delayed: the newest are sent when the
        interval is over. ``at_once`` sends them now, for example at the last step of a loop. Returns whether
        they are sent now. ``progress`` (0 to 1) is shown in the states of tasks.
        """
        sender = self._metrics_sender()
        interval = self.report_interval
        all_metrics = {**(metrics or {}), **more}
        sent = sender is not None and sender.report(all_metrics, interval, at_once=at_once)
        self.safe_point()
        return sent

    def _metrics_sender(self) -> MetricsSender | None:
        """The sender of this agent; None: no supervisor is known."""
        channel = current()
        if channel is not None:
            return channel.metrics
        if self._sender is None and self.supervisor is not None:
            report = functools.partial(_send_report, self.supervisor)
            self._sender = MetricsSender(self.name, None, report)
        return self._sender


def _send_report(supervisor: ActorHandle, message: bytes) -> ObjectRef:
    """Send metrics from a process that ScheduleMesh did not start, with the token of its environment."""
    token = os.environ.get(ENVIRONMENT_VARIABLE, "")
    credential = msgspec.msgpack.encode(Credential(token=token, pid=os.getpid()))
    return supervisor.report_metrics.remote(message, credential)
