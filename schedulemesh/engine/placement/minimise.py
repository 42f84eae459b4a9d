"""Minimal sets of releases: releases items in order until they are enough, then takes back unneeded ones.

A trial is a hypothetical state in which some items are released. Releasing more never makes it worse, so both
steps work on many items at once: the number is doubled as long as that succeeds, and halved where it does
not. The result is minimal: no item of it can be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeVar

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
    trial: Trial[ItemT],
    released: Sequence[ItemT],
    enough: Callable[[], bool],
    kind: Callable[[ItemT], Hashable],
) -> list[ItemT]:
    """Take back every released item that is not needed, in order; the items that remain released. ``kind``:
    of items of the same kind each could be taken back now, or none of them.
    """
    needed: list[ItemT] = []
    needed_kinds: set[Hashable] = set()
    position, count = 0, 1
    while position < len(released):
        part = released[position : position + count]
        if kind(part[0]) in needed_kinds:
            needed.append(part[0])
            position += 1
            continue
        for item in part:
            trial.take_back(item)
        if enough():
            position, count = position + len(part), 2 * count
            continue
        for item in part:
            trial.release(item)
        if len(part) > 1:
            count = len(part) // 2
        else:
            # With less released, none of its kind can be taken back later.
            needed_kinds.add(kind(part[0]))
    return needed
