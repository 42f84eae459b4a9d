"""What a task starts after: other tasks, and how each of them has to end.

A dependency is written as ``ok:ID``, ``any:ID`` or ``fail:ID``; an ID alone stands for ``ok:ID``.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.errors import InvalidRequestError, shown

#: How a task has to end for those that start after it, each with what that says of the task.
CONDITIONS = {"ok": "completed", "any": "ended", "fail": "failed or been cancelled"}
#: On how many tasks one task may depend.
MAX_DEPENDENCIES = 1_000

#: The state of a task whose run or caller has completed it.
_COMPLETED = "completed"


class Dependency(msgspec.Struct, frozen=True, gc=False):
    """A task that another one starts after."""

    condition: str
    task_id: str

    @property
    def is_written(self) -> str:
        """The text that stands for it."""
        return f"{self.condition}:{self.task_id}"

    def is_met_by(self, state: str) -> bool:
        """Whether a task that has ended in this state (one of ``EndState``) has ended as it has to."""
        return self.condition == "any" or (self.condition == "ok") == (state == _COMPLETED)


def dependency(text: str) -> Dependency:
    """The dependency that a text stands for."""
    condition, colon, task_id = text.partition(":")
    if colon and condition in CONDITIONS:
        return Dependency(condition, task_id)
    return Dependency("ok", text)


def parse_after(value: object) -> tuple[str, ...]:
    """The dependencies in a text, separated by commas, or in a list of texts; each with its condition.

    Raises InvalidRequestError for what is no task's id, and for a task that has to end in two ways.
    """
    text = as_text(value)
    words: Iterable[object] = (
        text.split(",") if text is not None else as_elements(value, "after", "a list of task ids")
    )
    conditions: dict[str, str] = {}
    for word in words:
        one = _parsed(word)
        if conditions.setdefault(one.task_id, one.condition) != one.condition:
            raise InvalidRequestError(
                f"after names task {shown(one.task_id)} with {conditions[one.task_id]} and with "
                f"{one.condition}; a task ends in one way, so name it once"
            )
    if len(conditions) > MAX_DEPENDENCIES:
        raise InvalidRequestError(
            f"after names {len(conditions):,} tasks; a task starts after up to {MAX_DEPENDENCIES:,} others"
        )
    return tuple(Dependency(how, task_id).is_written for task_id, how in conditions.items())


def _parsed(word: object) -> Dependency:
    text = as_text(word)
    if text is None:
        raise InvalidRequestError(
            f"after has {shown(word)}; it takes ids of tasks as texts, such as 'prepare' or 'any:prepare'"
        )
    one = dependency(text.strip())
    parse_name(one.task_id, "each task id of after")
    return one
