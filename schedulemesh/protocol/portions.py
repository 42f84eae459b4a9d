"""Long reads are made in portions, between which others are served, however many items there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

#: Items that are looked at at once: about a millisecond.
PORTION = 25
#: Steps of the event loop between two portions. A call of somebody else takes about twice as many from its
#: arrival to its answer, and waits for a portion after as many of them.
STEPS_BETWEEN = 5

Item = TypeVar("Item")


def portions(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The items in portions, in their order."""
    return (items[first : first + PORTION] for first in range(0, len(items), PORTION))


class PortionTurns:
    """Lets one portion of long reads be done at a time, however many are under way, and others be served
    before the next one.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def each(self, items: Sequence[Item], work: Callable[[Sequence[Item]], None]) -> None:
        """Do this work for the items, portion by portion. Raises what the work raises."""
        for portion in portions(items):
            async with self._lock:
                work(portion)
                for _ in range(STEPS_BETWEEN):
                    await asyncio.sleep(0)
