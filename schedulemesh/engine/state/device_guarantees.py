"""Whether GPU amounts surely fit on a node, wherever Ray puts the agents that have not told their devices.

Ray chooses the devices of an agent, and the agent tells them once it runs. Until then a share may lie on any
device with room, also on one that a waiting newcomer was promised: its victims would have left in vain. So a
promise is made only where it holds for every way in which the others may be placed, and nobody is admitted
beside a waiting newcomer who could break its promise.

The test is one-sided: where it says yes, the amounts fit; it may say no where a closer look would find that
they fit, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from schedulemesh.domain.resources import UNIT

if TYPE_CHECKING:
    from schedulemesh.engine.state.nodes import Node


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
        alone = all(
            self._all_fit(
                self._freed_for([name]), amounts, [*self._untold, *self._started(name), *new]
            )
            for name, amounts in self._promises.items()
        )
        return alone and self._all_fit(
            self._freed_for(self._promises), self._promised(), [*self._untold, *new]
        )

    def can_promise(self, new: Sequence[int]) -> bool:
        """Whether these get theirs, and all who wait do, once ``gone`` have left."""
        free = list(self._free)
        self._add_gone(free)
        if not self._all_fit(free, new, [*self._untold, *self._started()]):
            return False
        if not self._promises:
            return True
        free = self._freed_for(self._promises)
        self._add_gone(free)
        return self._all_fit(free, [*self._promised(), *new], self._untold)

    def _started(self, besides: str = "") -> list[int]:
        """The amounts of newcomers that start already, apart from this one's."""
        names = self._starting - {besides}
        return [gpu for name in sorted(names) for gpu in self._promises[name]]

    def _promised(self) -> list[int]:
        return [gpu for amounts in self._promises.values() for gpu in amounts]

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
