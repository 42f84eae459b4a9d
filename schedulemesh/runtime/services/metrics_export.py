"""Exports metrics to the cluster's own exporter, every few seconds.

Everything that an alert rule or a panel of the dashboard asks for is there, so that they work with that
exporter alone. It is made for few series: nodes are summed up, and of agents only those without contact are
exported.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics.alert_rules import RULES
from schedulemesh.metrics.catalogue import Kind, Metric
from schedulemesh.metrics.dashboard import metric_names
from schedulemesh.metrics.values import Distribution, Family, Labels, Sample
from schedulemesh.runtime.backend import Backend
from schedulemesh.runtime.services.running import RunningSupervisor

#: What is exported whatever rules and panels ask for.
_ALWAYS = (
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
    c.EPOCH,
)
#: The names of all that is exported.
EXPORTED = frozenset(
    {metric.name for metric in _ALWAYS}.union(
        *(rule.condition.expression.metrics for rule in RULES.values()),
        (
            name
            for name, metric in c.CATALOGUE.items()
            if metric_names() & {name, f"{name}_bucket", f"{name}_count"}
        ),
    )
)
#: Histograms whose observations are exported one by one.
_OBSERVED = (c.PREEMPTION_MS, c.SCHEDULE_MS)
#: Metrics of single nodes; the cluster's sum is exported in their place, as that of this node.
_SUMMED, _ALL_NODES = (c.NODE_TOTAL, c.NODE_FREE, c.NODE_EXTERNAL), "all"
#: Agents whose last contact is longer ago than so many seconds are exported, the first so many.
_SILENT_S, _MOST_AGENTS = 120.0, 100
#: Combinations of labels of one histogram that are exported.
_MOST_HISTOGRAMS = 100
#: Seconds between two exports.
EVERY_S = 5.0
#: Values that are exported before other work gets its turn.
_AT_ONCE = 50

#: A value of a metric for these values of its labels.
_Exported = tuple[Metric, Labels, float]


class MetricsExport:
    """Exports the present values of all metrics, and what was observed since the last export."""

    def __init__(
        self, running: RunningSupervisor, families: Callable[[], Iterable[Family]]
    ) -> None:
        self._running, self._families = running, families
        #: The series of the last export: what has ended since would keep its last value for ever.
        self._series: set[tuple[str, Labels]] = set()

    async def export(self) -> None:
        """Export once. Raises BackendError where the cluster takes no metrics."""
        backend, recorder = self._running.backend, self._running.recorder
        self._running.reactor.observers.catch_up()
        for metric, labels, value in recorder.observed():
            backend.export_metric(metric, labels, value)
        ended, self._series = self._series, set()
        metrics: dict[str, Metric] = {}
        for number, (metric, labels, value) in enumerate(_values(self._families()), 1):
            metrics[metric.name] = metric
            self._series.add((metric.name, labels))
            backend.export_metric(metric, labels, value)
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        self._end(backend, ended - self._series, metrics)

    def _end(
        self, backend: Backend, ended: Iterable[tuple[str, Labels]], metrics: dict[str, Metric]
    ) -> None:
        """Give series that have ended no value."""
        for name, labels in ended:
            if (metric := metrics.get(name) or c.CATALOGUE.get(name)) is not None:
                backend.export_metric(metric, labels, math.nan)


def _values(families: Iterable[Family]) -> Iterator[_Exported]:
    """What is exported of the families."""
    for metric, samples in families:
        if metric.name not in EXPORTED or metric in _OBSERVED:
            continue
        present = (sample for sample in samples if sample is not None)
        if metric.kind is Kind.HISTOGRAM:
            for sample in islice(present, _MOST_HISTOGRAMS):
                yield from _buckets(metric, sample)
        elif metric in _SUMMED:
            yield from _summed(metric, present)
        elif metric is c.HEARTBEAT:
            yield from _silent(present)
        else:
            yield from ((metric, sample.labels, _number(sample)) for sample in present)


def _number(sample: Sample) -> float:
    if isinstance(sample.value, Distribution):
        raise TypeError("a distribution is no number")
    return sample.value


def _buckets(metric: Metric, sample: Sample) -> Iterator[_Exported]:
    """The lines of a histogram, each as a gauge: the cluster's histograms only take observations."""
    value = sample.value
    if not isinstance(value, Distribution):
        raise TypeError(f"{metric.name} is a histogram, and {value!r} is none")
    bucket = _gauge(metric, "bucket", (*metric.labels, "le"))
    below = 0
    for bound, count in zip((*metric.buckets, math.inf), value.counts, strict=True):
        below += count
        spelled = "+Inf" if bound == math.inf else f"{bound:g}"
        yield bucket, (*sample.labels, spelled), below
    yield _gauge(metric, "sum", metric.labels), sample.labels, value.sum
    yield _gauge(metric, "count", metric.labels), sample.labels, below


def _gauge(metric: Metric, line: str, labels: tuple[str, ...]) -> Metric:
    return msgspec.structs.replace(
        metric, name=f"{metric.name}_{line}", kind=Kind.GAUGE, labels=labels, buckets=()
    )


def _summed(metric: Metric, samples: Iterable[Sample]) -> Iterator[_Exported]:
    """The sums over all nodes."""
    sums: dict[str, float] = {}
    for sample in samples:
        _, resource = sample.labels
        sums[resource] = sums.get(resource, 0.0) + _number(sample)
    yield from ((metric, (_ALL_NODES, resource), value) for resource, value in sums.items())


def _silent(samples: Iterable[Sample]) -> Iterator[_Exported]:
    """The agents without contact, the longest first."""
    silent = [sample for sample in samples if _number(sample) >= _SILENT_S]
    silent.sort(key=_number, reverse=True)
    for sample in silent[:_MOST_AGENTS]:
        yield c.HEARTBEAT, sample.labels, _number(sample)
