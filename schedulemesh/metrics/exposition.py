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
from functools import cache

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
        histogram, line = metric.kind is Kind.HISTOGRAM, _line(metric.name, metric.labels)
        for sample in samples:
            if sample is None:
                yield ""
                continue
            if head:
                yield head
                head = ""
            if histogram:
                yield from _histogram(metric, sample)
            else:
                yield line % (*map(_escaped, sample.labels), _number(sample.value))


def _histogram(metric: Metric, sample: Sample) -> Iterator[str]:
    value, name = sample.value, metric.name
    if not isinstance(value, Distribution):
        raise TypeError(f"{name} is a histogram, and {value!r} is none")
    labels = tuple(map(_escaped, sample.labels))
    bucket = _line(f"{name}_bucket", (*metric.labels, "le"))
    below = 0
    for bound, count in zip(_bounds(metric.buckets), value.counts, strict=True):
        below += count
        yield bucket % (*labels, bound, below)
    yield _line(f"{name}_sum", metric.labels) % (*labels, _number(value.sum))
    yield _line(f"{name}_count", metric.labels) % (*labels, below)


@cache
def _line(name: str, labels: tuple[str, ...]) -> str:
    """A line whose values of labels, and whose value, are still to be filled in."""
    pairs = ",".join(f'{label}="%s"' for label in labels)
    return f"{name}{{{pairs}}} %s\n" if pairs else f"{name} %s\n"


@cache
def _bounds(buckets: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(map(_number, (*buckets, math.inf)))


def _escaped(value: str) -> str:
    """The value of a label; few need to be changed."""
    if '"' in value or "\\" in value or "\n" in value:
        return value.translate(_ESCAPED)
    return value


def _number(value: float | Distribution) -> str:
    if isinstance(value, Distribution):
        raise TypeError("a distribution is written as a histogram")
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    truncated = int(value)
    return str(truncated) if truncated == value and abs(truncated) < 10**15 else repr(value)


def _help(metric: Metric) -> str:
    return metric.help.replace("\\", r"\\").replace("\n", r"\n")
