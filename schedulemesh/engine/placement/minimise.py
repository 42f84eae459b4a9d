"""Minimal sets of releases: releases items in order until they are enough, then takes back unneeded ones.

A trial is a hypothetical state in which some items are released. Releasing more never makes it worse, so both
steps work on many items at once: the number is doubled until it is enough, and unneeded items are found by
bisection. The result is minimal: no item of it can be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

#: Up to this many items are taken back one by one, because most of few are needed.
FEW = 32

ItemT = TypeVar("ItemT")
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


class Trial(Protocol[ItemT_contra]):
    """A hypothetical state; it is discarded to undo its changes."""

    def release(self, item: ItemT_contra) -> None:
        """Release this item."""

    def take_back(self, item: ItemT_contra) -> None:
        """Undo the release of this item."""


def release_until(
    trial: Trial[ItemT], items: Sequence[ItemT], enough: Callable[[], bool]
) -> list[ItemT] | None:
    """The shortest sufficient prefix of these items, which are then released. None: not even all items
    are sufficient; all are released then.
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
    """Take back every released item that is not needed, in order; the items that remain released."""
    needed: list[ItemT] = []
    parts = [list(released)] if len(released) > FEW else [[item] for item in reversed(released)]
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
