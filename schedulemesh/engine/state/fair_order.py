"""The order of a queue between owners: whoever has used less comes first.

In a fair pool the order value of a task that waits has its owner's rank, and is compared by that first. The
rank is shared by all tasks of the owner there and changes with what it has used, so each list that holds
tasks of several owners has to be sorted anew then; lists of one owner stay sorted. Against tasks of other
pools the rank does not count.

Use changes with each start and each end, and is seldom asked about. So shares are computed, and lists are
sorted, when they are read.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice
from math import inf
from typing import NamedTuple

from sortedcontainers import SortedList

#: (order value, number, task id): the smallest is the first.
Entry = tuple[float, int, str]


class ShareParts(NamedTuple):
    """How the share of an owner develops until it holds more or less."""

    #: What it is at the time ``at``, in seconds since 1970.
    share: float
    at: float
    #: Whether it stays the same; else it falls, at most by half in each half-life.
    is_steady: bool
    #: Whether it falls by exactly that.
    is_past: bool


class RankedPool:
    """What the ranks of the owners of one fair pool have in common."""

    __slots__ = ("at", "half_life_s", "name", "parts_of", "version")

    def __init__(
        self, name: str, parts_of: Callable[[str], ShareParts], at: float, half_life_s: float
    ) -> None:
        self.name = name
        #: Computes how the share of an owner develops, at the time ``at``.
        self.parts_of = parts_of
        #: When what any of them holds has changed last: then shares are compared. In seconds since 1970.
        self.at = at
        self.half_life_s = half_life_s
        #: How often that was.
        self.version = 0

    def decay_since(self, at: float) -> float:
        """By which factor past use has decayed since then."""
        if self.half_life_s <= 0:
            return 1.0
        return float(0.5 ** (max(0.0, self.at - at) / self.half_life_s))


class OwnerRank:
    """How much an owner has used of a pool, as a part of its quota."""

    __slots__ = ("_parts", "_share", "_version", "owner", "pool")

    def __init__(self, pool: RankedPool, owner: str) -> None:
        self.pool, self.owner = pool, owner
        self._parts: ShareParts | None = None
        self._share = 0.0
        #: The version of its pool for which ``_share`` holds.
        self._version = -1

    @property
    def share(self) -> float:
        """The owner's share."""
        if self._version != self.pool.version:
            self._renew()
        return self._share

    @property
    def is_steady(self) -> bool:
        """Whether the share stays the same until the owner holds more or less."""
        return (self._parts or self._renew()).is_steady

    def _renew(self) -> ShareParts:
        parts = self._parts
        if parts is None or not (parts.is_steady or parts.is_past):
            parts = self._parts = self.pool.parts_of(self.owner)
        self._share = parts.share
        if parts.is_past:
            self._share *= self.pool.decay_since(parts.at)
        self._version = self.pool.version
        return parts

    def forget(self) -> None:
        """Compute the share anew: what the owner holds has changed."""
        self._parts, self._version = None, -1


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
        """The share of another owner of an order value in the same pool; None: shares do not count."""
        if not isinstance(other, FairOrder) or other.rank is self.rank:
            return None
        return None if other.rank.pool.name != self.rank.pool.name else other.rank.share

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
        if float.__eq__(self, other) is not True:
            return False
        share = self._share_beside(other)
        return share is None or share == self.rank.share

    __hash__ = float.__hash__


#: What orders the entries of one fair pool, in plain numbers: the share, the order value, the number, the id.
_SortKey = tuple[float, float, int, str]


def _sort_key(entry: Entry) -> _SortKey:
    """The sort key of an entry; those that were moved to the front come first."""
    value, number, task_id = entry
    share = value.rank.share if isinstance(value, FairOrder) else -inf
    return (share, float(value), number, task_id)


#: Shares of past use are compared with a bound that is computed with rounding errors.
_ROUNDING = 1 - 1e-9
#: By which factor shares may have fallen since their keys were computed, before all are computed anew.
_LEAST_DECAY = 0.9


