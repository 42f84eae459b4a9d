"""Endings: what is being ended is ended once, however many ask for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator

logger = logging.getLogger(__name__)

#: What is ended: an agent or one of its processes by name and incarnation, an actor by namespace and name, a
#: placement group by its id and ``"group"``.
Key = tuple[str, int | str]

#: Seconds between two attempts to end what does not end: doubled from the first to the last.
_FIRST_S, _LAST_S = 0.5, 30.0


class Endings:
    """The endings in progress by what is ended: one at a time for each.

    An ending goes on when whoever asked for it is cancelled. One that fails is logged and tried again, until
    it succeeds: others wait for what is held, and nobody else would end it.
    """

    def __init__(self) -> None:
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._tasks

    def __len__(self) -> int:
        return len(self._tasks)

    async def once(self, key: Key, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Return when something has ended; ``work`` ends it where nothing does so already."""
        await asyncio.shield(self.begin(key, work))

    def begin(
        self, key: Key, work: Callable[[], Coroutine[object, object, None]]
    ) -> asyncio.Task[None]:
        """As ``once``, without waiting."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.ensure_future(_until_ended(key, work))
            task.add_done_callback(lambda _: self._tasks.pop(key))
        return task

    def cancel_all(self) -> None:
        """Give up what is in progress."""
        for task in self._tasks.values():
            task.cancel()


async def _until_ended(key: Key, work: Callable[[], Coroutine[object, object, None]]) -> None:
    """Return when ``work`` has ended something, however often it fails before."""
    for pause_s in pauses():
        try:
            await work()
        except Exception:  # logged: it is tried again
            logger.exception("%s has not been ended; next attempt in %g s", key[0], pause_s)
        else:
            return
        await asyncio.sleep(pause_s)


def pauses(first_s: float = _FIRST_S, last_s: float = _LAST_S) -> Iterator[float]:
    """Seconds to wait between attempts to end what may never end: each attempt takes threads and calls that
    everything else needs, too.
    """
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, last_s)
