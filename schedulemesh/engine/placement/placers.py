"""Ray's four placement strategies: which of some nodes the bundles of a group are placed on.

STRICT_PACK: all on one node. PACK: on few nodes. SPREAD: on many. STRICT_SPREAD: each on a node of its own.
The largest bundles are placed first. A placement is found wherever one exists: for STRICT_SPREAD by
matching bundles and nodes (augmenting paths), for PACK and SPREAD by a greedy choice and, where that fails,
by an exact search up to its limits (``exact``). How few or how many nodes PACK and SPREAD use is left to
the greedy choice.

A group of several parts is placed part by part, each by the strategy on what the former ones leave free.
Where that fails and each part is to be on one node, the nodes of the parts are searched exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import groupby, islice

import msgspec
from sortedcontainers import SortedKeyList

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, UNIT, Resources, least, sum_of
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.placement.exact import assign
from schedulemesh.engine.state.device_guarantees import has_unreported, is_sure
from schedulemesh.engine.state.devices import count_of, devices_for, devices_for_all
from schedulemesh.engine.state.nodes import Node

#: How many sizes of bundles are tried on nodes to find the one that takes most of a group: some ms.
_MOST_TRIALS = 1_000
#: The strategies by which a group is on the fullest node that takes all of it, where there is one.
_PACKING = ("PACK", "STRICT_PACK")


class BundlePlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The node of each bundle of a group, in the order of the bundles."""

    node_ids: tuple[str, ...]


class NoPlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a group has no room: the first bundle without room, and what the closest node lacks."""

    bundle: int
    short: Resources = NOTHING
    node_id: str | None = None
    reason: str = ""
    #: The level of the topology of which one domain must hold what is needed, the domain that has the most
    #: room, and how much that is; empty: the topology is not the reason.
    level: str = ""
    domain: str = ""
    needed: Resources = NOTHING
    free: Resources = NOTHING
    #: How many slices there are, and how many of them have room (0: nobody knows); without slices 0.
    slices: int = 0
    slices_placed: int = 0
    #: After so many sets of domains the search ended, with others untried; 0: all were tried.
    trials: int = 0


class FreeNode:
    """Free resources of one node, on which bundles are placed tentatively."""

    __slots__ = ("_gpus", "_node", "_waits", "amounts", "devices", "node_id", "removed", "taken")

    def __init__(self, node: Node, *, total: bool, waits: bool) -> None:
        #: The node, where its promises count; None: all of it counts as free.
        self._node = None if total else node
        self._waits = waits
        self.node_id = node.node_id
        #: What counts as removed, and the GPU amounts of the bundles that were put here.
        self.removed: set[str] = set()
        self._gpus: list[int] = []
        self.amounts = node.total if total else node.free
        self.devices = _all_devices(node) if total else list(node.devices)
        #: Whether a bundle of the present group was put here.
        self.taken = False

    def copy(self) -> FreeNode:
        """The same, to be changed by itself."""
        twin = object.__new__(FreeNode)
        twin.node_id, twin.amounts, twin.taken = self.node_id, self.amounts, self.taken
        twin._node, twin.removed, twin._gpus = self._node, self.removed, list(self._gpus)
        twin._waits = self._waits
        twin.devices = list(self.devices)
        return twin

    def fits(self, need: Resources) -> bool:
        """Whether this has room beside what was put here."""
        if not need.fits(self.amounts):
            return False
        if not need.gpu:
            return True
        if devices_for(self.devices, need.gpu) is None:
            return False
        return self._sure([*self._gpus, need.gpu])

    def takes(self, needs: Sequence[Resources]) -> bool:
        """Whether all of these have room together. Only before anything was put here."""
        total = needs[0] if len(needs) == 1 else sum_of(needs)
        return self.holds(total, [need.gpu for need in needs if need.gpu])

    def holds(self, total: Resources, gpus: Sequence[int]) -> bool:
        """The same, given their sum and the GPU amounts of those that have any."""
        return total.fits(self.amounts) and self.takes_gpus(gpus)

    def takes_gpus(self, gpus: Sequence[int]) -> bool:
        """Whether there are devices for these GPU amounts together."""
        if not gpus:
            return True
        if len(set(gpus)) == 1:
            if count_of(self.devices, gpus[0], len(gpus)) < len(gpus):
                return False
        elif devices_for_all(self.devices, gpus) is None:
            return False
        return self._sure([*self._gpus, *gpus])

    def _sure(self, gpus: list[int]) -> bool:
        return self._node is None or is_sure(self._node, gpus, self.removed, waits=self._waits)

    def signature(self) -> object:
        """See exact.Place; a node with promises is like no other."""
        return (self.amounts, tuple(sorted(self.devices)), self.node_id if self._unlike else "")

    @property
    def _unlike(self) -> bool:
        """Whether others with as much free may not take the same: for its promises, or for devices that are
        only assumed.
        """
        node = self._node
        if node is None or not node.devices:
            return False
        waits = self._waits or bool(self.removed)
        return bool(node.promised) or (waits and has_unreported(node, self.removed))

    def put(self, need: Resources) -> None:
        """Take the room for this."""
        without_gpu = msgspec.structs.replace(need, gpu=0) if need.gpu else need
        self.move(without_gpu, devices_for(self.devices, need.gpu) or Devices(), -1)
        self._gpus.append(need.gpu)
        self.taken = True

    def put_most(self, need: Resources, most: int) -> int:
        """Take the room for as many of these as fit, up to so many; returns how many."""
        count = self.count(need, most)
        if not count:
            return 0
        without_gpu = msgspec.structs.replace(need, gpu=0) if need.gpu else need
        self.amounts -= without_gpu.times(count)
        if need.gpu:
            for _ in range(count):
                self.move(NOTHING, devices_for(self.devices, need.gpu) or Devices(), -1)
            self._gpus += [need.gpu] * count
        self.taken = True
        return count

    def count(self, need: Resources, most: int) -> int:
        """How many of these have room beside what was put here, up to so many."""
        most = need.count_in(self.amounts, most)
        if not need.gpu:
            return most
        few, many = 0, count_of(self.devices, need.gpu, min(most, self.amounts.gpu // need.gpu))
        while few < many:
            middle = (few + many + 1) // 2
            if self._sure([*self._gpus, *[need.gpu] * middle]):
                few = middle
            else:
                many = middle - 1
        return few

    def move(self, amount: Resources, devices: Devices, sign: int) -> None:
        """Free (-1: take) so much CPU, memory and custom resources, and these devices."""
        gpu = 0
        for i, units in devices.units:
            # A node that is taken as wholly free has only the devices that it has now.
            if i < len(self.devices):
                self.devices[i] += sign * units
                gpu += units
        if gpu:
            amount = Resources(cpu=amount.cpu, memory=amount.memory, gpu=gpu, custom=amount.custom)
        self.amounts = self.amounts + amount if sign > 0 else self.amounts - amount

    def order(self) -> tuple[int, int, str]:
        """The sort key by free resources, the fullest first."""
        return (self.amounts.gpu, self.amounts.cpu, self.node_id)


def on_one_node(shape: GroupShape) -> bool:
    """Whether all its bundles are placed on one node."""
    return shape.parts == 1 and (len(shape.bundles) == 1 or shape.strategy == "STRICT_PACK")


def place_bundles(shape: GroupShape, free: list[FreeNode]) -> BundlePlacement | NoPlacement:
    """The placement of a group on these nodes, or why there is none. The nodes are changed."""
    if shape.parts > 1:
        return _in_parts(shape, free)
    return _PLACERS["STRICT_PACK" if on_one_node(shape) else shape.strategy](shape, free)


def _in_parts(shape: GroupShape, free: list[FreeNode]) -> BundlePlacement | NoPlacement:
    """Place the parts one after the other; see the module's docstring."""
    nodes, node_ids = _PartNodes(shape, free), list[str]()
    for part in shape.each_part:
        placement = nodes.place(part)
        if isinstance(placement, NoPlacement):
            missing = msgspec.structs.replace(placement, bundle=len(node_ids) + placement.bundle)
            return _parts_exactly(shape, free) or missing
        node_ids += placement.node_ids
    return BundlePlacement(node_ids=tuple(node_ids))


