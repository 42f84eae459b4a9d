"""What the pools of a simulation use and lack over time."""

from __future__ import annotations


class PoolUsage:
    """The units (10,000 of a GPU) that the jobs of one pool hold and wait for, and how long the pool lacks
    its guarantee.

    A waiting job lacks the guarantee while the pool's jobs hold so little that it fits into the pool's own
    quota as well. That counts from ``allowance_s`` later on, because a borrower has to be saved before the
    owner gets back what it has lent.
    """

    __slots__ = (
        "_allowance_s",
        "_entitled",
        "_last",
        "_waiting",
        "_waiting_count",
        "held",
        "held_series",
        "quota",
        "short_s",
        "waiting_series",
    )

    def __init__(self, quota: int, allowance_s: float, begin: float) -> None:
        self._allowance_s = allowance_s
        #: Units of its quota.
        self.quota = quota
        self.held = 0
        #: By the units that they need: the jobs that wait, with the time since when, oldest first.
        self._waiting: dict[int, dict[str, float]] = {}
        self._waiting_count = 0
        #: By need: since when a waiting job of this size fits into the guarantee.
        self._entitled: dict[int, float] = {}
        self._last = begin
        #: Seconds in which it lacked its guarantee.
        self.short_s = 0.0
        #: (time, units held) after each change.
        self.held_series: list[tuple[float, int]] = [(begin, 0)]
        #: (time, number of jobs that wait) after each change.
        self.waiting_series: list[tuple[float, int]] = [(begin, 0)]

    def wait(self, job_id: str, units: int, now: float) -> None:
        """A job waits from now on."""
        self._advance(now)
        self._waiting.setdefault(units, {})[job_id] = now
        self._count_waiting(1, now)
        self._entitle(now)

    def stop_waiting(self, job_id: str, units: int, now: float) -> None:
        """A job waits no more."""
        self._advance(now)
        waiting = self._waiting[units]
        del waiting[job_id]
        if not waiting:
            del self._waiting[units]
        self._count_waiting(-1, now)
        self._entitle(now)

    def hold(self, units: int, now: float) -> None:
        """The pool's jobs hold so many units more, or fewer."""
        self._advance(now)
        self.held += units
        self.held_series.append((now, self.held))
        self._entitle(now)

    def _count_waiting(self, change: int, now: float) -> None:
        self._waiting_count += change
        self.waiting_series.append((now, self._waiting_count))

    def _advance(self, now: float) -> None:
        """Count the time since the last change."""
        if self._entitled and now > self._last:
            since = min(
                max(since, next(iter(self._waiting[units].values())))
                for units, since in self._entitled.items()
            )
            begin = max(self._last, since + self._allowance_s)
            self.short_s += max(0.0, now - begin)
        self._last = now

    def _entitle(self, now: float) -> None:
        """Note which sizes fit into the guarantee from now on, and which no longer."""
        if not self._waiting:
            self._entitled.clear()
            return
        room = self.quota - self.held
        before = self._entitled
        self._entitled = {u: before.get(u, now) for u in self._waiting if u <= room}
