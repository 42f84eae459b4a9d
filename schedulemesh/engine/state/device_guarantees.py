"""Whether GPU amounts surely fit on a node, wherever Ray puts the agents that have not told their devices.

Ray chooses the devices of an agent, and the agent tells them once it runs. Until then a share may lie on any
device with room, also on one that a waiting newcomer was promised: its victims would have left in vain. So a
promise is made only where it holds for every way in which the others may be placed, and nobody is admitted
beside a waiting newcomer who could break its promise.

The test is one-sided: where it says yes, the amounts fit; it may say no where a closer look would find that
they fit, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from schedulemesh.domain.resources import UNIT

if TYPE_CHECKING:
    from schedulemesh.engine.state.nodes import Node

#: Newcomers that may wait on one node before the answer is no; the sets to be looked at double with each.
#: Those that take whole devices from victims who held just as many are not counted.
MOST_WAITING = 6


def surely_fits(free: Iterable[int], gpu: int, others: Iterable[int]) -> bool:
    """Whether this GPU amount fits on devices with so much free, wherever the others are put before it.

    The others can keep a whole device away with any share; to keep a share away they must leave less than
    it on every device, for which their number or their sum may not suffice.
    """
    shares = [units for units in others if 0 < units < UNIT]
    whole = sum(units // UNIT for units in others if units >= UNIT)
    if gpu >= UNIT:
        return sum(units == UNIT for units in free) - whole - len(shares) >= gpu // UNIT
    to_fill = sorted(units - gpu + 1 for units in free if units >= gpu)
    if whole:
        del to_fill[-whole:]
    return len(to_fill) > len(shares) or sum(to_fill) > sum(shares)


def is_sure(
    node: Node, gpus: Sequence[int], gone: Collection[str] = (), *, waits: bool = False
) -> bool:
    """Whether newcomers with these GPU amounts may be put on the node once ``gone`` have left it: nobody
    who waits there loses what it was promised, and where somebody leaves for them, here or elsewhere
    (``waits``), they surely fit.
    """
    waits = waits or bool(gone)
    wanted = [gpu for gpu in gpus if gpu]
    if not wanted or not (node.promised or (waits and has_untold(node, gone))):
        return True
    books = _Books(node, gone)
    if books.too_many_wait():
        return False
    return books.can_promise(wanted) if waits else books.keeps_promises(wanted)


def has_untold(node: Node, gone: Collection[str] = ()) -> bool:
    """Whether somebody there has not told its devices, apart from those who leave."""
    return any(
        mine.devices.units and not mine.reported and key not in gone
        for key, mine in node.allocations.items()
    )


class _Books:
    """A node's devices as far as they are known, with those whose place is not."""

    def __init__(self, node: Node, gone: Collection[str]) -> None:
        self._node = node
        #: Free units of each device if the untold had none.
        self._free = list(node.devices)
        #: GPU amounts of the untold, those who wait apart.
        self._untold: list[int] = []
        #: By the newcomer that was promised them: its GPU amounts.
        self._promises: dict[str, list[int]] = {}
        #: Those of them that start already, and may lie anywhere, too.
        self._starting: set[str] = set()
        for key, mine in node.allocations.items():
            if mine.promised_to and key not in gone:
                self._add(self._free, key)
                self._promises.setdefault(mine.promised_to, []).append(mine.wants)
                if mine.devices.units:
                    self._starting.add(mine.promised_to)
            elif key in gone:
                continue
            elif mine.devices.units and not mine.reported:
                self._add(self._free, key)
                self._untold.append(sum(units for _, units in mine.devices.units))
        self._gone = gone

    def keeps_promises(self, new: Sequence[int]) -> bool:
        """Whether those who wait still get their devices if these start at once."""
        return all(
            self._all_fit(self._freed_for(names), self._wanted_by(names), [*self._untold, *new])
            for names in self._who_may_start()
        )

    def can_promise(self, new: Sequence[int]) -> bool:
        """Whether these get theirs, and all who wait do, once ``gone`` have left."""
        for names in self._who_may_start():
            free = self._freed_for(names)
            self._add_gone(free)
            if not self._all_fit(free, [*self._wanted_by(names), *new], self._untold):
                return False
        return True

    def _who_may_start(self) -> Iterator[set[str]]:
        """Every set of newcomers that may have been told to start while the others still wait.

        All of them together are not the worst case: one whose victims free more than it takes may be the
        last to start, and until then the others cannot count on what it leaves over.
        """
        always = self._starting | {
            name for name in self._promises if self._takes_what_it_frees(name)
        }
        optional = sorted(self._promises.keys() - always)
        for count in range(len(optional) + 1):
            for chosen in combinations(optional, count):
                yield always.union(chosen)

    def too_many_wait(self) -> bool:
        """Whether nobody else may join those that wait, because the sets of them would be too many."""
        optional = self._promises.keys() - self._starting
        return sum(not self._takes_what_it_frees(name) for name in optional) >= MOST_WAITING

    def _takes_what_it_frees(self, name: str) -> bool:
        """Whether its victims held whole devices, just as many as it takes: the others never notice it."""
        wanted = self._promises[name]
        freed = [
            units
            for mine in self._node.allocations.values()
            if mine.leaves_for == name and mine.reported
            for _, units in mine.devices.units
        ]
        whole = all(units == UNIT for units in freed) and all(gpu % UNIT == 0 for gpu in wanted)
        return whole and sum(freed) == sum(wanted)

    def _wanted_by(self, names: Collection[str]) -> list[int]:
        return [gpu for name, amounts in self._promises.items() if name in names for gpu in amounts]

    def _all_fit(self, free: Sequence[int], wanted: Sequence[int], untold: Sequence[int]) -> bool:
        """Whether each fits after all the others."""
        return all(
            surely_fits(free, gpu, [*untold, *wanted[:i], *wanted[i + 1 :]])
            for i, gpu in enumerate(wanted)
        )

    def _freed_for(self, newcomers: Collection[str]) -> list[int]:
        """Free units once those have left who leave for these newcomers."""
        free = list(self._free)
        for key, mine in self._node.allocations.items():
            if mine.leaves_for in newcomers and mine.leaves_for and mine.reported:
                self._add(free, key)
        return free

    def _add_gone(self, free: list[int]) -> None:
        for key in self._gone:
            if key in self._node.allocations:
                self._add(free, key)

    def _add(self, free: list[int], key: str) -> None:
        for i, units in self._node.allocations[key].devices.units:
            free[i] += units
