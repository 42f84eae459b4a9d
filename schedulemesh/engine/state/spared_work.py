"""Results that need not be found out again as long as nothing changes that they depend on.

They only spare work: to know less is slower, and changes no decision.
"""

from __future__ import annotations

from typing import Any

from schedulemesh.engine.messages.audit_facts import ChangeAnswered, ChangeReceived
from schedulemesh.engine.messages.facts import AnswersForgotten, RequestAnswered
from schedulemesh.engine.messages.queue_facts import (
    ReservationDropped,
    StartReserved,
    TaskCancelled,
    TaskQueued,
    Ticked,
    TurnsPassed,
)
from schedulemesh.engine.state.queued_tasks import Reservation

#: Facts that change nothing on which a search for victims rests: which tasks wait (unless the last one of a
#: pool is cancelled), which of them have a reserved start, what was answered, and what is recorded of that.
CHANGE_NO_SEARCH = frozenset(
    (
        AnswersForgotten,
        ChangeAnswered,
        ChangeReceived,
        RequestAnswered,
        ReservationDropped,
        StartReserved,
        TaskCancelled,
        TaskQueued,
        Ticked,
        TurnsPassed,
    )
)
#: How many tasks are remembered.
_TASKS = 10_000


class SparedWork:
    """What was found out about tasks that wait, for one revision of the state."""

    def __init__(self) -> None:
        #: Increases with every fact that is not in ``CHANGE_NO_SEARCH``, which then clears ``leaving``
        #: and ``beside_reserved``.
        self.revision = 0
        #: Increases with every fact.
        self.facts = 0
        #: By task: the revision in which nothing made room for it, from when until when that holds, and
        #: whether there were candidates for an eviction.
        self._in_vain: dict[str, tuple[int, float, float, bool]] = {}
        #: By task: the revision in which a search for its start found this one again, whatever the time.
        self._starts: dict[str, tuple[int, Reservation]] = {}
        #: What is leaving, as ``placement.leaving`` has worked it out in this revision; None: not yet.
        self.leaving: Any = None
        #: By shape: whether the nodes could hold it beside the reserved placement groups, in this revision.
        self.beside_reserved: dict[Any, bool] = {}
        #: What is leaving by agents for which nobody waits, of the last revision that has asked for it.
        self.leaving_alone: dict[str, Any] = {}

    def note_in_vain(self, task_id: str, now: float, until: float, *, searched: bool) -> None:
        """The task does not fit, and no eviction makes room for it, until this time at least. ``searched``:
        whether there were candidates.
        """
        if len(self._in_vain) >= _TASKS:
            self._in_vain.clear()
        self._in_vain[task_id] = (self.revision, now, until, searched)

    def is_in_vain(self, task_id: str, now: float) -> bool:
        """Whether surely neither free room nor an eviction lets the task start now."""
        entry = self._in_vain.get(task_id)
        return entry is not None and entry[0] == self.revision and entry[1] <= now < entry[2]

    def was_searched(self, task_id: str) -> bool:
        """Of a task that is known to be in vain: whether there were candidates."""
        return self._in_vain[task_id][3]

    def note_start(self, task_id: str, start: Reservation) -> None:
        """The reserved start of the task would be found again, at any time."""
        if len(self._starts) >= _TASKS:
            self._starts.clear()
        self._starts[task_id] = (self.revision, start)

    def is_start_of(self, task_id: str, start: Reservation | None) -> bool:
        """Whether a search for the task's start would surely find the one that is reserved for it."""
        entry = self._starts.get(task_id)
        return entry is not None and entry[0] == self.revision and entry[1] == start
