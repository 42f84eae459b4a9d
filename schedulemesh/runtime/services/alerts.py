"""Evaluates the alert rules at intervals, and answers requests for alerts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable

from schedulemesh.api.metrics import AlertDeliveries, GetAlerts, SendTestAlert
from schedulemesh.metrics.alert_conditions import LabelSet, Samples
from schedulemesh.metrics.catalogue import Metric
from schedulemesh.metrics.exposition import PAUSE_S, PIECE_S
from schedulemesh.metrics.values import Distribution, Family, Labels
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
            samples = await collect_samples(self._metrics.families(seen.state), metric_names)
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


async def collect_samples(families: Iterable[Family], names: Collection[str]) -> Samples:
    """The samples of the wanted metrics; others are not computed. Other work gets its turn meanwhile."""
    by_metric: dict[str, dict[LabelSet, float]] = {}
    until = time.perf_counter() + PIECE_S
    for metric, samples in families:
        if metric.name not in names:
            continue
        values = by_metric.setdefault(metric.name, {})
        for sample in samples:
            if sample is not None and not isinstance(sample.value, Distribution):
                values[_label_set(metric, sample.labels)] = sample.value
            if time.perf_counter() > until:
                await asyncio.sleep(PAUSE_S)
                until = time.perf_counter() + PIECE_S
    return by_metric


def _label_set(metric: Metric, values: Labels) -> LabelSet:
    return tuple(sorted(zip(metric.labels, values, strict=True)))
