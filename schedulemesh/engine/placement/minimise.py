"""Few releases that are enough: taken in order until they are, then given back where they are not needed.

A trial is what would be if some things were gone. Releasing more never makes it worse, so both steps look at
many at once: twice as many each time, and in halves. What is left is minimal: none of it can be given back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

ItemT = TypeVar("ItemT")
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


class Trial(Protocol[ItemT_contra]):
    """What would be if some things were gone; dropping it is the undo."""

    def release(self, item: ItemT_contra) -> None:
        """Try this gone."""

    def take_back(self, item: ItemT_contra) -> None:
        """Let this stay after all."""


def release_until(
    trial: Trial[ItemT], items: Sequence[ItemT], enough: Callable[[], bool]
) -> list[ItemT] | None:
    """The first of these items that are enough together; they are released then. None: all are not, and
    all are released.
    """
    few = many = 0
    while not enough():
        if many == len(items):
            return None
        few, many = many, min(len(items), max(1, 2 * many))
        for item in items[few:many]:
            trial.release(item)
    while many - few > 1:
        middle = (few + many) // 2
        for item in items[middle:many]:
            trial.take_back(item)
        if enough():
            many = middle
            continue
        for item in items[middle:many]:
            trial.release(item)
        few = middle
    return list(items[:many])


def minimise(
    trial: Trial[ItemT], released: Sequence[ItemT], enough: Callable[[], bool]
) -> list[ItemT]:
    """Take back, the first ones first, whatever of the released items is not needed; what is left."""
    needed: list[ItemT] = []
    parts = [list(released)]
    while parts:
        part = parts.pop()
        if not part:
            continue
        for item in part:
            trial.take_back(item)
        if enough():
            continue
        for item in part:
            trial.release(item)
        if len(part) == 1:
            needed += part
        else:
            middle = len(part) // 2
            parts += [part[middle:], part[:middle]]
    return needed
