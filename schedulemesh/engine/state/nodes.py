"""The book of nodes and GPU devices: what is physically free where.

A pool's quota is a promise; this is what the cluster really has. GPU shares are kept per device,
because 0.5 + 0.5 free on two devices is not one GPU. Until an agent reports where it landed, the book
assumes the least favourable device for it: the emptiest.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

import msgspec

from schedulemesh.domain.labels import Labels
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.placement.fragmentation import Workload
from schedulemesh.engine.state.device_guarantees import is_sure
from schedulemesh.engine.state.node_ranking import Rankings

_EMPTY = Devices()
_INFINITY = float("inf")


class Allocation(msgspec.Struct, kw_only=True, gc=False):
    """What one agent holds on a node."""

    #: CPU, memory and custom resources.
    held: Resources
    #: Units of each device.
    devices: Devices = _EMPTY
    #: Whether the agent itself said so; otherwise the devices are assumed.
    reported: bool = False
    #: The newcomer whose claim this is while others leave for it, until it has told its devices.
    promised_to: str = ""
    #: The GPU units that such a claim will hold.
    wants: int = 0
    #: The newcomer for whom this leaves.
    leaves_for: str = ""


class Node(msgspec.Struct, kw_only=True):
    """One node. ``free`` and ``devices`` are always the total less what stands here and what others use."""

    node_id: str
    total: Resources
    labels: Labels = {}
    #: CPU, memory and custom resources nobody holds; its gpu is the sum over the devices.
    free: Resources = NOTHING
    #: Units free of each GPU device; below 0 where agents report more than there is.
    devices: list[int] = []
    #: Where in ``devices`` the GPU of a name stands, for those that an agent has reported.
    slots: dict[str, int] = {}
    #: What Ray work that is not ours uses.
    external_usage: Resources = NOTHING
    cordoned: bool = False
    #: By agent name.
    allocations: dict[str, Allocation] = {}
    #: Grows with every change of what stands here or of its tasks.
    version: int = 0
    #: The claims here that others leave for.
    promised: tuple[str, ...] = ()
    #: What the victim search summed up for one version; it alone reads it.
    summary: object = None

    @property
    def key(self) -> tuple[int, int, str]:
        """The place in the index: by free GPU, then free CPU, then id."""
        return (self.free.gpu, self.free.cpu, self.node_id)

    def fits(self, need: Resources, *, waits: bool = False) -> bool:
        """Whether the node has room for this now. ``waits``: others leave before it starts, and it must still
        have room then.
        """
        if not need.fits(self.free):
            return False
        if need.gpu == 0:
            return True
        if devices_for(self.devices, need.gpu) is None:
            return False
        return is_sure(self, (need.gpu,), waits=waits)


def devices_for(free: list[int], gpu: int) -> Devices | None:
    """The devices that the book takes for this GPU amount; None: they are not there.

    A share is taken from the emptiest device, which is the worst that Ray could do to later requests;
    whole devices must be wholly free.
    """
    if gpu == 0:
        return _EMPTY
    if gpu < UNIT:
        best = max(range(len(free)), key=free.__getitem__, default=-1)
        return Devices(units=((best, gpu),)) if best >= 0 and free[best] >= gpu else None
    whole = [i for i, units in enumerate(free) if units == UNIT][: gpu // UNIT]
    return Devices(units=tuple((i, UNIT) for i in whole)) if len(whole) * UNIT == gpu else None


def devices_for_all(free: Sequence[int], gpus: Sequence[int]) -> tuple[Devices, ...] | None:
    """The devices that the book takes for these GPU amounts on one node, in their order; None: they do not
    fit together. Whole devices choose first, then shares, in whatever order lets all of them fit.
    """
    left = list(free)
    chosen: dict[int, Devices] = {}
    order = sorted(range(len(gpus)), key=lambda i: -gpus[i])
    for i in (i for i in order if gpus[i] >= UNIT or not gpus[i]):
        devices = devices_for(left, gpus[i])
        if devices is None:
            return None
        _take_off(left, devices)
        chosen[i] = devices
    shares = [i for i in order if 0 < gpus[i] < UNIT]
    if not _share_out(left, shares, gpus, chosen, set()):
        return None
    return tuple(chosen[i] for i in range(len(gpus)))


def _share_out(
    free: list[int],
    shares: list[int],
    gpus: Sequence[int],
    chosen: dict[int, Devices],
    in_vain: set[tuple[tuple[int, ...], tuple[int, ...]]],
) -> bool:
    """Choose devices for these shares; whether that can be done. ``in_vain``: what was tried already."""
    if not shares:
        return True
    key = (tuple(sorted(free)), tuple(gpus[i] for i in shares))
    if key in in_vain:
        return False
    for at, i in enumerate(shares):
        if at and gpus[i] == gpus[shares[at - 1]]:
            continue
        devices = devices_for(free, gpus[i])
        if devices is None:
            break
        left = list(free)
        _take_off(left, devices)
        if _share_out(left, shares[:at] + shares[at + 1 :], gpus, chosen, in_vain):
            chosen[i] = devices
            return True
    in_vain.add(key)
    return False


def _take_off(free: list[int], devices: Devices) -> None:
    for i, units in devices.units:
        free[i] -= units


class Cluster:
    """All nodes, with an index that finds the fullest or emptiest one with room, and rankings by any
    other strategy.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        #: Which kinds of tasks were admitted, and how often.
        self.workload = Workload()
        #: Keys of all nodes that take agents.
        self._index: list[tuple[int, int, str]] = []
        self._rankings = Rankings(self.nodes, self.workload)

    def see(self, report: NodeReport) -> None:
        """The node is like this; what stands on it stays."""
        node = self.nodes.get(report.node_id)
        if node is None:
            node = Node(
                node_id=report.node_id, total=report.total, devices=[], slots={}, allocations={}
            )
            self.nodes[report.node_id] = node
        else:
            self._unindex(node)
        self._rankings.rescale()
        node.total, node.labels = report.total, report.labels
        if report.external_usage is not None:
            node.external_usage = report.external_usage
        self._recount(node)
        self._index_again(node)

    def adopt(self, node: Node) -> None:
        """A node with all that stands on it, as a snapshot has it."""
        self.nodes[node.node_id] = node
        self._index_again(node)

    def lose(self, node_id: str) -> None:
        """The node is gone, with all that stood on it."""
        node = self.nodes.pop(node_id)
        self._unindex(node)
        self._rankings.rescale()

    def cordon(self, node_id: str, cordoned: bool) -> None:
        """Whether the node takes new agents."""
        node = self.nodes[node_id]
        self._unindex(node)
        node.cordoned = cordoned
        self._index_again(node)

    def take(self, node_id: str, agent_name: str, held: Resources, devices: Devices) -> None:
        """The agent holds this much more on the node; a node that is gone holds nothing."""
        node = self.nodes.get(node_id)
        if node is None:
            return
        self._unindex(node)
        mine = node.allocations.get(agent_name)
        self._charge(node, held, devices, 1)
        if mine is None:
            node.allocations[agent_name] = Allocation(held=held, devices=devices)
        else:
            mine.held = mine.held + held
            mine.devices = add_devices(mine.devices, devices)
        self._index_again(node)

    def leave(self, node_id: str, agent_name: str) -> None:
        """The agent holds nothing on the node any more."""
        node = self.nodes.get(node_id)
        if node is None or agent_name not in node.allocations:
            return
        self._unindex(node)
        mine = node.allocations.pop(agent_name)
        node.promised = tuple(key for key in node.promised if key != agent_name)
        self._charge(node, mine.held, mine.devices, -1)
        self._index_again(node)

    def promise(self, node_id: str, key: str, gpu: int, newcomer: str) -> None:
        """Others leave for this claim of the newcomer; it gets so much GPU then."""
        node = self.nodes.get(node_id)
        if node is None or not gpu:
            return
        mine = node.allocations.setdefault(key, Allocation(held=NOTHING))
        mine.promised_to, mine.wants = newcomer, gpu
        node.promised = tuple(sorted({*node.promised, key}))
        self._touch(node)

    def release_for(self, node_id: str, key: str, newcomer: str) -> None:
        """What stands here leaves for this newcomer."""
        node = self.nodes.get(node_id)
        if node is not None and key in node.allocations:
            node.allocations[key].leaves_for = newcomer
            self._touch(node)

    def fulfil(self, node_id: str, key: str) -> None:
        """The claim is no promise any more."""
        node = self.nodes.get(node_id)
        if node is not None and key in node.promised:
            node.allocations[key].promised_to = ""
            node.promised = tuple(other for other in node.promised if other != key)
            self._touch(node)

    def confirm(
        self, node_id: str, agent_name: str, need: Resources, gpu_ids: tuple[str, ...]
    ) -> None:
        """The agent lives here on these GPUs; those assumed for others move out of the way, and so do
        earlier reports that this one contradicts.

        One that cannot tell its devices keeps those assumed for it.
        """
        node = self.nodes.get(node_id)
        if node is None:
            return
        self.fulfil(node_id, agent_name)
        mine = node.allocations.get(agent_name)
        devices = named_devices(node, agent_name, need.gpu, gpu_ids)
        told = bool(devices.units) or not need.gpu
        if mine is not None and (mine.devices == devices or not told or not need.gpu):
            mine.reported = told
            return
        if not told:
            devices = devices_for(node.devices, need.gpu) or _worst_devices(node.devices, need.gpu)
        self._unindex(node)
        held = msgspec.structs.replace(need, gpu=0)
        node.allocations[agent_name] = Allocation(held=held, devices=devices, reported=told)
        _doubt(node, agent_name)
        self._recount(node)
        self._index_again(node)

    def choose(self, need: Resources, strategy: str) -> Node | None:
        """The node with room that a built-in strategy likes best; None: there is none."""
        return next(self.with_room(need, strategy), None)

    def with_room(self, need: Resources, strategy: str) -> Iterator[Node]:
        """The open nodes with room, in the order of a built-in strategy; found lazily."""
        if strategy == "bin_pack":
            return self._fullest(need)
        if strategy == "spread":
            return self._emptiest(need)
        return self._rankings.ranked(strategy, need)

    def could_ever(self, need: Resources) -> bool:
        """Whether any node, wholly free, would have room for this."""
        return any(need.fits(node.total) for node in self.nodes.values())

    def check_index(self) -> None:
        """Raise AssertionError unless exactly the open nodes are indexed, under their present keys."""
        keys = sorted(node.key for node in self.nodes.values() if not node.cordoned)
        if keys != self._index:
            raise AssertionError("the node index is not the nodes that take agents")

    def open_nodes(self) -> Iterator[Node]:
        """The nodes that take agents, in the order of their ids."""
        for node_id in sorted(self.nodes):
            if not self.nodes[node_id].cordoned:
                yield self.nodes[node_id]

    def _fullest(self, need: Resources) -> Iterator[Node]:
        """Nodes with room by ascending free GPU, then CPU; skips along the index where CPU is short."""
        index = self._index
        at = bisect_left(index, self._least_key(need))
        while at < len(index):
            free_gpu, free_cpu, node_id = index[at]
            if need.cpu and free_cpu < need.cpu:
                at = bisect_left(index, (free_gpu, need.cpu, ""), at + 1)
                continue
            node = self.nodes[node_id]
            if node.fits(need):
                yield node
            at += 1

    def _emptiest(self, need: Resources) -> Iterator[Node]:
        least = bisect_left(self._index, self._least_key(need))
        for at in range(len(self._index) - 1, least - 1, -1):
            node = self.nodes[self._index[at][2]]
            if node.fits(need):
                yield node

    def _least_key(self, need: Resources) -> tuple[float, float, str]:
        """No node with room comes before this. Of a kind that is not asked for, a node may have less
        than nothing: others may use what we hold.
        """
        return (need.gpu or -_INFINITY, need.cpu or -_INFINITY, "")

    def _touch(self, node: Node) -> None:
        node.version += 1
        self._rankings.touch(node.node_id)

    def _index_again(self, node: Node) -> None:
        self._touch(node)
        if not node.cordoned:
            insort(self._index, node.key)

    def _unindex(self, node: Node) -> None:
        if not node.cordoned:
            del self._index[bisect_left(self._index, node.key)]

    def _charge(self, node: Node, held: Resources, devices: Devices, sign: int) -> None:
        gpu = 0
        for i, units in devices.units:
            if i < len(node.devices):
                node.devices[i] -= sign * units
                gpu += units
        delta = held if not gpu else msgspec.structs.replace(held, gpu=gpu)
        node.free = node.free - delta if sign > 0 else node.free + delta

    def _recount(self, node: Node) -> None:
        """Sum the node up afresh: reported agents first, what others use, then the assumed ones anew,
        whole devices before shares.
        """
        node.devices = _whole_devices(node)
        node.free = msgspec.structs.replace(node.total, gpu=sum(node.devices))
        assumed = []
        for mine in node.allocations.values():
            if mine.reported or not mine.devices.units:
                self._charge(node, mine.held, mine.devices, 1)
            else:
                assumed.append((_gpu(mine.devices), mine))
        others = msgspec.structs.replace(node.external_usage, gpu=0)
        self._charge(node, others, _worst_devices(node.devices, node.external_usage.gpu), 1)
        for gpu, mine in sorted(assumed, key=_amount, reverse=True):
            mine.devices = devices_for(node.devices, gpu) or mine.devices
            self._charge(node, mine.held, mine.devices, 1)


