"""Whether GPU amounts certainly fit on a node, whatever devices Ray gives to agents that have not reported
theirs.

Ray chooses the devices of an agent, and the agent reports them once it runs. Until then a share may be on any
device on which it fits, also on one that was promised to a waiting incoming agent, whose victims would then
have been evicted for nothing. So a promise is made only if it holds however the others are placed, and no
agent is admitted to the node meanwhile if it could break that promise.

The test is one-sided: if it returns True, the amounts fit; it may return False although a complete search
would find that they fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations

from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.engine.state.devices import devices_for, gpu_of
from schedulemesh.engine.state.nodes import Node

#: The maximum number of sets of incoming agents that wait on one node, those that wait there for the same
#: agents together; the number of cases doubles with each. Sets that take whole devices from agents which held
#: exactly as many are not counted, nor are those that wait for nobody there.
MOST_WAITING = 6


def has_room(node: Node, need: Resources, *, waits: bool = False) -> bool:
    """Whether the need fits on the node now. ``waits``: the agent starts only after victims have ended, and
    must still fit then.
    """
    if not need.fits(node.free):
        return False
    if need.gpu == 0:
        return True
    if devices_for(node.devices, need.gpu) is None:
        return False
    if not waits and not node.promised:
        return True
    return is_sure(node, (need.gpu,), waits=waits)


def surely_fits(free: Iterable[int], gpu: int, others: Iterable[int]) -> bool:
    """Whether this GPU amount fits on devices with these free units, wherever the others are placed before
    it.

    The others can block a whole device with any share; to block a share they must leave less than it on every
    device, for which their number or their sum may not suffice: each device takes as many of them as the
    largest one would have to be put there.
    """
    shares = [units for units in others if 0 < units < UNIT]
    whole_devices = sum(units // UNIT for units in others if units >= UNIT)
    if gpu >= UNIT:
        return sum(units == UNIT for units in free) - whole_devices - len(shares) >= gpu // UNIT
    to_fill = sorted(units - gpu + 1 for units in free if units >= gpu)
    if whole_devices:
        del to_fill[-whole_devices:]
    most = max(shares, default=UNIT)
    return sum(-(-units // most) for units in to_fill) > len(shares) or sum(to_fill) > sum(shares)


def is_sure(
    node: Node, gpus: Sequence[int], gone: Collection[str] = (), *, waits: bool = False
) -> bool:
    """Whether incoming agents with these GPU amounts may be placed on the node once ``gone`` have ended: no
    promise to a waiting agent is broken, and where they wait for victims themselves, here or elsewhere
    (``waits``), they certainly fit.
    """
    waits = waits or bool(gone)
    gpu_amounts = [gpu for gpu in gpus if gpu]
    if not gpu_amounts or not (node.promised or (waits and has_unreported(node, gone))):
        return True
    cases = _Cases(node, gone)
    if cases.too_many_wait():
        return False
    return cases.can_promise(gpu_amounts) if waits else cases.keep_promises(gpu_amounts)


def has_unreported(node: Node, gone: Collection[str] = ()) -> bool:
    """Whether some allocation there, other than those of ``gone``, has devices that are only assumed."""
    return any(
        allocation.devices.units and not allocation.reported and key not in gone
        for key, allocation in node.allocations.items()
    )


class _Cases:
    """The ways in which the devices of a node may be occupied, given what is known of them."""

    def __init__(self, node: Node, gone: Collection[str]) -> None:
        self._node = node
        #: Free units of each device if the unreported allocations had none.
        self._free = list(node.devices)
        #: GPU amounts of the unreported allocations, without the promised ones.
        self._unreported: list[int] = []
        #: The promised GPU amounts, by incoming agent.
        self._promises: dict[str, list[int]] = {}
        #: What leaves there for each of these.
        self._leaving: dict[str, set[str]] = {}
        #: The incoming agents that are starting already and may be on any device, too.
        self._starting: set[str] = set()
        for key, allocation in node.allocations.items():
            for name in allocation.waiters:
                self._leaving.setdefault(name, set()).add(key)
            if allocation.promised_to and key not in gone:
                self._add(self._free, key)
                self._promises.setdefault(allocation.promised_to, []).append(allocation.wants)
                if allocation.devices.units:
                    self._starting.add(allocation.promised_to)
            elif key in gone:
                continue
            elif allocation.devices.units and not allocation.reported:
                self._add(self._free, key)
                self._unreported.append(gpu_of(allocation.devices))
        self._gone = gone

    def keep_promises(self, new: Sequence[int]) -> bool:
        """Whether the waiting agents still get their devices if these amounts are taken at once."""
        return all(
            self._all_fit(self._freed_for(names), self._wanted_by(names), [*self._unreported, *new])
            for names in self._who_may_start()
        )

    def can_promise(self, new: Sequence[int]) -> bool:
        """Whether these amounts, and those of all waiting agents, fit once ``gone`` have ended."""
        for names in self._who_may_start():
            free = self._freed_for(names)
            if not self._all_fit(free, [*self._wanted_by(names), *new], self._unreported):
                return False
        return True

    def too_many_wait(self) -> bool:
        """Whether the number of waiting agents makes the cases too many to check."""
        return len(self._may_wait_longer()) >= MOST_WAITING

    def _who_may_start(self) -> Iterator[set[str]]:
        """Every set of incoming agents that may have been started while the others still wait.

        All of them together are not the worst case: one whose victims free more than it takes may be the last
        to start, and until then the others cannot use what it leaves over.
        """
        optional = self._may_wait_longer()
        always = self._promises.keys() - {name for names in optional for name in names}
        for count in range(len(optional) + 1):
            for chosen in combinations(optional, count):
                yield always.union(*chosen)

    def _may_wait_longer(self) -> list[list[str]]:
        """The sets of agents that may wait while others are started, and to which it matters. Those of a set
        wait for the same agents on this node, so the worst is that all of them are started.
        """
        sets: dict[frozenset[str], list[str]] = {}
        for name in sorted(self._promises.keys() - self._starting):
            sets.setdefault(frozenset(self._leaving.get(name, ())), []).append(name)
        return [
            names for keys, names in sets.items() if keys and not self._take_all_of(keys, names)
        ]

    def _take_all_of(self, keys: frozenset[str], names: Collection[str]) -> bool:
        """Whether these agents take exactly as many whole devices as these allocations held, so that nothing
        changes for the others.
        """
        gpu_amounts = self._wanted_by(names)
        leaving = [self._node.allocations[key] for key in keys]
        waiting = {name for allocation in leaving for name in allocation.waiters}
        if not (waiting & self._promises.keys()) <= set(names):
            return False
        freed = [
            units
            for allocation in leaving
            if allocation.reported
            for _, units in allocation.devices.units
        ]
        only_whole_devices = all(units == UNIT for units in freed) and all(
            gpu % UNIT == 0 for gpu in gpu_amounts
        )
        return only_whole_devices and sum(freed) == sum(gpu_amounts)

    def _wanted_by(self, names: Collection[str]) -> list[int]:
        return [gpu for name, amounts in self._promises.items() if name in names for gpu in amounts]

    def _all_fit(
        self, free: Sequence[int], gpu_amounts: Sequence[int], unreported: Sequence[int]
    ) -> bool:
        """Whether each fits after all the others; of equal ones each or none."""
        first = {gpu: i for i, gpu in enumerate(gpu_amounts)}
        return all(
            surely_fits(free, gpu, [*unreported, *gpu_amounts[:i], *gpu_amounts[i + 1 :]])
            for gpu, i in first.items()
        )

    def _freed_for(self, agent_names: Collection[str]) -> list[int]:
        """Free units once those have ended that these incoming agents wait for, and ``gone``."""
        free = list(self._free)
        for key, allocation in self._node.allocations.items():
            leaves = allocation.reported and not set(agent_names).isdisjoint(allocation.waiters)
            if leaves or key in self._gone:
                self._add(free, key)
        return free

    def _add(self, free: list[int], key: str) -> None:
        for i, units in self._node.allocations[key].devices.units:
            free[i] += units
