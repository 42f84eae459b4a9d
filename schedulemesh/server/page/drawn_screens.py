"""Screens as they were drawn: whoever asks for the same one at the same time sees the same drawing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple
from weakref import WeakValueDictionary

from starlette.responses import Response

from schedulemesh.server.page import reads

#: How many screens are kept.
_MOST = 64


class _Drawn(NamedTuple):
    """A screen."""

    #: When its reads began, and up to what they were true; see ``RecentReads.stamp``.
    began: float
    stamp: object
    response: Response


class DrawnScreens:
    """The last drawings of screens by what they show, to whom, and how. A drawing is shown again to whoever
    has asked before its reads began, and for a moment while nothing has happened since, as reads are.
    """

    def __init__(
        self, stamp: Callable[[], object], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._stamp, self._now = stamp, now
        self._last: dict[Hashable, _Drawn] = {}
        #: Held while a screen is drawn that others wait for.
        self._turns: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def drawn(self, key: Hashable, draw: Callable[[], Awaitable[Response]]) -> Response:
        """The screen of this key, which ``draw`` reads and draws. Raises what it raises."""
        asked_at, stamp = self._now(), self._stamp()
        turn = self._turns.setdefault(key, asyncio.Lock())
        async with turn:
            last = self._last.get(key)
            if last is not None and self._is_shown_again(last, asked_at, stamp):
                return last.response
            began, stamp = self._now(), self._stamp()
            response = await draw()
            self._last.pop(key, None)
            self._last[key] = _Drawn(began, stamp, response)
            for oldest in list(self._last)[:-_MOST]:
                del self._last[oldest]
            return response

    def _is_shown_again(self, last: _Drawn, asked_at: float, stamp: object) -> bool:
        """Whether a drawing will do for who has asked at a time with this stamp."""
        is_young = self._now() - last.began < reads.YOUNG_S
        return last.began >= asked_at or (is_young and last.stamp == stamp)
