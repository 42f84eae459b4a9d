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

import msgspec
from sortedcontainers import SortedList

#: (order value, number, task id): the smallest is the first.
Entry = tuple[float, int, str]

#: Order values of one owner of which each is kept once.
_ORDERS = 16


class ShareParts(msgspec.Struct, frozen=True, gc=False):
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
        if self.half_life_s <= 0 or at >= self.at:
            return 1.0
        return float(0.5 ** ((self.at - at) / self.half_life_s))


class OwnerRank:
    """How much an owner has used of a pool, as a part of its quota."""

    __slots__ = ("_orders", "_share", "is_steady", "owner", "parts", "pool", "version")

    def __init__(self, pool: RankedPool, owner: str) -> None:
        self.pool, self.owner = pool, owner
        #: Whether the share, when it was asked for last, stays the same until the owner holds more or less.
        self.is_steady = True
        #: How the share develops; None: what the owner holds has changed.
        self.parts: ShareParts | None = None
        self._share = 0.0
        #: The version of its pool for which ``_share`` holds.
        self.version = -1
        #: What ``order`` has returned.
        self._orders: dict[float, FairOrder] = {}

    @property
    def share(self) -> float:
        """The owner's share."""
        if self.version != self.pool.version:
            self._renew()
        return self._share

    def order(self, value: float) -> FairOrder:
        """An order value of a task of the owner; for equal values mostly the same object, which is compared
        faster.
        """
        order = self._orders.get(value)
        if order is None:
            if len(self._orders) >= _ORDERS:
                self._orders.clear()
            order = self._orders[value] = FairOrder.of(value, self)
        return order

    def _renew(self) -> None:
        parts = self.parts
        if parts is None or not (parts.is_steady or parts.is_past):
            parts = self.parts = self.pool.parts_of(self.owner)
        self._share = parts.share
        if parts.is_past and self.pool.at > parts.at:
            self._share *= self.pool.decay_since(parts.at)
        self.version, self.is_steady = self.pool.version, parts.is_steady


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


class _OwnerFirsts:
    """The first entries of the classes of one owner; or those that were moved to the front, which are
    nobody's.
    """

    __slots__ = ("entries", "is_steady", "key", "rank")

    def __init__(self, rank: OwnerRank | None) -> None:
        #: None: they were moved to the front.
        self.rank = rank
        #: (order value, number, task id) of each, sorted.
        self.entries: list[Entry] = []
        #: The key under which the owner is in one of the two lists of ``FairFirsts``, and whether that is the
        #: one of shares that stay the same; None: it is in none.
        self.key: _SortKey | None = None
        self.is_steady = True

    @property
    def current_key(self) -> _SortKey:
        """The sort key of its first entry; there has to be one."""
        return (-inf if self.rank is None else self.rank.share, *self.entries[0])


