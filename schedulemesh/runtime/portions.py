"""Makes the rows of a listing in portions, between which others are served, however many rows there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from schedulemesh.runtime.reactor import Reactor

#: Items that are looked at at once: about a millisecond. A call of somebody else waits for several portions,
#: one for each of its own steps.
PORTION = 25

Item = TypeVar("Item")
Row = TypeVar("Row")


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
                await asyncio.sleep(0)


async def rows_in_portions(
    reactor: Reactor, begin: Callable[[], Iterable[Callable[[], Row | None]]]
) -> list[Row]:
    """The rows that the functions make which ``begin`` returns. What they read is durable; it is read anew
    if it was rolled back meanwhile. ``begin`` chooses what is listed at one moment, and each row is as it is
    when it is made; None: what it was about is no longer there.
    """
    while True:
        await reactor.whole()
        engine = reactor.engine
        rows: list[Row] = []

        def make(portion: Sequence[Callable[[], Row | None]], rows: list[Row] = rows) -> None:
            rows.extend(row for made in portion if (row := made()) is not None)

        await reactor.turns.each([*begin()], make)
        await reactor.flushed()
        if reactor.engine is engine:
            return rows
