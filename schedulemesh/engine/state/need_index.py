"""The waiting classes of a pool by what they ask for, so that a pass over the queue leaves out many
at once that surely cannot start.

What keeps a task from starting also keeps those from it that ask for more and are alike in all else. So
classes that differ in nothing but CPUs, memory, priority and duration are a group. It has their first entries
in the order of the queue, in blocks of neighbours, each with the least that any of them asks for: where that
is refused, all of them are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

import msgspec

from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.engine.state.fair_order import Entry

#: How many classes are in a block at most.
BLOCK = 32

#: What the classes of a group have in common: those labels of their tasks that rules of preemption name, the
#: labels of the nodes that they ask for, and how much of GPUs and of custom resources.
Alike = tuple[tuple[tuple[str, str], ...], NodeLabels, int, tuple[tuple[str, int], ...]]


class LeastNeed(msgspec.Struct, kw_only=True, gc=False):
    """Neighbours of a group, or one class alone: none of them asks for less."""

    #: The places of the first and of the last one.
    first: Entry
    last: Entry
    #: As in ``Resources``.
    cpu: int
    memory: int
    #: None of their tasks has declared a shorter duration or time limit, in seconds.
    shortest: float
    #: None has a higher one.
    priority: float


def joined(needs: Iterable[LeastNeed]) -> LeastNeed:
    """The neighbours of all of these, which are in their order; there has to be one."""
    each = iter(needs)
    one = next(each)
    last, cpu, memory, shortest, priority = (
        one.last,
        one.cpu,
        one.memory,
        one.shortest,
        one.priority,
    )
    for other in each:
        last = other.last
        cpu = min(cpu, other.cpu)
        memory = min(memory, other.memory)
        shortest = min(shortest, other.shortest)
        priority = max(priority, other.priority)
    return LeastNeed(
        first=one.first, last=last, cpu=cpu, memory=memory, shortest=shortest, priority=priority
    )


class _Block:
    """Some neighbours of a group."""

    __slots__ = ("entries", "least", "needs")

    def __init__(self, entries: list[Entry], needs: list[LeastNeed]) -> None:
        #: The places of the classes, sorted, and each class alone; at least one.
        self.entries, self.needs = entries, needs
        #: All of them.
        self.least = joined(needs)

    def renew(self) -> None:
        """Another class is among them, or one asks for something else."""
        self.least = joined(self.needs)


class NeedGroup:
    """The classes of one group in the order of the queue."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        #: The last entry of each block.
        self._lasts: list[Entry] = []
        #: All of them; None: not looked at since the last change.
        self._least: LeastNeed | None = None

    def add(self, need: LeastNeed) -> None:
        """Add a class."""
        if not self.blocks:
            self._insert(0, _Block([need.first], [need]))
            return
        number = min(bisect_left(self._lasts, need.first), len(self.blocks) - 1)
        block = self.blocks[number]
        index = bisect_left(block.entries, need.first)
        block.entries.insert(index, need.first)
        block.needs.insert(index, need)
        if len(block.entries) <= BLOCK:
            self._note(number)
            return
        self._drop(number)
        middle = BLOCK // 2
        self._insert(number, _Block(block.entries[middle:], block.needs[middle:]))
        self._insert(number, _Block(block.entries[:middle], block.needs[:middle]))

    def remove(self, entry: Entry) -> None:
        """Remove the class at a place."""
        number = bisect_left(self._lasts, entry)
        block = self.blocks[number]
        index = bisect_left(block.entries, entry)
        del block.entries[index], block.needs[index]
        if block.entries:
            self._note(number)
        else:
            self._drop(number)

    def shorten(self, entry: Entry, shortest: float) -> None:
        """A task of the class at a place has declared this duration, or one as short."""
        number = bisect_left(self._lasts, entry)
        block = self.blocks[number]
        block.needs[bisect_left(block.entries, entry)].shortest = shortest
        self._note(number)

    def first_behind(
        self,
        entry: Entry | None,
        is_refused: Callable[[LeastNeed], bool],
        *,
        begin: bool = False,
    ) -> Entry | None:
        """The place of the first class behind this place, or of all, that is not refused; None: all are.
        ``begin``: the one at this place is the first that is looked at.
        """
        bisect = bisect_left if begin else bisect_right
        if not self.blocks:
            return None
        if self._least is None:
            self._least = joined([block.least for block in self.blocks])
        if is_refused(self._least):
            return None
        number = 0 if entry is None else bisect(self._lasts, entry)
        for block in self.blocks[number:]:
            if is_refused(block.least):
                continue
            index = 0 if entry is None else bisect(block.entries, entry)
            for need in block.needs[index:]:
                if not is_refused(need):
                    return need.first
        return None

    def _insert(self, number: int, block: _Block) -> None:
        self._least = None
        self.blocks.insert(number, block)
        self._lasts.insert(number, block.least.last)

    def _drop(self, number: int) -> None:
        self._least = None
        del self.blocks[number], self._lasts[number]

    def _note(self, number: int) -> None:
        self._least = None
        block = self.blocks[number]
        block.renew()
        self._lasts[number] = block.least.last


class NeedIndex:
    """The groups of a pool. It only spares work: without it each class is tried."""

    def __init__(self) -> None:
        self.groups: dict[Alike, NeedGroup] = {}

    def add(self, alike: Alike, need: LeastNeed) -> None:
        """Add a class to its group."""
        group = self.groups.get(alike)
        if group is None:
            group = self.groups[alike] = NeedGroup()
        group.add(need)

    def remove(self, alike: Alike, entry: Entry) -> None:
        """Remove the class of a group that has this place."""
        group = self.groups[alike]
        group.remove(entry)
        if not group.blocks:
            del self.groups[alike]
