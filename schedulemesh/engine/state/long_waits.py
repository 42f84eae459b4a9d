"""The tasks that come first once they have waited for long, by the time since which they wait."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedList

#: The ``front`` of tasks that come first because they have waited for long, behind those that were moved.
PROMOTED = 1


class LongWaits:
    """Tasks that may start and have not been put first yet."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        #: (queued_at, task id).
        self._tasks: SortedList[tuple[float, str]] = SortedList()

    def add(self, queued_at: float, task_id: str) -> None:
        """A task waits."""
        self._tasks.add((queued_at, task_id))

    def discard(self, queued_at: float, task_id: str) -> None:
        """A task waits no more, or comes first already."""
        self._tasks.discard((queued_at, task_id))

    def over(self, limit_s: float, now: float) -> list[str]:
        """The ids of those that have waited for so long, the longest first."""
        task_ids = []
        for queued_at, task_id in self._tasks:
            if queued_at + limit_s > now:
                break
            task_ids.append(task_id)
        return task_ids

    def next_at(self, limit_s: float) -> Iterator[float]:
        """When the next one has waited for so long."""
        yield from (queued_at + limit_s for queued_at, _ in self._tasks[:1])
