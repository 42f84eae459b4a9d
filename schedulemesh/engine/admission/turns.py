"""Turns: for whom victims are searched on one tick, where more wait than one tick searches for.

Pools take turns in the order of their names, and the next tick goes on where this one has stopped.

Within a pool the first tasks come first on each tick, up to half of the searches for the pool. The other
half is for those behind them, and begins at another place of the queue each second: the number of the
second times the golden section. These places are spread so evenly that, with a tick each second, every task
has had its turn after twice as many ticks as it takes to search for all (three-gap theorem); and no other
interval between ticks leaves a task out for good. Nothing has to be remembered, so a pool whose tasks wait
for days writes nothing to the journal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

import msgspec

#: How often victims are searched on one tick, where there are candidates.
SEARCHES = 50
#: How often at least for a pool whose turn it is.
_SEARCHES_OF_POOL = 10
#: For how many tasks of one pool evictions are considered at all on one tick, and reclaims. Those do not
#: count for which surely nobody may be evicted.
TRIES = 100
#: The golden section as a part of ``_RANGE``.
_GOLDEN, _RANGE = 2_654_435_769, 1 << 32


class PoolTurn:
    """Which tasks of one pool are searched for on one tick, by their ranks: how many classes of tasks come
    before theirs.
    """

    def __init__(self, most: int, waiting: int, now: float) -> None:
        #: ``most``: for so many tasks; ``waiting``: the number of classes in the queue of the pool.
        self._first = most if waiting <= most else _first_of(most)
        self._behind = most - self._first
        self._begin = waiting * (int(now) * _GOLDEN % _RANGE) // _RANGE

    @property
    def begin(self) -> int | None:
        """The lowest rank of a task that is searched for; None: none is."""
        if self._first > 0:
            return 0
        return self._begin if self._behind > 0 else None

    def includes(self, rank: int) -> bool:
        """Whether the task with this rank is searched for."""
        return self._first > 0 or (self._behind > 0 and rank >= self._begin)

    def note(self) -> None:
        """It was searched for a task that this turn includes."""
        if self._first > 0:
            self._first -= 1
        else:
            self._behind -= 1


class PoolTurns(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which tasks of a pool are tried with evictions on one tick."""

    #: Those for which victims are searched by all rules, and those for which that is considered.
    searches: PoolTurn
    tries: PoolTurn
    #: Of the others those for which a reclaim is considered.
    reclaims: PoolTurn

    @property
    def begin(self) -> int | None:
        """The lowest rank of a task for which victims are searched by all rules; None: for none they are."""
        tries, searches = self.tries.begin, self.searches.begin
        return None if tries is None or searches is None else max(tries, searches)


def _first_of(most: int) -> int:
    """How many of so many searches are for the first tasks of a pool, whatever the time."""
    return most - most // 2


def searches_of_pool(pools: int) -> int:
    """How often at most victims are searched for a pool where it is the turn of so many."""
    return max(_SEARCHES_OF_POOL, SEARCHES // max(1, pools))


def ticks_until_searched(most: int, waiting: int, rank: int) -> int:
    """Within how many turns of its pool the task with this rank is searched for; see ``PoolTurn``."""
    if waiting <= most or rank < _first_of(most):
        return 1
    return 2 * -(-waiting // (most // 2))


def in_turn(pools: Collection[str], first: str, count: int) -> tuple[frozenset[str], str]:
    """So many of these pools, in the order of their names and beginning where the last turn ended, and where
    the next one begins.
    """
    if len(pools) <= count:
        return frozenset(pools), first
    names = sorted(pools)
    begin = bisect_left(names, first)
    names = names[begin:] + names[:begin]
    return frozenset(names[:count]), names[count]
