"""Metrics on Ray's own exporter, through ``ray.util.metrics``."""

from __future__ import annotations

from typing import Union

from ray.util import metrics as ray_metrics

from schedulemesh.metrics.catalogue import Kind, Metric

#: Ray adds "ray_" to every name, and "_total" to those of counters; so totals are exported as gauges.
AnyRayMetric = Union[ray_metrics.Gauge, ray_metrics.Histogram]


class RayMetrics:
    """The metrics of this process at Ray, created when they are first used."""

    def __init__(self) -> None:
        self._known: dict[str, AnyRayMetric] = {}

    def record(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """Observe a value of a histogram, or set the present value of another metric."""
        ray_metric = self._known.get(metric.name)
        if ray_metric is None:
            ray_metric = self._known[metric.name] = _create_metric(metric)
        tags = dict(zip(metric.labels, map(ascii_label, labels), strict=True))
        if metric.kind is Kind.HISTOGRAM:
            ray_metric.observe(value, tags)
        else:
            ray_metric.set(value, tags)


def ascii_label(value: str) -> str:
    """A label value as Ray takes it: characters outside ASCII are escaped, an empty value is a dash."""
    return value.encode("ascii", "backslashreplace").decode("ascii") or "-"


def _create_metric(metric: Metric) -> AnyRayMetric:
    if metric.kind is Kind.HISTOGRAM:
        return ray_metrics.Histogram(
            metric.name, metric.help, boundaries=list(metric.buckets), tag_keys=metric.labels
        )
    return ray_metrics.Gauge(metric.name, metric.help, tag_keys=metric.labels)
