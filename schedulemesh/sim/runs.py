"""What happens to one job in a simulation: how long it waits, and how much of its work is done or lost."""

from __future__ import annotations

from schedulemesh.domain.resources import Resources
from schedulemesh.sim.jobs import Job
from schedulemesh.sim.usage import PoolUsage

#: The states in which a job holds its resources and does not work.
_IDLE = frozenset(("starting", "saving", "failed", "ended"))


class Run:
    """One job from its submission to its end. Times are those of the virtual clock."""

    __slots__ = (
        "_done_s",
        "_failures",
        "_pool",
        "_since",
        "_state",
        "_unsaved_s",
        "array",
        "ended_at",
        "error",
        "first_start",
        "incarnation",
        "is_cut_short",
        "job",
        "lost_s",
        "need",
        "overhead_s",
        "pool_name",
        "preemptions",
        "submitted_at",
        "waited_s",
    )

    def __init__(
        self, job: Job, pool_name: str, pool: PoolUsage, need: Resources, array: Job | None = None
    ) -> None:
        self.job = job
        #: The array of which it is a member; None: it is none's.
        self.array = array
        self.pool_name = pool_name
        self._pool = pool
        #: What it holds while it runs.
        self.need = need
        #: The agent's present incarnation; 0: it has none.
        self.incarnation = 0
        self.submitted_at = 0.0
        self.first_start: float | None = None
        self.ended_at: float | None = None
        #: Why it was refused; empty: it was not.
        self.error = ""
        #: Whether its time limit has ended it.
        self.is_cut_short = False
        self.preemptions = 0
        #: Seconds of work that were done and have to be done again.
        self.lost_s = 0.0
        #: Seconds for which it held its resources without working: starting, saving, restoring, ending.
        self.overhead_s = 0.0
        #: Seconds in which it waited for resources.
        self.waited_s = 0.0
        self._done_s = 0.0
        self._since = 0.0
        self._failures = 0
        #: Of the work done, what is being saved now.
        self._unsaved_s = 0.0
        self._state = "new"

    @property
    def is_running(self) -> bool:
        """Whether it works now."""
        return self._state == "running"

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for resources."""
        return self._state == "waiting"

    def submitted(self, now: float) -> None:
        """It was submitted."""
        self.submitted_at = now
        self._wait(now)

    def refused(self, now: float, error: str) -> None:
        """It was refused, and does not run."""
        self._pool.stop_waiting(self.job.job_id, self.need, now)
        self.error = error
        self._state = "refused"

    def starting(self, now: float, incarnation: int) -> None:
        """Its agent is being started, and holds its resources."""
        self._pool.stop_waiting(self.job.job_id, self.need, now)
        self._pool.hold(self.need, now)
        self.waited_s += now - self._since
        self.incarnation = incarnation
        self._state = "starting"
        self._since = now
        if self.first_start is None:
            self.first_start = now

    def running(self, now: float) -> tuple[float, bool]:
        """It works from now on. Gives the seconds until it ends, and whether it fails then."""
        self.overhead_s += now - self._since
        self._state, self._since = "running", now
        fails = self.job.fails_at_s
        if self._failures < len(fails) and fails[self._failures] < self.job.duration_s:
            return max(0.0, fails[self._failures] - self._done_s), True
        return self.job.duration_s - self._done_s, False

    def stopped(self, now: float, *, saved: bool, by_limit: bool = False) -> None:
        """It is evicted and works no more, for others or by its time limit; what it has done is kept, or
        lost.
        """
        worked = now - self._since
        self.preemptions += not by_limit
        self._unsaved_s = worked if saved else 0.0
        if saved:
            self._done_s += worked
        else:
            self.lost_s += self._done_s + worked
            self._done_s = 0.0
        self._state, self._since = "saving", now

    def saved(self) -> None:
        """Its state is stored: what it has done is kept, whatever becomes of its node."""
        self._unsaved_s = 0.0

    def lost(self, now: float) -> None:
        """Its process has died with its node: what it has done since its last saved state is lost."""
        if self._state == "running":
            self.lost_s += now - self._since
        elif self._state == "saving":
            self.lost_s += self._unsaved_s
            self._done_s -= self._unsaved_s

    def given_up(self, now: float, error: str) -> None:
        """It is not tried again."""
        self._pool.stop_waiting(self.job.job_id, self.need, now)
        self.error = error
        self._state = "given_up"

    def cut_short(self, now: float) -> None:
        """Its time limit has ended it before its work was done."""
        self._pool.stop_waiting(self.job.job_id, self.need, now)
        self.is_cut_short = True
        self._state = "cut_short"

    def end(self, now: float, *, failed: bool) -> None:
        """Its run has ended; one that failed starts again from its last saved state."""
        self._state = "ended"
        if failed:
            self._failures += 1
            self.lost_s += now - self._since
            self._state = "failed"
        else:
            self.ended_at = now
        self._since = now

    def gone(self, now: float) -> None:
        """Its agent is gone, and its resources are free; it waits again unless it has ended."""
        if self._state in _IDLE:
            self.overhead_s += now - self._since
        self.incarnation = 0
        self._pool.free(self.need, now)
        if self._state != "ended":
            self._wait(now)

    def _wait(self, now: float) -> None:
        self._state, self._since = "waiting", now
        self._pool.wait(self.job.job_id, self.need, now)

    # results

    @property
    def queue_s(self) -> float:
        """Seconds from its submission to its first start."""
        return 0.0 if self.first_start is None else self.first_start - self.submitted_at

    @property
    def jct_s(self) -> float:
        """Seconds from its submission to its end."""
        return 0.0 if self.ended_at is None else self.ended_at - self.submitted_at

    @property
    def delay_s(self) -> float:
        """What it took beyond its duration: waiting, saving, restoring, and work that was done again."""
        return self.jct_s - self.job.duration_s