def add_devices(left: Devices, right: Devices) -> Devices:
    """The units of both, device by device."""
    if not right.units:
        return left
    total = dict(left.units)
    for i, units in right.units:
        total[i] = total.get(i, 0) + units
    return Devices(units=tuple(sorted(total.items())))


def named_devices(node: Node, agent_name: str, gpu: int, gpu_ids: tuple[str, ...]) -> Devices:
    """The devices of these names; nothing where they cannot be what this amount of GPU stands on.

    A name that is new takes the place of its number, or the first one that has no name.
    """
    count = max(1, gpu // UNIT)
    if not gpu or len(gpu_ids) != count or len(set(gpu_ids)) != count:
        return _EMPTY
    slots = dict(node.slots)
    for name in gpu_ids:
        if name not in slots and (slot := _new_slot(node, slots, agent_name, name)) is not None:
            slots = {other: i for other, i in slots.items() if i != slot} | {name: slot}
    if not all(name in slots for name in gpu_ids):
        return _EMPTY
    node.slots = slots
    return Devices(units=tuple(sorted((slots[name], min(gpu, UNIT)) for name in gpu_ids)))


def _new_slot(node: Node, slots: dict[str, int], agent_name: str, name: str) -> int | None:
    """The place of a GPU whose name is heard for the first time; None: there are no more GPUs."""
    count = -(-node.total.gpu // UNIT)
    nameless = [i for i in range(count) if i not in slots.values()]
    if name.isdecimal() and int(name) in nameless:
        return int(name)
    if nameless:
        return nameless[0]
    # A name that nobody who stands there uses was a mistake, or is a device's former one.
    used = {
        i
        for other, allocations in node.allocations.items()
        if allocations.reported and other != agent_name
        for i, _ in allocations.devices.units
    }
    return next((i for i in range(count) if i not in used), None)


def _doubt(node: Node, agent_name: str) -> None:
    """Agents that reported a device which this one's report leaves no room on are somewhere else by now,
    or gone: where they stand is assumed again.
    """
    taken = dict(node.allocations[agent_name].devices.units)
    if not node.allocations[agent_name].reported or not taken:
        return
    for name, other in reversed(node.allocations.items()):
        if name == agent_name or not other.reported:
            continue
        for i, units in other.devices.units:
            if i in taken and taken[i] + units > UNIT:
                other.reported = False
                break
        else:
            for i, units in other.devices.units:
                if i in taken:
                    taken[i] += units


def _whole_devices(node: Node) -> list[int]:
    """The devices of a node on which nobody stands; one that it has no more, and somebody holds, is empty."""
    whole, spare = divmod(node.total.gpu, UNIT)
    devices = [UNIT] * whole + ([spare] if spare else [])
    held = [i for mine in node.allocations.values() for i, _ in mine.devices.units]
    return devices + [0] * (max(held, default=-1) + 1 - len(devices))


def _worst_devices(free: list[int], gpu: int) -> Devices:
    """Devices for an amount of which only the sum is known: whole ones first, then a share of the next.

    What exceeds all that is free is charged to the first device, whose free units become negative.
    """
    taken = {}
    for i, units in enumerate(free):
        part = max(0, min(units, gpu))
        if part:
            taken[i] = part
            gpu -= part
    if gpu and free:
        taken[0] = taken.get(0, 0) + gpu
    return Devices(units=tuple(sorted(taken.items())))


def _gpu(devices: Devices) -> int:
    return sum(units for _, units in devices.units)


def _amount(entry: tuple[int, Allocation]) -> int:
    return entry[0]
