"""Evaluates the alert rules at intervals, and answers requests for alerts."""

from __future__ import annotations

import asyncio
import logging

from schedulemesh.api.metrics import AlertDeliveries, GetAlerts, SendTestAlert
from schedulemesh.metrics.alert_samples import collected
from schedulemesh.protocol.answers import Details, Listed, details, listed
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.services.metrics import MetricsService
from schedulemesh.runtime.services.running import RunningSupervisor, Service

logger = logging.getLogger(__name__)


class AlertService(Service):
    """Evaluates the rules with the values of which the exposition is written."""

    def __init__(self, running: RunningSupervisor, metrics: MetricsService) -> None:
        super().__init__(running)
        self._alerts, self._metrics = running.alerts, metrics
        #: One evaluation at a time: one with older values would undo a newer one.
        self._evaluating = asyncio.Lock()

    def start(self) -> None:
        """Begin to send alerts; the rules are evaluated by ``evaluate``."""
        self._alerts.start()

    async def evaluate(self) -> None:
        """Evaluate the rules now, after an evaluation that is under way; decisions are made meanwhile."""
        async with self._evaluating:
            await self._evaluated()

    async def _evaluated(self) -> None:
        metric_names = self._alerts.metrics
        while True:
            await self._reactor.until_consistent()
            seen = self._reactor.engine
            samples = await collected(self._metrics.families(seen.state), metric_names)
            await self._reactor.flushed()
            if self._reactor.engine is seen:
                break
        await self._alerts.evaluate(samples, self._reactor.now())

    @handler
    async def test(self, request: SendTestAlert) -> Details:
        """What became of test messages to the receivers."""
        deliveries = await self._alerts.test(request.receiver, self._reactor.now())
        accepted = sum(each["accepted"] for each in deliveries)
        failed = len(deliveries) - accepted
        return details(AlertDeliveries(accepted=accepted, failed=failed, deliveries=deliveries))

    @handler
    async def listed(self, _: GetAlerts) -> Listed:
        """The alerts that fire, those that are pending, and the last that were resolved."""
        return listed(self._alerts.rows())