class FairFirsts:
    """The first entries of the classes of a fair pool, in the order in which they are read.

    Between two changes of what an owner holds its share stays the same, or falls at most by half in each
    half-life. So an old sort key is a bound, and the first entry is found without computing all shares.
    """

    def __init__(self) -> None:
        #: By task id.
        self._entries: dict[str, Entry] = {}
        #: Ids of the entries of each owner; those that were moved to the front are nobody's.
        self._of_owner: dict[str | None, set[str]] = {}
        #: The key under which an entry is in one of the two sorted lists; the others are in none yet.
        self._keys: dict[str, _SortKey] = {}
        #: Of owners whose shares stay the same, and of the others by the shares they once had.
        self._steady: list[_SortKey] = []
        self._falling: list[_SortKey] = []
        self._new: set[str] = set()
        #: The time of the oldest key among ``_falling``.
        self._since = inf
        #: What the ranks of the entries have in common; None: no entry has had a rank.
        self._pool: RankedPool | None = None
        #: All entries in their order, at a version of their shares; None: not sorted since the last change.
        self._sorted: list[Entry] | None = None
        self._sorted_at = -1

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        task_id, value = entry[-1], entry[0]
        if isinstance(value, FairOrder):
            self._pool = value.rank.pool
        self._entries[task_id] = entry
        self._of_owner.setdefault(_owner_of(entry), set()).add(task_id)
        self._new.add(task_id)
        self._sorted = None

    def remove(self, entry: Entry) -> None:
        """Remove one."""
        task_id = entry[-1]
        owner = _owner_of(self._entries.pop(task_id))
        self._of_owner[owner].discard(task_id)
        if not self._of_owner[owner]:
            del self._of_owner[owner]
        self._take_out(task_id)
        self._new.discard(task_id)
        self._sorted = None

    def sort_anew(self, owner: str | None) -> None:
        """What an owner holds has changed; None: shares are computed in another way."""
        task_ids = self._entries if owner is None else self._of_owner.get(owner, ())
        for task_id in task_ids:
            self._take_out(task_id)
        self._new.update(task_ids)

    def first(self) -> Entry:
        """The first entry; there has to be one."""
        self._sort_in()
        best = self._steady[0] if self._steady else None
        bound = self._decay() * _ROUNDING if self._falling else 1.0
        for key in self._falling:
            if best is not None and key[0] * bound > best[0]:
                break
            current = _sort_key(self._entries[key[-1]])
            best = current if best is None else min(best, current)
        if best is None:
            raise IndexError("there is no entry")
        return self._entries[best[-1]]

    def in_order(self) -> list[Entry]:
        """All entries in their order; not to be changed."""
        version = -1 if self._pool is None else self._pool.version
        if self._sorted is None or self._sorted_at != version:
            self._sorted = sorted(self._entries.values(), key=_sort_key)
            self._sorted_at = version
        return self._sorted

    def bisect_left(self, entry: Entry) -> int:
        """How many entries come before this one."""
        return bisect_left(self.in_order(), _sort_key(entry), key=_sort_key)

    def irange(self, minimum: Entry | None = None) -> Iterator[Entry]:
        """The entries from this place on; None: all."""
        return iter(self) if minimum is None else iter(self.in_order()[self.bisect_left(minimum) :])

    def __getitem__(self, index: int) -> Entry:
        return self.in_order()[index] if index else self.first()

    def __iter__(self) -> Iterator[Entry]:
        if self._entries:
            yield self.first()
            yield from self.in_order()[1:]

    def __len__(self) -> int:
        return len(self._entries)

    def _sort_in(self) -> None:
        """Give keys to those that have none."""
        for task_id in self._new:
            entry = self._entries[task_id]
            key = self._keys[task_id] = _sort_key(entry)
            value = entry[0]
            if not isinstance(value, FairOrder) or value.rank.is_steady:
                insort(self._steady, key)
            else:
                insort(self._falling, key)
                self._since = min(self._since, value.rank.pool.at)
        self._new.clear()
        if self._falling and self._decay() < _LEAST_DECAY:
            entries = [self._entries[key[-1]] for key in self._falling]
            self._falling = sorted(map(_sort_key, entries))
            self._keys.update((key[-1], key) for key in self._falling)
            self._since = inf if self._pool is None else self._pool.at

    def _take_out(self, task_id: str) -> None:
        key = self._keys.pop(task_id, None)
        if key is None:
            return
        for keys in (self._steady, self._falling):
            index = bisect_left(keys, key)
            if index < len(keys) and keys[index] == key:
                del keys[index]
                break
        if not self._falling:
            self._since = inf

    def _decay(self) -> float:
        """By which factor the shares of ``_falling`` may have fallen since their keys were computed."""
        return 1.0 if self._pool is None else self._pool.decay_since(self._since)


def _owner_of(entry: Entry) -> str | None:
    """The owner whose share decides about an entry; None: it was moved to the front."""
    return entry[0].rank.owner if isinstance(entry[0], FairOrder) else None


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
