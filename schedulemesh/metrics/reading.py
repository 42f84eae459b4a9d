"""Reads an exposition of this package back into values."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from schedulemesh.metrics.catalogue import CATALOGUE, Kind


def samples_in(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each sample. Of a histogram: the mean, where anything was observed."""
    for family in text_string_to_metric_families(text):
        # The parser removes "_total" from the names of counters.
        name = family.name if family.name in CATALOGUE else f"{family.name}_total"
        if CATALOGUE[name].kind is not Kind.HISTOGRAM:
            for sample in family.samples:
                yield name, dict(sample.labels), sample.value
            continue
        sums = {_key(s.labels): s.value for s in family.samples if s.name.endswith("_sum")}
        for sample in family.samples:
            if sample.name.endswith("_count") and sample.value:
                mean = sums[_key(sample.labels)] / sample.value
                yield name, dict(sample.labels), mean


def times_in(text: str) -> dict[str, tuple[float, float]]:
    """Of each histogram the sum and the number of all that was observed, whatever its labels."""
    times = {}
    for family in text_string_to_metric_families(text):
        parts = {
            end: sum(s.value for s in family.samples if s.name == f"{family.name}_{end}")
            for end in ("sum", "count")
        }
        if parts["count"]:
            times[str(family.name)] = (parts["sum"], parts["count"])
    return times


def _key(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))
