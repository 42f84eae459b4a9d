"""Evictions that no client is told about, because they were made for tasks that came from the queue.

What a submission evicts is in its answer. A task that waits evicts others when its turn comes, and only the
history says which. So these evictions, and the returns of their victims, are taken from there into the log of
acknowledgements, after a check that each was allowed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tests.drills.acknowledged import Log

#: By how much the priority of a task is above those of its victims at least: in another pool, and in its own.
#: The clients set the second to something above that.
CROSS_POOL, SAME_POOL = 5.0, 1.0
#: Events of attempts that began in the queue.
_QUEUED = frozenset(("queued", "requeued"))

_Attempt = dict[str, Any]


class QueueEvictions:
    """Writes evictions for tasks from the queue, and what came back after them, to the log."""

    def __init__(self, log: Log, queue_pool: str) -> None:
        self.log = log
        #: All tasks of this pool come from the queue, and are not in the log.
        self.queue_pool = queue_pool
        #: The numbers of the attempts whose evictions, and whose returns, are in the log.
        self._evicted: set[int] = set()
        self._returned: set[int] = set()

    def write(self, attempts: Iterable[_Attempt]) -> list[str]:
        """Append what the history has of them and the log has not; what is wrong with them."""
        by_task = defaultdict(list)
        for attempt in sorted(attempts, key=lambda attempt: attempt["cursor"]):
            by_task[attempt["task_id"]].append(attempt)
        wrong = []
        for of_task in by_task.values():
            for number, attempt in enumerate(of_task):
                evictor = _evictor(attempt, by_task)
                if self._is_untold(attempt, evictor):
                    earlier, later = of_task[:number], of_task[number + 1 :]
                    self._write_eviction(attempt, earlier)
                    wrong += self._write_return(attempt, evictor, later)
                    wrong += _disallowed(attempt, evictor)
        return wrong

    def _is_untold(self, attempt: _Attempt, evictor: _Attempt | None) -> bool:
        """Whether a client's task was evicted for one from the queue."""
        if attempt["state"] != "preempted" or attempt["pool_name"] == self.queue_pool:
            return False
        return attempt["by_pool"] == self.queue_pool or (
            evictor is not None and not _QUEUED.isdisjoint(_kinds(evictor))
        )

    def _write_eviction(self, attempt: _Attempt, earlier: list[_Attempt]) -> None:
        task_id = attempt["task_id"]
        if attempt["cursor"] in self._evicted:
            return
        self._evicted.add(attempt["cursor"])
        if any(each["state"] == "preempted" for each in earlier):
            # It was evicted again, so it had returned.
            self.log.write_returned({task_id})
        self.log.write("evicted", task=task_id, by=attempt["by_task"])

    def _write_return(
        self, attempt: _Attempt, evictor: _Attempt | None, later: list[_Attempt]
    ) -> list[str]:
        """A victim returns if the start fails for which it was evicted, and not otherwise."""
        task_id = attempt["task_id"]
        if attempt["cursor"] in self._returned or not any(each["started_at"] for each in later):
            return []
        if evictor is not None and evictor["started_at"] is not None:
            return [
                f"{task_id} runs again, and {evictor['task_id']}, which evicted it, has started"
            ]
        self._returned.add(attempt["cursor"])
        self.log.write("restarted", task=task_id)
        return []


def _evictor(attempt: _Attempt, by_task: dict[str, list[_Attempt]]) -> _Attempt | None:
    """The attempt for which another one was evicted: it was admitted at that moment."""
    evictors = by_task.get(attempt["by_task"], ()) if attempt["by_task"] else ()
    at = attempt["evicted_at"]
    return next((each for each in evictors if at is not None and each["admitted_at"] == at), None)


def _kinds(attempt: _Attempt) -> set[str]:
    return {event["kind"] for event in attempt["events"]}


def _disallowed(attempt: _Attempt, evictor: _Attempt | None) -> list[str]:
    """An eviction for a task whose priority is too low for it."""
    if evictor is None:
        return [f"{attempt['task_id']} was evicted for no attempt on record: {attempt}"]
    is_own = evictor["pool_name"] == attempt["pool_name"]
    delta = evictor["priority"] - attempt["priority"]
    if delta >= (SAME_POOL if is_own else CROSS_POOL):
        return []
    return [f"{attempt['task_id']} was evicted for {evictor['task_id']}, only {delta:g} above it"]
