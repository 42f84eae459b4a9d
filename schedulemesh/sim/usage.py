"""What the pools of a simulation use and lack over time."""

from __future__ import annotations

from typing import Literal

from schedulemesh.domain.resources import NOTHING, Resources

#: The kind of resource in which figures are: GPUs where there are any, else CPUs.
Kind = Literal["gpu", "cpu"]


def units_of(amount: Resources, kind: Kind) -> int:
    """The units of this kind."""
    return amount.gpu if kind == "gpu" else amount.cpu


class PoolUsage:
    """What the jobs of one pool hold and wait for, and how long the pool lacks its guarantee.

    A waiting job lacks the guarantee while the pool's jobs hold so little that all that it needs fits into
    the pool's own quota as well. That counts from ``allowance_s`` later on, because a borrower has to be
    saved before the owner gets back what it has lent.
    """

    __slots__ = (
        "_allowance_s",
        "_entitled",
        "_last",
        "_waiting",
        "_waiting_count",
        "held",
        "held_series",
        "kind",
        "quota",
        "short_s",
        "waiting_series",
    )

    def __init__(self, quota: Resources, cluster: Kind, allowance_s: float, begin: float) -> None:
        self._allowance_s = allowance_s
        self.quota = quota
        #: In which its figures are: that of the cluster, but CPUs where its quota has only these.
        self.kind: Kind = "cpu" if quota.cpu and not quota.gpu else cluster
        self.held = NOTHING
        #: By what they need: the jobs that wait, with the time since when, oldest first.
        self._waiting: dict[Resources, dict[str, float]] = {}
        self._waiting_count = 0
        #: By need: since when a waiting job that needs this fits into the guarantee.
        self._entitled: dict[Resources, float] = {}
        self._last = begin
        #: Seconds in which it lacked its guarantee.
        self.short_s = 0.0
        #: (time, what is held) after each change.
        self.held_series: list[tuple[float, Resources]] = [(begin, NOTHING)]
        #: (time, number of jobs that wait) after each change.
        self.waiting_series: list[tuple[float, int]] = [(begin, 0)]

    def wait(self, job_id: str, need: Resources, now: float) -> None:
        """A job waits from now on."""
        self._advance(now)
        self._waiting.setdefault(need, {})[job_id] = now
        self._count_waiting(1, now)
        self._entitle(now)

    def stop_waiting(self, job_id: str, need: Resources, now: float) -> None:
        """A job waits no more."""
        self._advance(now)
        waiting = self._waiting[need]
        del waiting[job_id]
        if not waiting:
            del self._waiting[need]
        self._count_waiting(-1, now)
        self._entitle(now)

    def hold(self, amount: Resources, now: float) -> None:
        """The pool's jobs hold so much more."""
        self._set_held(self.held + amount, now)

    def free(self, amount: Resources, now: float) -> None:
        """The pool's jobs hold so much less."""
        self._set_held(self.held - amount, now)

    def _set_held(self, resources: Resources, now: float) -> None:
        self._advance(now)
        self.held = resources
        self.held_series.append((now, resources))
        self._entitle(now)

    def _count_waiting(self, change: int, now: float) -> None:
        self._waiting_count += change
        self.waiting_series.append((now, self._waiting_count))

    def _advance(self, now: float) -> None:
        """Add the time since the last change to ``short_s`` as far as the pool lacked its guarantee in it."""
        if self._entitled and now > self._last:
            begin = max(self._last, self._lacking_since + self._allowance_s)
            self.short_s += max(0.0, now - begin)
        self._last = now

    @property
    def _lacking_since(self) -> float:
        """Since when a job has both waited and fitted into the guarantee: the earliest of the jobs that do
        so now. There must be one.
        """
        return min(
            max(fits_since, next(iter(self._waiting[need].values())))
            for need, fits_since in self._entitled.items()
        )

    def _entitle(self, now: float) -> None:
        """Note which needs fit into the guarantee from now on, and which no longer."""
        if not self._waiting:
            self._entitled.clear()
            return
        room = self.quota - self.held
        cpu, memory, gpu = max(0, room.cpu), max(0, room.memory), max(0, room.gpu)
        before = self._entitled
        # As ``fits``, and faster where all needs differ.
        self._entitled = {
            need: before.get(need, now)
            for need in self._waiting
            if need.gpu <= gpu and need.memory <= memory and need.cpu <= cpu
            if not need.custom or need.fits(room)
        }
