"""Which tasks in the queue start after which others, and what of that has changed."""

from __future__ import annotations

from collections.abc import Iterable

from schedulemesh.domain.arrays import Indices, members_named
from schedulemesh.domain.dependencies import dependency
from schedulemesh.domain.task import EndState


class Dependents:
    """The tasks that start after others which have not ended."""

    def __init__(self) -> None:
        #: The ids of those that start after a task, by the id of that task.
        self.by_task: dict[str, dict[str, None]] = {}
        #: How tasks of ``by_task`` have ended in this step, for good unless they join the queue again in it.
        self.ended: dict[str, EndState] = {}
        #: Tasks that can never start, and are cancelled next.
        self.broken: dict[str, None] = {}

    def add(self, task_id: str, waits_for: Iterable[str], *, broken: bool) -> None:
        """Add a task that waits for others, or is to be cancelled because one of them has ended otherwise."""
        for text in waits_for:
            self.by_task.setdefault(dependency(text).task_id, {})[task_id] = None
        if broken:
            self.broken[task_id] = None

    def remove(self, task_id: str, waits_for: Iterable[str]) -> None:
        """Remove a task that waits no more."""
        self.broken.pop(task_id, None)
        for text in waits_for:
            awaited_id = dependency(text).task_id
            others = self.by_task[awaited_id]
            del others[task_id]
            if not others:
                del self.by_task[awaited_id]
                self.ended.pop(awaited_id, None)

    def note_end(self, task_id: str, state: EndState) -> None:
        """A task has ended, and may still join the queue again."""
        if task_id in self.by_task:
            self.ended[task_id] = state

    def note_members_end(self, array_id: str, indices: Indices, state: EndState) -> None:
        """Members of an array have ended that were no tasks yet."""
        for task_id in self.by_task:
            named = members_named(task_id)
            if named is not None and named[0] == array_id and int(named[1]) in indices:
                self.ended[task_id] = state

    def pop(self, task_id: str) -> list[str]:
        """The ids of those that start after a task that has ended; they wait for it no more."""
        self.ended.pop(task_id, None)
        return list(self.by_task.pop(task_id))