class FairFirsts:
    """The first entries of the classes of a fair pool, in the order in which they are read.

    Owners are sorted by the key of their first entry. Between two changes of what an owner holds its share
    stays the same, or falls at most by half in each half-life. So an old key is a bound, and the first entry
    is found without computing all shares.
    """

    def __init__(self) -> None:
        #: By task id.
        self._entries: dict[str, Entry] = {}
        #: By owner; None: those that were moved to the front.
        self._of_owner: dict[str | None, _OwnerFirsts] = {}
        #: Those whose key has to be found anew.
        self._changed: dict[_OwnerFirsts, None] = {}
        #: Keys of owners whose shares stay the same, and of the others by the shares they once had.
        self._steady: list[_SortKey] = []
        self._falling: list[_SortKey] = []
        #: The time of the oldest key among ``_falling``.
        self._since = inf
        #: What the ranks of the entries have in common; None: no entry has had a rank.
        self._pool: RankedPool | None = None
        #: The first entry, and all of them in their order, at a version of their shares; None: not looked for
        #: since the last change.
        self._first: Entry | None = None
        self._first_at = -1
        self._sorted: list[Entry] | None = None
        self._sorted_at = -1

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        value, number, task_id = entry
        rank = value.rank if isinstance(value, FairOrder) else None
        owner = None if rank is None else rank.owner
        of_owner = self._of_owner.get(owner)
        if of_owner is None:
            of_owner = self._of_owner[owner] = _OwnerFirsts(rank)
            self._pool = self._pool if rank is None else rank.pool
        elif not of_owner.entries:
            of_owner.rank = rank  # its former one may be forgotten
        self._entries[task_id] = entry
        insort(of_owner.entries, (float(value), number, task_id))
        self._changed[of_owner] = self._first = self._sorted = None

    def remove(self, entry: Entry) -> None:
        """Remove one."""
        value, number, task_id = entry
        owner = value.rank.owner if isinstance(value, FairOrder) else None
        of_owner = self._of_owner[owner]
        del self._entries[task_id]
        entries = of_owner.entries
        del entries[bisect_left(entries, (float(value), number, task_id))]
        self._changed[of_owner] = self._first = self._sorted = None

    def sort_anew(self, owner: str | None) -> None:
        """What an owner holds has changed; None: shares are computed in another way."""
        if owner is None:
            self._changed.update(dict.fromkeys(self._of_owner.values()))
        elif (of_owner := self._of_owner.get(owner)) is not None:
            self._changed[of_owner] = None
        self._first = self._sorted = None

    def first_if_any(self) -> Entry | None:
        """The first entry; None: there is none."""
        is_found = self._first is not None and self._pool is not None
        if is_found and self._pool and self._first_at == self._pool.version:
            return self._first
        return self.first() if self._entries else None

    def first(self) -> Entry:
        """The first entry; there has to be one."""
        version = -1 if self._pool is None else self._pool.version
        if self._first is None or self._first_at != version:
            self._first, self._first_at = self._find_first(), version
        return self._first

    def _find_first(self) -> Entry:
        if self._changed:
            self._sort_in()
        best = self._steady[0] if self._steady else None
        if self._falling:
            pool, bound = self._pool, _ROUNDING
            if pool is not None and pool.at > self._since:
                bound *= pool.decay_since(self._since)
            if bound < _LEAST_DECAY:
                self._renew_falling()
                bound = _ROUNDING
            for key in self._falling:
                if best is not None and key[0] * bound > best[0]:
                    break
                current = self._owner_of(key).current_key
                best = current if best is None or current < best else best
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
        """Give other keys to those that have changed."""
        for of_owner in self._changed:
            if of_owner.key is not None:
                keys = self._steady if of_owner.is_steady else self._falling
                del keys[bisect_left(keys, of_owner.key)]
            rank = of_owner.rank
            if not of_owner.entries:
                del self._of_owner[None if rank is None else rank.owner]
                continue
            key = of_owner.key = (-inf if rank is None else rank.share, *of_owner.entries[0])
            of_owner.is_steady = rank is None or rank.is_steady
            if rank is None or rank.is_steady:
                insort(self._steady, key)
                continue
            insort(self._falling, key)
            if rank.pool.at < self._since:
                self._since = rank.pool.at
        self._changed.clear()
        if not self._falling:
            self._since = inf

    def _renew_falling(self) -> None:
        """Compute all keys of ``_falling`` anew."""
        owners = [self._owner_of(key) for key in self._falling]
        for of_owner in owners:
            of_owner.key = of_owner.current_key
        self._falling = sorted(of_owner.key for of_owner in owners if of_owner.key is not None)
        self._since = inf if self._pool is None else self._pool.at

    def _owner_of(self, key: _SortKey) -> _OwnerFirsts:
        """The owner whose key this is."""
        value = self._entries[key[-1]][0]
        return self._of_owner[value.rank.owner if isinstance(value, FairOrder) else None]


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
