"""A job of a trace: what was submitted when, and how long it runs."""

from __future__ import annotations

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One submission. Times are in seconds from the start of the trace."""

    job_id: str
    submit_s: float
    #: Seconds of work, whatever the number of attempts.
    duration_s: float
    gpus: float = 0.0
    cpus: float = 0.0
    memory_gb: float = 0.0
    user: str = ""
    #: The pool that it is submitted to, where the policy declares pools: the virtual cluster of the trace.
    pool: str = ""
    priority: float = 5.0
    labels: dict[str, str] = {}
    #: What its user believes that it takes, in seconds; None: nothing is known.
    estimate_s: float | None = None
    #: Whether an eviction saves its state; otherwise its work is lost.
    savable: bool = True
    #: Seconds of work after which its run fails, once each.
    fails_at_s: tuple[float, ...] = ()
