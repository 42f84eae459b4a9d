"""A model of Tiresias as Muri's simulator has it (SIGCOMM'22), and of the rules of our queue, event by event.

With the published rules it gives the published averages. With one rule after the other replaced by ours it
says which part of a difference each rule makes, and in the end what the engine should give: so rules and
simulator are told apart. GPUs count without regard to nodes, and nothing of the engine is used.

The published rules: queues by attained GPU time. At each event all GPUs are dealt out again, queue by queue,
to every job that fits: those that run first, in the order in which they began to run in the queue, then
those that wait, the ones evicted last first, then those that have just reached this queue. The time of a
start is subtracted at each event from the work of all that run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

#: Seconds that the start of each kind of job takes in Muri's simulator, by GPUs.
SIZES = (1, 2, 4, 8, 16, 32)
STARTS_S = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
_NEVER = math.inf
#: Seconds, or GPU-seconds, that are rounding errors.
_NOTHING = 1e-6


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What happens; the published rules where nothing is said."""

    #: The GPU-seconds with which each queue after the first one begins.
    limits_s: tuple[float, ...] = (3250.0, 7200.0)
    #: Whether the time of a start is subtracted at every event, and not only where an evicted job starts.
    charge_each_event: bool = True
    #: Whether a job that reaches a queue gives way to those that wait there.
    gives_way: bool = True
    #: Whether evicted jobs wait before others of their queue; False: all wait in the order of submission.
    evicted_first: bool = True
    #: Whether one victim that is enough comes before several that come before it.
    one_is_enough: bool = False
    #: Whether the time of a start counts as attained service, and a job may be evicted during its start.
    starts_count: bool = True
    #: Whether of the victims those evicted least often come first, then the smallest, and not the last ones.
    smallest_first: bool = False


class Work(msgspec.Struct, kw_only=True):
    """A job of the model."""

    submit_s: float
    gpus: int
    #: Seconds that it still has to run.
    left_s: float
    #: Seconds that its start takes.
    start_s: float
    number: int = 0
    ran_s: float = 0.0
    level: int = 0
    runs: bool = False
    #: Since when it has run in its queue, or waits there.
    since: float = 0.0
    #: What is left of the present start.
    starting_s: float = 0.0
    ends_at: float = _NEVER
    evictions: int = 0
    #: Whether it was evicted in the moment in which it reached its queue.
    put_last: bool = False


class Model:
    """The jobs on so many GPUs."""

    def __init__(self, jobs: Iterable[Work], rules: Rules, gpus: int) -> None:
        self._todo = sorted(jobs, key=lambda job: job.submit_s, reverse=True)
        for number, job in enumerate(reversed(self._todo)):
            job.number = number
        self._rules = rules
        self._gpus = gpus
        self._now = 0.0
        self._live: list[Work] = []
        self._jct_s: list[float] = []

    def mean_jct_s(self) -> float:
        """Run all jobs; seconds from submission to end."""
        while self._todo or self._live:
            self._pass_until(min(self._next_times()))
            while self._todo and self._todo[-1].submit_s <= self._now:
                self._live.append(self._todo.pop())
            if self._rules.one_is_enough:
                self._serve()
            else:
                self._deal()
            for job in self._live:
                job.ends_at = self._now + job.left_s + job.starting_s if job.runs else _NEVER
        return sum(self._jct_s) / len(self._jct_s)

    # time

    def _next_times(self) -> Iterator[float]:
        """When the next job is submitted, each that runs ends, and when it reaches the next queue."""
        yield from (job.submit_s for job in self._todo[-1:])
        for job in self._running():
            yield job.ends_at
            starting_s = 0.0 if self._rules.starts_count else job.starting_s
            if starting_s:
                yield self._now + starting_s
            if job.level < len(self._rules.limits_s):
                whole_s = math.ceil(self._rules.limits_s[job.level] / job.gpus)
                yield self._now + starting_s + whole_s - job.ran_s

    def _pass_until(self, time: float) -> None:
        seconds, self._now = time - self._now, time
        for job in [job for job in self._live if job.ends_at <= time]:
            self._live.remove(job)
            self._jct_s.append(time - job.submit_s)
        for job in self._running():
            self._work(job, seconds)

    def _work(self, job: Work, seconds: float) -> None:
        idle_s = min(job.starting_s, seconds)
        job.starting_s -= idle_s
        job.ran_s += seconds if self._rules.starts_count else seconds - idle_s
        if self._rules.charge_each_event:
            idle_s = min(job.start_s, seconds)
        job.left_s -= seconds - idle_s
        limits_s = self._rules.limits_s
        if job.level < len(limits_s) and job.ran_s * job.gpus >= limits_s[job.level] - _NOTHING:
            job.level, job.since = job.level + 1, self._now

    # who runs

    def _deal(self) -> None:
        """Deal out all GPUs again."""
        free, order = self._gpus, sorted(self._live, key=self._place)
        for job in order:
            fits = job.gpus <= free
            free -= job.gpus if fits else 0
            if fits and not job.runs:
                self._start(job)
            elif job.runs and not fits:
                self._evict(job)

    def _place(self, job: Work) -> tuple[float, ...]:
        """Where a job stands when GPUs are dealt out."""
        new = self._rules.gives_way and job.level and job.since == self._now
        if job.runs:
            return (job.level, 2.0 if new else 0.0, job.since, job.number)
        if not self._rules.evicted_first:
            return (job.level, 1.0, 0.0, job.number)
        return (job.level, 1.0, job.since if job.put_last else -job.since, job.number)

    def _serve(self) -> None:
        """Start what fits, and evict for what does not; as the queue does it."""
        free = self._gpus - sum(job.gpus for job in self._running())
        waiting = [job for job in self._live if not job.runs]
        for job in sorted(waiting, key=lambda job: (job.level, job.number)):
            evicted = self._enough_for(job, free)
            if evicted is None:
                continue
            for victim in evicted:
                self._evict(victim)
                free += victim.gpus
            self._start(job)
            free -= job.gpus

    def _enough_for(self, job: Work, free: int) -> list[Work] | None:
        """Whom to evict for a job; None: it would not fit even so."""
        if job.gpus <= free:
            return []
        others = [other for other in self._running() if self._may_evict(job, other)]
        if free + sum(other.gpus for other in others) < job.gpus:
            return None
        others.sort(key=self._victim_place)
        one = next((other for other in others if other.gpus + free >= job.gpus), None)
        if one is not None:
            return [one]
        taken: list[Work] = []
        for other in others:
            if free < job.gpus:
                taken.append(other)
                free += other.gpus
        for other in taken[::-1]:
            if free - other.gpus >= job.gpus:
                taken.remove(other)
                free -= other.gpus
        return taken

    def _may_evict(self, job: Work, other: Work) -> bool:
        starts = not self._rules.starts_count and other.starting_s > _NOTHING
        return other.level > job.level and not starts

    def _victim_place(self, job: Work) -> Sequence[float]:
        if self._rules.smallest_first:
            return (job.evictions, job.gpus, -job.since)
        return (-job.level, -job.since, -job.number)

    def _running(self) -> list[Work]:
        return [job for job in self._live if job.runs]

    def _start(self, job: Work) -> None:
        job.runs, job.since = True, self._now
        charged = job.ran_s and not self._rules.charge_each_event
        job.starting_s = job.start_s if charged else 0.0

    def _evict(self, job: Work) -> None:
        job.put_last = bool(job.level) and job.since == self._now
        job.runs, job.since = False, self._now
        job.evictions += 1
