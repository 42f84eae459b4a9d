"""Makes the rows of a listing in portions, between which others are served, however many rows there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from schedulemesh.runtime.reactor import Reactor

#: Items that are looked at at once: a few milliseconds.
PORTION = 250

Item = TypeVar("Item")
Row = TypeVar("Row")


def portions(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The items in portions, in their order."""
    return (items[first : first + PORTION] for first in range(0, len(items), PORTION))


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
        for portion in portions([*begin()]):
            rows += [row for make in portion if (row := make()) is not None]
            await asyncio.sleep(0)
        await reactor.flushed()
        if reactor.engine is engine:
            return rows
