"""A job of a trace: what was submitted when, and how long it runs."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.arrays import parse_array
from schedulemesh.domain.dependencies import parse_after
from schedulemesh.domain.names import as_text
from schedulemesh.domain.node_labels import parse_node_labels
from schedulemesh.domain.numbers import (
    MAX_COUNT,
    MAX_DURATION_S,
    MAX_PRIORITY,
    parse_duration,
    parse_number,
    parse_timeout,
)
from schedulemesh.domain.topology import parse_topology
from schedulemesh.errors import InvalidRequestError, shown

#: The least and the most that each number of a job may be.
LIMITS = {
    "submit_s": (0.0, MAX_DURATION_S),
    "duration_s": (0.0, MAX_DURATION_S),
    "gpus": (0.0, float(MAX_COUNT)),
    "cpus": (0.0, float(MAX_COUNT)),
    "memory_gb": (0.0, float(MAX_COUNT)),
    "priority": (-MAX_PRIORITY, MAX_PRIORITY),
}


class JobAlternative(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Another way in which a job may run; None: with as much as it asks for itself."""

    #: The labels that its nodes must have.
    node_labels: dict[str, str] = {}
    gpus: float | None = None
    cpus: float | None = None
    memory_gb: float | None = None

    def __post_init__(self) -> None:
        """Check the labels and the ranges."""
        parse_node_labels(self.node_labels, "node_labels")
        for name in ("gpus", "cpus", "memory_gb"):
            if getattr(self, name) is not None:
                parse_number(getattr(self, name), name, *LIMITS[name])


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One submission. Times are in seconds from the start of the trace. Raises InvalidRequestError for values
    out of range.
    """

    #: No other job of the trace has it.
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
    #: The labels that its nodes must have, with conditions as in Ray's ``label_selector``.
    node_labels: dict[str, str] = {}
    #: What will do instead, the first ones before the others.
    alternatives: tuple[JobAlternative, ...] = ()
    #: What its user believes that it takes, in seconds; None: nothing is known.
    estimate_s: float | None = None
    #: Seconds that each of its attempts may run; None: what its pool says.
    max_run_s: float | None = None
    #: Whether it joins the queue again when it has run for so long; else it ends.
    requeued_at_limit: bool = False
    #: Whether an eviction saves its state; otherwise its work is lost.
    savable: bool = True
    #: Seconds of work after which its run fails, once each.
    fails_at_s: tuple[float, ...] = ()
    #: The jobs that it starts after, submitted before it, each as ``ok:ID``, ``any:ID`` or ``fail:ID``.
    after: tuple[str, ...] = ()
    #: Of an array of such jobs: their indices, as ``0-99%10``; each is ``ID[INDEX]``, and as long.
    array: str = ""
    #: How close together its parts are placed where it is larger than every node; see ``topology``.
    topology: str = ""

    def __post_init__(self) -> None:
        """Check the id and the ranges."""
        if not as_text(self.job_id):
            raise InvalidRequestError(f"job_id must be a text, not {shown(self.job_id)}")
        parse_node_labels(self.node_labels, "node_labels")
        if self.after:
            parse_after(self.after)
        if self.array:
            parse_array(self.array)
        if self.topology:
            parse_topology(self.topology)
        for name, (least, most) in LIMITS.items():
            parse_number(getattr(self, name), name, least, most)
        if self.estimate_s is not None:
            parse_duration(self.estimate_s, "estimate_s")
        if self.max_run_s is not None:
            parse_timeout(self.max_run_s, "max_run_s")
        for seconds in self.fails_at_s:
            parse_duration(seconds, "each of fails_at_s")
