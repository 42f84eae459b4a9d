"""An attempt to run a task as spans: one for the attempt, and one below it for each of its phases.

All attempts of a task form one trace. The ids follow from the task and the attempt, so that spans that are
sent again after a restart are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from enum import Enum, auto

import msgspec

#: What an attempt goes through, and the field with the time at which it begins.
_PHASES = (
    ("queued", "queued_at"),
    ("starting", "admitted_at"),
    ("running", "started_at"),
    ("preempting", "evicted_at"),
)
#: Fields of an attempt that are attributes of its span, where they say something.
_ATTRIBUTES = (
    "task_id",
    "attempt",
    "agent_name",
    "pool_name",
    "owner",
    "priority",
    "gpu",
    "cpu",
    "memory_mb",
    "state",
    "reason",
    "rule",
    "by_task",
    "by_pool",
    "lost_s",
)
#: Ends that are errors of the attempt.
_FAILED = ("failed", "lost")


class Reception(Enum):
    """What became of spans that were sent."""

    TAKEN = auto()
    #: The collector cannot be reached, or takes none for now: they are sent again.
    MISSED = auto()
    #: The collector does not take these spans, however often they are sent.
    REFUSED = auto()


class AttemptSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span, in the terms of OpenTelemetry; times are seconds since 1970."""

    name: str
    trace_id: int
    span_id: int
    #: None: it is the span of an attempt.
    parent_id: int | None = None
    start: float
    end: float
    attributes: dict[str, str | int | float] = {}
    #: What went wrong; empty: nothing.
    error: str = ""


def spans_of(attempt: Mapping[str, object], scheduler: str) -> list[AttemptSpan]:
    """The spans of an attempt that has ended, as the history answers it. ``scheduler``: its namespace and
    name.
    """
    phases = list(_phases(attempt))
    if not phases:
        return []
    trace_id = _id(16, scheduler, attempt["task_id"], attempt["submitted_at"])
    span_id = _id(8, scheduler, attempt["task_id"], attempt["cursor"])
    failed = attempt["state"] in _FAILED
    attempt_span = AttemptSpan(
        name=str(attempt["task_id"]),
        trace_id=trace_id,
        span_id=span_id,
        start=phases[0][1],
        end=phases[-1][2],
        attributes=_attributes(attempt),
        error=str(attempt["error"] or attempt["reason"] or attempt["state"]) if failed else "",
    )
    phase_spans = [
        AttemptSpan(
            name=name,
            trace_id=trace_id,
            span_id=_id(8, span_id, name),
            parent_id=span_id,
            start=start,
            end=end,
        )
        for name, start, end in phases
    ]
    return [attempt_span, *phase_spans]


def _phases(attempt: Mapping[str, object]) -> Iterator[tuple[str, float, float]]:
    """The phases that the attempt went through: name, begin and end."""
    begins = [(name, at) for name, field in _PHASES if isinstance(at := attempt[field], float)]
    ended_at = attempt["ended_at"]
    ends = [*(at for _, at in begins[1:]), ended_at if isinstance(ended_at, float) else 0.0]
    for (name, begin), end in zip(begins, ends, strict=False):
        yield name, begin, max(begin, end)


def _attributes(attempt: Mapping[str, object]) -> dict[str, str | int | float]:
    values = {f"schedulemesh.{name}": attempt[name] for name in _ATTRIBUTES}
    labels = attempt["labels"]
    if isinstance(labels, Mapping):
        values.update({f"schedulemesh.label.{key}": value for key, value in labels.items()})
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, (str, int, float)) and value != ""
    }


def _id(size: int, *parts: object) -> int:
    """A number of so many bytes that follows from these parts, and is not 0."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:size], "big") | 1
