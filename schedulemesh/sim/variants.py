"""Variants of a trace: the same jobs at another load, or of which only a part can be saved."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from schedulemesh.domain.numbers import parse_number
from schedulemesh.sim.jobs import Job

_LEAST_LOAD, _MOST_LOAD = 0.001, 1e6


def with_load(jobs: Sequence[Job], factor: float) -> list[Job]:
    """The jobs submitted so many times as fast: with 2.0 each one comes in half the time. Durations stay.

    Raises InvalidRequestError for a factor below 0.001 or above 1e6, and where submissions would be too late.
    """
    factor = parse_number(factor, "the load", _LEAST_LOAD, _MOST_LOAD)
    return [msgspec.structs.replace(job, submit_s=job.submit_s / factor) for job in jobs]


def with_savable(jobs: Sequence[Job], share: float) -> list[Job]:
    """The jobs, of which this share saves its state when evicted, spread evenly over the trace: with 0.5
    every other job. What the trace says about them does not matter.

    Raises InvalidRequestError for a share outside of 0 to 1.
    """
    share = parse_number(share, "the savable share", 0.0, 1.0)
    return [
        msgspec.structs.replace(job, savable=math.floor((n + 1) * share) > math.floor(n * share))
        for n, job in enumerate(jobs)
    ]
