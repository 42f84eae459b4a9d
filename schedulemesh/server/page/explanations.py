"""Explanations that open pages show.

An explanation may take the supervisor a hundred times as long as another read, so it is made again at once
only when something has happened to its task. What happens to others may change it, too; for that, all that
are shown are made again in turn, in a small part of the supervisor's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

import msgspec

from schedulemesh.api.tasks import ExplainTask
from schedulemesh.domain.arrays import members_named
from schedulemesh.protocol.answers import AnyAnswer, search_seconds
from schedulemesh.server.event_feed import EventLine

#: How far the events are known, and how often something was changed here.
Stamp = tuple["int | None", int]

#: The part of the supervisor's time in which explanations are made again for what happens to others.
SHARE = 0.05
#: Seconds after which a page that has asked for an explanation is not open any more.
_SHOWN_S = 30.0
#: Seconds until one may be made again while another one is.
_SOON_S = 0.5
#: How many are kept.
_MOST = 256


class _Explanation(msgspec.Struct):
    """The last explanation of a task."""

    #: Up to what it is true; see ``RecentReads.stamp``.
    stamp: Stamp
    #: When a page has last asked for it.
    asked_at: float
    #: None: it is not answered.
    answer: AnyAnswer | None = None
    #: When it was answered.
    answered_at: float = 0.0
    #: Whether something has happened to its task since.
    is_outdated: bool = False


class ShownExplanation(NamedTuple):
    """An explanation for a page."""

    answer: AnyAnswer
    #: Seconds until it may be made again for what has happened to others; None: nothing has.
    again_s: float | None


class RecentExplanations:
    """The last explanations, each used again until its task changes, or its turn comes."""

    def __init__(
        self,
        ask: Callable[[ExplainTask], Awaitable[AnyAnswer]],
        stamp: Callable[[], Stamp],
        events_after: Callable[[int], Sequence[EventLine] | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ask``: makes one, as of now; ``stamp``: see ``RecentReads.stamp``; ``events_after``: those after
        a cursor, None: they are not known.
        """
        self._ask, self._stamp, self._events_after, self._now = ask, stamp, events_after, now
        #: By task, the one that was made first first.
        self._last: dict[str, _Explanation] = {}
        #: Held while one is made again for what has happened to others.
        self._turn = asyncio.Lock()
        #: The cursor of the last event that was looked at; None: there is none.
        self._cursor: int | None = None

    async def ask(self, call: ExplainTask) -> ShownExplanation:
        """The explanation of a task in which all is that has happened to it."""
        self._look_at_events()
        stamp, last = self._stamp(), self._last.get(call.task_id)
        if last is None or last.answer is None or last.is_outdated or last.stamp[1] != stamp[1]:
            return ShownExplanation(await self._made(call), None)
        last.asked_at = self._now()
        again_s = self._again_s(last, last.answer)
        if again_s > 0.0:
            return ShownExplanation(last.answer, again_s if last.stamp != stamp else None)
        async with self._turn:
            return ShownExplanation(await self._made(call), None)

    async def _made(self, call: ExplainTask) -> AnyAnswer:
        """An explanation as of now; kept while it is made, so that what happens meanwhile is noted."""
        self._last.pop(call.task_id, None)
        made = self._last[call.task_id] = _Explanation(self._stamp(), self._now())
        for oldest in list(self._last)[:-_MOST]:
            del self._last[oldest]
        made.answer = answer = await self._ask(call)
        made.answered_at = self._now()
        return answer

    def _again_s(self, last: _Explanation, answer: AnyAnswer) -> float:
        """Seconds until an explanation may be made again for what happens to others: one at a time, and with
        as much time for each that is shown.
        """
        rest_s = search_seconds(answer) * len(self._last) / SHARE
        again_s = last.answered_at + rest_s - self._now()
        return max(again_s, _SOON_S) if self._turn.locked() else again_s

    def _look_at_events(self) -> None:
        """Note which explanations are outdated, and forget those that no page shows any more."""
        shown_since = self._now() - _SHOWN_S
        self._last = {one: e for one, e in self._last.items() if e.asked_at >= shown_since}
        (position, _), before = self._stamp(), self._cursor
        self._cursor = position
        if position is not None and position == before:
            return
        lines = None if before is None else self._events_after(before)
        if position is None or lines is None:
            self._last.clear()
            return
        changed = {line.task_id for line in lines}
        for task_id, last in self._last.items():
            last.is_outdated = last.is_outdated or _is_among(task_id, changed)


def _is_among(task_id: str, changed: Collection[str]) -> bool:
    """Whether one of these tasks is this one, the array that it is a member of, or a member of it."""
    named = members_named(task_id)
    if task_id in changed or (named is not None and named[0] in changed):
        return True
    begin = f"{task_id}["
    return any(one.startswith(begin) for one in changed)
