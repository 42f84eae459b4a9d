"""Collects the samples that alert rules read, from the families of which the exposition is written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable

from schedulemesh.metrics.alert_conditions import LabelSet, Samples
from schedulemesh.metrics.catalogue import Metric
from schedulemesh.metrics.exposition import PAUSE_S, PIECE_S
from schedulemesh.metrics.values import Distribution, Family, Labels


async def collected(families: Iterable[Family], names: Collection[str]) -> Samples:
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
