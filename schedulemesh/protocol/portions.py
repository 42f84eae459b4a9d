"""Long reads are made in portions, between which others are served, however many items there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

#: Items that are looked at at once: about a millisecond.
PORTION = 25
#: How many times as many are looked at at once of items that take a quarter of that.
QUICK = 4
#: Steps of the event loop between two portions. A call of somebody else takes about twice as many from its
#: arrival to its answer, and waits for a portion after as many of them.
STEPS_BETWEEN = 5
#: How many times as long as a portion took what is pending is waited for.
MOST_PATIENCE = 4.0

Item = TypeVar("Item")


def portions(items: Sequence[Item], *, quick: bool = False) -> Iterator[Sequence[Item]]:
    """The items in portions, in their order. ``quick``: see ``QUICK``."""
    size = PORTION * QUICK if quick else PORTION
    return (items[first : first + size] for first in range(0, len(items), size))


class PortionTurns:
    """Lets one portion of long reads be done at a time, however many are under way, and others be served
    before the next one.

    ``pending``: what others wait for that is done by another thread, such as a commit of the journal; None:
    nothing is. It is waited for after a portion, because that thread gets the interpreter's lock only now and
    then while this one computes; at most ``MOST_PATIENCE`` times as long as the portion took, so that reads
    go on where something is always pending.
    """

    def __init__(self, pending: Callable[[], asyncio.Future[None] | None] = lambda: None) -> None:
        self._lock = asyncio.Lock()
        self._pending = pending

    @property
    def are_taken(self) -> bool:
        """Whether a long read is under way."""
        return self._lock.locked()

    async def each(
        self,
        items: Sequence[Item],
        work: Callable[[Sequence[Item]], None],
        *,
        quick: bool = False,
    ) -> None:
        """Do this work for the items, portion by portion; ``quick``: see ``QUICK``. Raises what the work
        raises.
        """
        time = asyncio.get_running_loop().time
        for portion in portions(items, quick=quick):
            async with self._lock:
                began = time()
                work(portion)
                await self.serve_others(time() - began)

    async def serve_others(self, took_s: float) -> None:
        """Return once others have been served, after a portion that took so many seconds."""
        for _ in range(STEPS_BETWEEN):
            await asyncio.sleep(0)
        if (pending := self._pending()) is not None:
            await asyncio.wait([pending], timeout=MOST_PATIENCE * took_s)
