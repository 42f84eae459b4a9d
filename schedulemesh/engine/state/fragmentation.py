"""Fragmentation gradient descent: scores nodes so that idle GPUs remain usable for typical tasks.

From Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent", USENIX ATC 2023. The fragmentation of a node is the idle GPU that a typical task could not use:

    F(node) = sum over kinds k of  frequency(k) * idle GPU-milli that k cannot use

A kind that does not fit at all (or requests no GPU) can use none; one that fits can use every device whose
free fraction is at least what it requests. The typical kinds are the most frequent ones, together 95 % of
all, with renormalised frequencies. A node's score for a task is

    int(100 * sigmoid((F before - F after) / 1000))

and for a share of a device the best score over the devices on which it fits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from schedulemesh.domain.resources import UNIT, Resources

#: The fraction of all tasks that the typical kinds cover.
POPULAR = 0.95
#: Above this many counted tasks all counts are halved, so that recent tasks weigh more.
_MOST_COUNTED = 20_000
_MOST_REMEMBERED = 200_000

#: (CPU, GPU) in units of 1/10,000.
Kind = tuple[int, int]


class _Demand(msgspec.Struct, frozen=True):
    """Typical kinds that request the same GPUs."""

    #: Units of one device, and of how many devices.
    piece: int
    count: int
    #: The CPUs that they request, ascending, and the number of tasks that request at most that.
    cpus: tuple[int, ...]
    tasks: tuple[int, ...]


class Workload:
    """How often each kind of task was admitted, and the fragmentation that follows from it.

    Amounts are exact: F is kept in units of 1/10,000 GPU times the number of typical tasks.
    """

    def __init__(self) -> None:
        self.counts: dict[Kind, int] = {}
        self._total = 0
        #: The counts when the typical kinds were last computed: after fixed numbers of tasks and never during
        #: a query, so that a dry run changes nothing and a snapshot restores the same kinds.
        self.sampled: dict[Kind, int] = {}
        #: The number of tasks after which the typical kinds are computed again.
        self.renew_at = 1
        #: Incremented when the typical kinds change; scores of an older version are invalid.
        self.version = 0
        self._derived = -1
        self._demands: tuple[_Demand, ...] = ()
        self._typical = 0
        self._usable: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}

    def note(self, need: Resources) -> None:
        """Count an admitted task with this need."""
        kind = (need.cpu, need.gpu)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._total += 1
        if self._total > _MOST_COUNTED:
            self._halve()
        elif self._total >= self.renew_at:
            self._renew()

    def learn(self, counts: Mapping[Kind, int]) -> None:
        """Replace all counts by these."""
        self.counts = dict(counts)
        self._total = sum(counts.values())
        self._renew()

    def adopt(
        self, counts: Mapping[Kind, int], sampled: Mapping[Kind, int], renew_at: int | None
    ) -> None:
        """Add a part of a snapshot."""
        self.counts.update(counts)
        self._total = sum(self.counts.values())
        self.sampled.update(sampled)
        self.renew_at = self.renew_at if renew_at is None else renew_at
        self.version += 1

    def score(self, cpu: int, devices: Sequence[int], need: Resources) -> int:
        """The score from 0 to 100 of a node on which the need fits; ``cpu`` and ``devices``: free units."""
        return self.best_device(cpu, devices, need)[0]

    def best_device(self, cpu: int, devices: Sequence[int], need: Resources) -> tuple[int, int]:
        """The score, and for a share of a device the first device that has it; -1 otherwise."""
        before = self._fragment(cpu, devices)
        cpu -= need.cpu
        if need.gpu == 0 or need.gpu >= UNIT:
            after = self._fragment(cpu, _without_whole(devices, need.gpu // UNIT))
            return self._gradient(before - after), -1
        best = (-1, -1)
        tried: set[int] = set()
        for i, free in enumerate(devices):
            if free >= need.gpu and free not in tried:
                tried.add(free)
                remaining = [*devices[:i], free - need.gpu, *devices[i + 1 :]]
                gradient = self._gradient(before - self._fragment(cpu, remaining))
                if gradient > best[0]:
                    best = (gradient, i)
        return best

    def _fragment(self, cpu: int, devices: Sequence[int]) -> int:
        """F of a node with these free units, times the number of typical tasks."""
        self._derive()
        shape = tuple(sorted(devices))
        key = (cpu, shape)
        fragment = self._known.get(key)
        if fragment is None:
            if len(self._known) > _MOST_REMEMBERED:
                self._forget()
            fragment = self._known[key] = self._summed(cpu, shape)
        return fragment

    def _summed(self, cpu: int, shape: tuple[int, ...]) -> int:
        usable = self._usable.get(shape)
        if usable is None:
            usable = self._usable[shape] = tuple(_usable(d, shape) for d in self._demands)
        total = self._typical * sum(shape)
        for demand, units in zip(self._demands, usable, strict=True):
            if units:
                fitting = bisect_right(demand.cpus, cpu)
                if fitting:
                    total -= units * demand.tasks[fitting - 1]
        return total

    def _gradient(self, less: int) -> int:
        milli = less / (self._typical or 1) * 1000 / UNIT
        return int(100 / (1 + math.exp(-milli / 1000)))

    def _renew(self) -> None:
        self.sampled = dict(self.counts)
        self.renew_at = self._total + max(16, self._total // 4)
        self.version += 1

    def _derive(self) -> None:
        """Compute the values derived from the typical kinds, unless they are current."""
        if self._derived == self.version:
            return
        self._derived = self.version
        self._forget()
        typical = typical_kinds(self.sampled)
        self._typical = sum(typical.values())
        by_gpu: dict[int, list[tuple[int, int]]] = {}
        for (cpu, gpu), tasks in typical.items():
            if gpu:
                by_gpu.setdefault(gpu, []).append((cpu, tasks))
        self._demands = tuple(_demand(gpu, by_gpu[gpu]) for gpu in sorted(by_gpu))

    def _forget(self) -> None:
        self._known.clear()
        self._usable.clear()

    def _halve(self) -> None:
        self.learn({kind: n // 2 for kind, n in self.counts.items() if n > 1})


def typical_kinds(counts: Mapping[Kind, int]) -> dict[Kind, int]:
    """The most frequent kinds that together make up 95 % of all, most frequent first."""
    enough = POPULAR * sum(counts.values())
    typical: dict[Kind, int] = {}
    seen = 0
    for kind in sorted(counts, key=lambda kind: (-counts[kind], kind)):
        if seen >= enough:
            break
        typical[kind] = counts[kind]
        seen += counts[kind]
    return typical


def _demand(gpu: int, kinds: Iterable[tuple[int, int]]) -> _Demand:
    cpus, tasks = [], []
    seen = 0
    for cpu, n in sorted(kinds):
        seen += n
        cpus.append(cpu)
        tasks.append(seen)
    return _Demand(min(gpu, UNIT), max(1, gpu // UNIT), tuple(cpus), tuple(tasks))


def _usable(demand: _Demand, devices: Sequence[int]) -> int:
    """The idle units that a demand could use; 0 if it does not fit."""
    enough = [units for units in devices if units >= demand.piece]
    return sum(enough) if len(enough) >= demand.count else 0


def _without_whole(devices: Sequence[int], count: int) -> list[int]:
    """The devices after this many fully free ones were taken."""
    remaining = list(devices)
    for i, units in enumerate(remaining):
        if count and units == UNIT:
            remaining[i] = 0
            count -= 1
    return remaining