class _PartNodes:
    """The nodes on which the parts of a group are put one after the other. For each part only those are
    looked at that it may get, which changes no placement.
    """

    def __init__(self, shape: GroupShape, free: Sequence[FreeNode]) -> None:
        self._smallest = least(shape.bundles)
        self._all = {node.node_id: node.copy() for node in free}
        able = (node for node in self._all.values() if self._smallest.fits(node.amounts))
        #: Those that may have room for a bundle, the fullest first.
        self._able: SortedKeyList[FreeNode] = SortedKeyList(able, key=FreeNode.order)

    def place(self, part: GroupShape) -> BundlePlacement | NoPlacement:
        """Put a part on nodes; where it has no room, on none."""
        placement = (
            (self._on_first(part) if part.strategy in _PACKING else self._spread_out(part))
            # It says what is missing, too.
            or place_bundles(part, [node.copy() for node in self._all.values()])
        )
        if isinstance(placement, BundlePlacement):
            self._put(part, placement)
        return placement

    def _on_first(self, part: GroupShape) -> BundlePlacement | None:
        """All on the fullest node that takes all; None: no node does."""
        total, gpus = part.total, [need.gpu for need in part.bundles if need.gpu]
        groups = _alike(part)
        for node in self._able:
            if node.holds(total, gpus) and (
                on_one_node(part) or sum(_counts_on(node.copy(), groups)) == len(part.bundles)
            ):
                return all_on(part, node.node_id)
        return None

    def _spread_out(self, part: GroupShape) -> BundlePlacement | None:
        """As on all nodes, because each bundle goes to one of the first that have room for it, as many as the
        part has bundles; None: it has no room.
        """
        if on_one_node(part):
            return self._on_first(part)
        in_order = reversed if part.strategy == "SPREAD" else iter
        count, nodes = len(part.bundles), dict[str, FreeNode]()
        for need in set(part.bundles):
            able = (node for node in in_order(self._able) if node.fits(need))
            nodes.update((node.node_id, node) for node in islice(able, count))
        placement = place_bundles(part, [node.copy() for node in nodes.values()])
        return placement if isinstance(placement, BundlePlacement) else None

    def _put(self, part: GroupShape, placement: BundlePlacement) -> None:
        for node_id in set(placement.node_ids):
            self._able.discard(self._all[node_id])
        for need, node_id in zip(part.bundles, placement.node_ids, strict=True):
            self._all[node_id].put(need)
        for node_id in set(placement.node_ids):
            node = self._all[node_id]
            node.taken = False
            if self._smallest.fits(node.amounts):
                self._able.add(node)


def _parts_exactly(shape: GroupShape, free: Sequence[FreeNode]) -> BundlePlacement | None:
    """A placement with each part on one node, if that is asked for and there is one; of whole GPUs, whose
    number alone decides whether several bundles fit.
    """
    parts = shape.each_part
    if not on_one_node(parts[0]) or any(need.gpu % UNIT for need in shape.bundles):
        return None
    totals = msgspec.structs.replace(
        shape, bundles=tuple(part.total for part in parts), strategy="PACK", parts=1
    )
    placement = _exactly(totals, free)
    if placement is None:
        return None
    size = len(parts[0].bundles)
    return BundlePlacement(node_ids=tuple(n for n in placement.node_ids for _ in range(size)))


