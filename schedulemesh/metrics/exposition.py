"""The Prometheus text format, version 0.0.4, written in pieces.

With thousands of pools and agents the whole text takes a fraction of a second, in which nothing else could
be decided. So the writer pauses for ``PAUSE_S`` whenever it has worked for ``PIECE_S``. It has to be a real
pause: the journal's thread needs the interpreter several times for each commit, and would get it from a loop
that is always busy only after the switch interval of 5 ms each time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Iterator

from schedulemesh.metrics.catalogue import Kind, Metric
from schedulemesh.metrics.values import Distribution, Family, Sample

#: The media type of the text.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Seconds of work between two pauses, and of a pause.
PIECE_S, PAUSE_S = 0.5e-3, 1e-3
#: Lines between two looks at the clock.
_LINES = 16
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


async def written(families: Iterable[Family]) -> str:
    """The text; other work gets its turn while it is written."""
    parts: list[str] = []
    until = time.perf_counter() + PIECE_S
    for number, line in enumerate(lines(families)):
        if line:
            parts.append(line)
        if number % _LINES == 0 and time.perf_counter() > until:
            await asyncio.sleep(PAUSE_S)
            until = time.perf_counter() + PIECE_S
    return "".join(parts)


def lines(families: Iterable[Family]) -> Iterator[str]:
    """The lines of the text, those of one metric together; an empty one is a place to pause."""
    for metric, samples in families:
        head = f"# HELP {metric.name} {_help(metric)}\n# TYPE {metric.name} {metric.kind.value}\n"
        for sample in samples:
            if sample is None:
                yield ""
                continue
            if head:
                yield head
                head = ""
            if metric.kind is Kind.HISTOGRAM:
                yield from _histogram(metric, sample)
            else:
                yield f"{metric.name}{_labels(metric, sample)} {_number(sample.value)}\n"


def _histogram(metric: Metric, sample: Sample) -> Iterator[str]:
    value, name = sample.value, metric.name
    if not isinstance(value, Distribution):
        raise TypeError(f"{name} is a histogram, and {value!r} is none")
    own = "".join(f"{pair}," for pair in _pairs(metric, sample))
    below = 0
    for bound, count in zip((*metric.buckets, math.inf), value.counts, strict=True):
        below += count
        yield f'{name}_bucket{{{own}le="{_number(bound)}"}} {below}\n'
    labels = _labels(metric, sample)
    yield f"{name}_sum{labels} {_number(value.sum)}\n"
    yield f"{name}_count{labels} {below}\n"


def _labels(metric: Metric, sample: Sample) -> str:
    return f"{{{','.join(_pairs(metric, sample))}}}" if sample.labels else ""


def _pairs(metric: Metric, sample: Sample) -> list[str]:
    return [
        f'{name}="{value.translate(_ESCAPED)}"'
        for name, value in zip(metric.labels, sample.labels, strict=True)
    ]


def _number(value: float | Distribution) -> str:
    if isinstance(value, Distribution):
        raise TypeError("a distribution is written as a histogram")
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _help(metric: Metric) -> str:
    return metric.help.replace("\\", r"\\").replace("\n", r"\n")
