"""The order of a queue between owners: whoever has used less comes first.

In a fair pool the order value of a task that waits has its owner's rank, and is compared by that first. The
rank is shared by all tasks of the owner there and changes with what it has used, so each list that holds
tasks of several owners has to be sorted anew then; lists of one owner stay sorted. Against tasks of other
pools the rank does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from sortedcontainers import SortedList

#: (order value, number, task id): the smallest is the first.
Entry = tuple[float, int, str]


class OwnerRank:
    """How much an owner has used of a pool, as a part of its quota."""

    __slots__ = ("pool_name", "share")

    def __init__(self, pool_name: str, share: float) -> None:
        self.pool_name = pool_name
        self.share = share


class FairOrder(float):
    """An order value in a fair pool."""

    __slots__ = ("rank",)

    rank: OwnerRank

    @classmethod
    def of(cls, value: float, rank: OwnerRank) -> FairOrder:
        """An order value of a task whose owner has this rank."""
        order = cls(value)
        order.rank = rank
        return order

    def _share_beside(self, other: object) -> float | None:
        """The share of the owner of another order value in the same pool; None: it does not count."""
        if not isinstance(other, FairOrder) or other.rank.pool_name != self.rank.pool_name:
            return None
        return other.rank.share

    def __lt__(self, other: float) -> bool:
        """Whether it comes before the other one."""
        share = self._share_beside(other)
        if share is None or share == self.rank.share:
            return float.__lt__(self, other)
        return self.rank.share < share

    def __gt__(self, other: float) -> bool:
        """Whether it comes after the other one."""
        share = self._share_beside(other)
        if share is None or share == self.rank.share:
            return float.__gt__(self, other)
        return self.rank.share > share

    def __le__(self, other: float) -> bool:
        """Whether it does not come after the other one."""
        return not self > other

    def __ge__(self, other: float) -> bool:
        """Whether it does not come before the other one."""
        return not self < other

    def __eq__(self, other: object) -> bool:
        """Whether neither comes before the other."""
        share = self._share_beside(other)
        return float.__eq__(self, other) is True and share in (None, self.rank.share)

    __hash__ = float.__hash__


class OwnedReady:
    """The entries of a fair pool: a sorted list by owner, read as one."""

    def __init__(self) -> None:
        self._by_owner: dict[str, SortedList[Entry]] = {}
        self._size = 0

    def add(self, entry: Entry, owner: str) -> None:
        """Add an entry of an owner."""
        self._by_owner.setdefault(owner, SortedList()).add(entry)
        self._size += 1

    def remove(self, entry: Entry, owner: str) -> None:
        """Remove one."""
        entries = self._by_owner[owner]
        entries.remove(entry)
        self._size -= 1
        if not entries:
            del self._by_owner[owner]

    def index(self, entry: Entry) -> int:
        """How many entries come before this one."""
        return sum(entries.bisect_left(entry) for entries in self._by_owner.values())

    def islice(self, begin: int, end: int | None) -> Iterator[Entry]:
        """The entries from this place on, and before ``end``."""
        return islice(iter(self), begin, end)

    def __iter__(self) -> Iterator[Entry]:
        return merge(*self._by_owner.values())

    def __len__(self) -> int:
        return self._size