def _strict_pack(shape: GroupShape, free: list[FreeNode]) -> BundlePlacement | NoPlacement:
    total, gpus = shape.total, [need.gpu for need in shape.bundles if need.gpu]
    for node in sorted(free, key=FreeNode.order):
        if node.holds(total, gpus):
            return all_on(shape, node.node_id)
    closest = _closest(total, free)
    return NoPlacement(
        bundle=0,
        short=_lack(total, closest),
        node_id=None if closest is None else closest.node_id,
        reason=_no_node(free) or (f"one node must hold {total}" if len(shape.bundles) > 1 else ""),
    )


def _pack(shape: GroupShape, free: list[FreeNode]) -> BundlePlacement | NoPlacement:
    """Repeatedly fill the node that has room for most of the remaining bundles; of equal ones the fullest.
    Once that has taken ``_MOST_TRIALS``, the emptiest node instead: others wait for the decision.
    """
    smallest = least(shape.bundles)
    able = (node for node in free if not node.taken and smallest.fits(node.amounts))
    order = sorted(able, key=FreeNode.order)
    if len(set(shape.bundles)) == 1:
        return _pack_alike(shape, order, free)
    groups = _alike(shape)
    count, trials, put = len(shape.bundles), 0, dict[int, str]()
    while count:
        best: tuple[int, FreeNode, list[int]] | None = None
        seen = set()
        for node in order if trials < _MOST_TRIALS else reversed(order):
            if best and trials >= _MOST_TRIALS:
                break
            if node.taken or (best and _most_of(smallest, node, count) <= best[0]):
                continue
            if (kind := node.signature()) in seen:
                continue  # it takes the same as one that comes before it
            seen.add(kind)
            trials += len(groups)
            counts = _counts_on(node.copy(), groups)
            if (total := sum(counts)) > (best[0] if best else 0):
                best = (total, node, counts)
                if total == count:
                    break
        if best is None:
            return _exactly(shape, free) or _none_left(shape, groups[0][1][0], free)
        total, node, counts = best
        node.taken = True
        for (_, bundles), taken in zip(groups, counts, strict=True):
            put.update(dict.fromkeys(bundles[:taken], node.node_id))
        groups = _without(groups, counts)
        count -= total
    return _placement(shape, put)


def _pack_alike(
    shape: GroupShape, order: Sequence[FreeNode], free: Sequence[FreeNode]
) -> BundlePlacement | NoPlacement:
    """The same for equal bundles, of which a node takes as many as before, as far as there are any left."""
    need, count = shape.bundles[0], len(shape.bundles)
    counts = [node.count(need, count) for node in order]
    by_count = sorted(range(len(order)), key=lambda at: -counts[at])
    node_ids: list[str] = []
    for position, first in enumerate(by_count):
        at, remaining = first, count - len(node_ids)
        if counts[at] >= remaining:
            at = min(other for other in by_count[position:] if counts[other] >= remaining)
        node_ids += [order[at].node_id] * min(counts[at], remaining)
        order[at].taken = counts[at] > 0
        if len(node_ids) == count:
            return BundlePlacement(node_ids=tuple(node_ids))
    return _exactly(shape, free) or _none_left(shape, len(node_ids), free)


