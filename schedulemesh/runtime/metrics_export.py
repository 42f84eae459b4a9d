"""Exports metrics of pools to the cluster's own exporter, every few seconds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics import gauges
from schedulemesh.metrics.catalogue import Kind
from schedulemesh.metrics.values import Distribution, Family
from schedulemesh.runtime.backend import Backend
from schedulemesh.runtime.running import Running

logger = logging.getLogger(__name__)

#: What is exported beside the observations of the documented histograms. The cluster's exporter is made for
#: few series, so agents and nodes are left out.
EXPORTED = (
    c.PREEMPTIONS,
    c.SUBMISSIONS,
    c.SUCCESS,
    c.QUEUE_DEPTH,
    c.QUEUE_OLDEST,
    c.TASKS,
    c.ENDED,
    c.THROUGHPUT,
    c.POOL_QUOTA,
    c.POOL_USED,
)
#: Seconds between two exports.
EVERY_S = 5.0
#: Values that are exported before other work gets its turn.
_AT_ONCE = 50


async def export(running: Running) -> None:
    """Export the present values, and what was observed since the last export. Raises BackendError where the
    cluster takes no metrics.
    """
    backend, recorder = running.backend, running.recorder
    running.reactor.observers.catch_up()
    for metric, labels, value in recorder.observed():
        backend.export_metric(metric, labels, value)
    families = [*gauges.families(running.reactor.state), *recorder.families()]
    for number, done in enumerate(_exported(backend, families), 1):
        if done and not number % _AT_ONCE:
            await asyncio.sleep(0)


def _exported(backend: Backend, families: list[Family]) -> Iterator[bool]:
    for metric, samples in families:
        if metric not in EXPORTED or metric.kind is Kind.HISTOGRAM:
            continue
        for sample in samples:
            if sample is not None and not isinstance(sample.value, Distribution):
                backend.export_metric(metric, sample.labels, sample.value)
            yield True