def _most_of(smallest: Resources, node: FreeNode, most: int) -> int:
    """The node takes no more bundles than this of which none is smaller."""
    if smallest.gpu:
        most = min(most, node.amounts.gpu // smallest.gpu)
    return smallest.count_in(node.amounts, most)


def _none_left(shape: GroupShape, bundle: int, free: Sequence[FreeNode]) -> NoPlacement:
    return _no_placement(shape, bundle, [node for node in free if not node.taken])


#: Equal bundles of a group, and which they are.
_Alike = tuple[Resources, list[int]]


def _alike(shape: GroupShape) -> list[_Alike]:
    """The bundles of a group, the largest first, equal ones together."""
    in_order = groupby(_biggest_first(shape), key=shape.bundles.__getitem__)
    return [(need, list(bundles)) for need, bundles in in_order]


def _counts_on(node: FreeNode, groups: Sequence[_Alike]) -> list[int]:
    """How many of each the node takes together, of the first ones as many as possible; they are put there."""
    return [node.put_most(need, len(bundles)) for need, bundles in groups]


def _without(groups: Sequence[_Alike], counts: Sequence[int]) -> list[_Alike]:
    """What is left of them without the first so many of each."""
    return [
        (need, bundles[count:])
        for (need, bundles), count in zip(groups, counts, strict=True)
        if count < len(bundles)
    ]


def _spread(shape: GroupShape, free: list[FreeNode]) -> BundlePlacement | NoPlacement:
    """Put each on the emptiest node that has no bundle yet, or else on the emptiest."""
    fresh = [node.copy() for node in free]
    put: dict[int, str] = {}
    free = sorted(free, key=_node_id)
    for need, bundles in _alike(shape):
        node_ids = _put_spread(need, len(bundles), free)
        put.update(zip(bundles, node_ids, strict=False))
        if len(node_ids) < len(bundles):
            placement = _exactly(shape, fresh)
            return (
                _no_placement(shape, bundles[len(node_ids)], free)
                if placement is None
                else _spread_out(shape, placement, fresh)
            )
    return _placement(shape, put)


def _put_spread(need: Resources, count: int, free: Sequence[FreeNode]) -> list[str]:
    """The nodes on which up to so many equal bundles are put one after the other: those without a bundle
    before others, and of each the emptiest. ``free``: in the order of their ids.
    """
    heap = [
        (node.taken, -node.amounts.gpu, -node.amounts.cpu, -rank, node)
        for rank, node in enumerate(free)
        if need.fits(node.amounts)
    ]
    heapify(heap)
    node_ids: list[str] = []
    while heap and len(node_ids) < count:
        *_, rank, node = heap[0]
        if not node.fits(need):
            heappop(heap)
            continue
        node.put(need)
        node_ids.append(node.node_id)
        heapreplace(heap, (True, -node.amounts.gpu, -node.amounts.cpu, rank, node))
    return node_ids


def _node_id(node: FreeNode) -> str:
    return node.node_id


def _exactly(shape: GroupShape, free: Sequence[FreeNode]) -> BundlePlacement | None:
    """A placement wherever one exists, up to the limits of the exact search."""
    smallest = least(shape.bundles)
    able = (node for node in free if smallest.fits(node.amounts))
    places = sorted(able, key=FreeNode.order, reverse=True)
    place_indices = assign(shape.bundles, places)
    return (
        None
        if place_indices is None
        else BundlePlacement(node_ids=tuple(places[i].node_id for i in place_indices))
    )


def _spread_out(
    shape: GroupShape, placement: BundlePlacement, free: Sequence[FreeNode]
) -> BundlePlacement:
    """The same with bundles moved to nodes that have none, as far as there is room."""
    node_ids = list(placement.node_ids)
    for node in sorted(free, key=FreeNode.order, reverse=True):
        if node.node_id in node_ids:
            continue
        for i in _biggest_first(shape):
            if node_ids.count(node_ids[i]) > 1 and node.takes([shape.bundles[i]]):
                node_ids[i] = node.node_id
                break
    return BundlePlacement(node_ids=tuple(node_ids))


def _strict_spread(shape: GroupShape, free: list[FreeNode]) -> BundlePlacement | NoPlacement:
    want, have, order = len(shape.bundles), len(free), _biggest_first(shape)
    if have < want:
        reason = f"STRICT_SPREAD needs {want} nodes, and there are {have}"
        return NoPlacement(bundle=order[have], reason=reason)
    matching = _Matching(shape.bundles, sorted(free, key=FreeNode.order))
    for i in order:
        if not matching.add(i):
            holders = matching.holders
            return _no_placement(shape, i, [node for node in free if node.node_id not in holders])
    return _placement(shape, {i: node_id for node_id, i in matching.holders.items()})


class _Matching:
    """A node for each bundle, found one by one; the bundles of others are moved where needed (Kuhn's
    matching, breadth first).
    """

    def __init__(self, bundles: Sequence[Resources], free: Sequence[FreeNode]) -> None:
        self._bundles, self._free = bundles, free
        #: The bundle of each node that has one.
        self.holders: dict[str, int] = {}
        #: The nodes that have room for a bundle of each kind, and those of them that may have none yet.
        self._able: dict[Resources, list[str]] = {}
        self._free_of: dict[Resources, Iterator[str]] = {}

    def add(self, bundle: int) -> bool:
        """Find a node for this bundle; False: there is none, whatever is moved."""
        need = self._bundles[bundle]
        if need not in self._free_of:
            self._free_of[need] = iter(self._nodes_for(need))
        for node_id in self._free_of[need]:
            if node_id not in self.holders:
                self.holders[node_id] = bundle
                return True
        return self._add_by_moves(bundle)

    def _add_by_moves(self, bundle: int) -> bool:
        #: From where each node was reached: the bundle that is to be put there.
        comes: dict[str, int] = {}
        kinds, queue = set(), deque((bundle,))
        while queue:
            moved = queue.popleft()
            need = self._bundles[moved]
            if need in kinds:
                continue  # it has room where the other one has
            kinds.add(need)
            for node_id in self._nodes_for(need):
                if node_id in comes:
                    continue
                comes[node_id] = moved
                if node_id not in self.holders:
                    self._move(node_id, comes, bundle)
                    return True
                queue.append(self.holders[node_id])
        return False

    def _nodes_for(self, need: Resources) -> list[str]:
        if need not in self._able:
            self._able[need] = [node.node_id for node in self._free if node.fits(need)]
        return self._able[need]

    def _move(self, node_id: str, comes: Mapping[str, int], bundle: int) -> None:
        """Put the bundle that reached a free node there, and so on up to the new one."""
        places = {moved: place for place, moved in self.holders.items()}
        while True:
            moved = comes[node_id]
            self.holders[node_id] = moved
            if moved == bundle:
                return
            node_id = places[moved]


_PLACERS: dict[str, Callable[[GroupShape, list[FreeNode]], BundlePlacement | NoPlacement]] = {
    "STRICT_PACK": _strict_pack,
    "PACK": _pack,
    "SPREAD": _spread,
    "STRICT_SPREAD": _strict_spread,
}


def all_on(shape: GroupShape, node_id: str) -> BundlePlacement:
    """All bundles on this node."""
    return BundlePlacement(node_ids=(node_id,) * len(shape.bundles))


def _biggest_first(shape: GroupShape) -> list[int]:
    def size(i: int) -> tuple[int, int, int, int]:
        need = shape.bundles[i]
        return (-need.gpu, -need.cpu, -need.memory, i)

    return sorted(range(len(shape.bundles)), key=size)


def _placement(shape: GroupShape, put: dict[int, str]) -> BundlePlacement:
    return BundlePlacement(node_ids=tuple(put[i] for i in range(len(shape.bundles))))


def _no_placement(shape: GroupShape, bundle: int, free: Sequence[FreeNode]) -> NoPlacement:
    need = shape.bundles[bundle]
    closest = _closest(need, free)
    return NoPlacement(
        bundle=bundle,
        short=_lack(need, closest),
        node_id=None if closest is None else closest.node_id,
        reason=_no_node(free),
    )


def _no_node(free: Sequence[FreeNode]) -> str:
    return "" if free else "no open node with the labels asked for is left for it"


def _closest(need: Resources, free: Sequence[FreeNode]) -> FreeNode | None:
    """The node that lacks least: the fewest kinds, then the least amount."""

    def lack(node: FreeNode) -> tuple[int, int, str]:
        short = dict(need.beyond(node.amounts).items())
        return (len(short), sum(short.values()), node.node_id)

    return min(free, key=lack, default=None)


def _lack(need: Resources, node: FreeNode | None) -> Resources:
    return NOTHING if node is None else need.beyond(node.amounts)


def _all_devices(node: Node) -> list[int]:
    devices = [UNIT] * (node.total.gpu // UNIT)
    spare = node.total.gpu % UNIT
    return [*devices, spare] if spare else devices
