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

from collections.abc import Callable, Sequence
from itertools import groupby

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, UNIT, Resources, least, sum_of
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.placement.exact import assign
from schedulemesh.engine.state.device_guarantees import has_unreported, is_sure
from schedulemesh.engine.state.devices import devices_for, devices_for_all
from schedulemesh.engine.state.nodes import Node


class BundlePlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The node of each bundle of a group, in the order of the bundles."""

    node_ids: tuple[str, ...]


class NoPlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a group has no room: the first bundle without room, and what the closest node lacks."""

    bundle: int
    short: Resources = NOTHING
    node_id: str | None = None
    reason: str = ""


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
        if not total.fits(self.amounts):
            return False
        return self.takes_gpus(needs)

    def takes_gpus(self, needs: Sequence[Resources]) -> bool:
        """Whether there are devices for the GPU amounts of all of these together."""
        gpus = [need.gpu for need in needs if need.gpu]
        if not gpus:
            return True
        if devices_for_all(self.devices, gpus) is None:
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
        if node is None:
            return False
        return bool(node.promised or self.removed or (self._waits and has_unreported(node)))

    def put(self, need: Resources) -> None:
        """Take the room for this."""
        without_gpu = msgspec.structs.replace(need, gpu=0) if need.gpu else need
        self.move(without_gpu, devices_for(self.devices, need.gpu) or Devices(), -1)
        self._gpus.append(need.gpu)
        self.taken = True

    def put_most(self, need: Resources, most: int) -> int:
        """Take the room for as many of these as fit, up to so many; returns how many."""
        if not need.gpu:
            count = need.count_in(self.amounts, most)
            self.amounts -= need.times(count)
            self.taken = self.taken or count > 0
            return count
        for count in range(most):
            if not self.fits(need):
                return count
            self.put(need)
        return most

    def move(self, amount: Resources, devices: Devices, sign: int) -> None:
        """Free (-1: take) so much CPU, memory and custom resources, and these devices."""
        gpu = 0
        for i, units in devices.units:
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
    free_nodes = {node.node_id: node.copy() for node in free}
    node_ids: list[str] = []
    for part in shape.each_part:
        placement = place_bundles(part, [node.copy() for node in free_nodes.values()])
        if isinstance(placement, NoPlacement):
            missing = msgspec.structs.replace(placement, bundle=len(node_ids) + placement.bundle)
            return _parts_exactly(shape, free) or missing
        for need, node_id in zip(part.bundles, placement.node_ids, strict=True):
            free_nodes[node_id].put(need)
            free_nodes[node_id].taken = False
        node_ids += placement.node_ids
    return BundlePlacement(node_ids=tuple(node_ids))


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
    for node in sorted(free, key=FreeNode.order):
        placement = all_on(shape, node)
        if placement is not None:
            return placement
    total = shape.total
    closest = _closest(total, free)
    return NoPlacement(
        bundle=0,
        short=_lack(total, closest),
        node_id=None if closest is None else closest.node_id,
        reason=_no_node(free) or (f"one node must hold {total}" if len(shape.bundles) > 1 else ""),
    )


def _pack(shape: GroupShape, free: list[FreeNode]) -> BundlePlacement | NoPlacement:
    """Repeatedly fill the node that has room for most of the remaining bundles; of equal ones the fullest."""
    #: Of equal bundles a node takes as many as before, as far as there are any left.
    alike, counts = len(set(shape.bundles)) == 1, dict[str, int]()
    remaining = list(range(len(shape.bundles))) if alike else _biggest_first(shape)
    put: dict[int, str] = {}
    smallest = least(shape.bundles)
    able = (node for node in free if not node.taken and smallest.fits(node.amounts))
    order = sorted(able, key=FreeNode.order)
    while remaining:
        best: tuple[int, FreeNode, list[int]] | None = None
        seen = set()
        for node in order:
            if node.taken:
                continue
            if (kind := node.signature()) in seen:
                continue  # it takes the same as one that comes before it
            seen.add(kind)
            if alike and node.node_id in counts:
                takes = remaining[: counts[node.node_id]]
            else:
                takes = _takes_most(shape, remaining, node.copy())
                counts[node.node_id] = len(takes)
            if takes and (best is None or len(takes) > best[0]):
                best = (len(takes), node, takes)
                if takes == remaining:
                    break
        if best is None:
            missing = _no_placement(shape, remaining[0], [node for node in free if not node.taken])
            return _exactly(shape, free) or missing
        _, node, takes = best
        node.taken = True
        put.update((i, node.node_id) for i in takes)
        placed = set(takes)
        remaining = [i for i in remaining if i not in placed]
    return _placement(shape, put)


def _takes_most(shape: GroupShape, bundles: Sequence[int], node: FreeNode) -> list[int]:
    """Those of the bundles, the first ones first, that the node takes together; they are put there."""
    takes: list[int] = []
    for need, of_need in groupby(bundles, key=shape.bundles.__getitem__):
        alike = list(of_need)
        takes += alike[: node.put_most(need, len(alike))]
    return takes


def _spread(shape: GroupShape, free: list[FreeNode]) -> BundlePlacement | NoPlacement:
    """Put each on the emptiest node that has no bundle yet, or else on the emptiest."""
    fresh = [node.copy() for node in free]
    put: dict[int, str] = {}
    for i in _biggest_first(shape):
        need = shape.bundles[i]
        fitting = [node for node in free if node.fits(need)]
        if not fitting:
            placement = _exactly(shape, fresh)
            return (
                _no_placement(shape, i, free)
                if placement is None
                else _spread_out(shape, placement, fresh)
            )
        node = max(fitting, key=lambda n: (not n.taken, n.order()))
        node.put(need)
        put[i] = node.node_id
    return _placement(shape, put)


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
    free = sorted(free, key=FreeNode.order)
    holder: dict[str, int] = {}
    for i in _biggest_first(shape):
        if not _augment(i, shape, free, holder, set()):
            short = _no_placement(shape, i, [node for node in free if node.node_id not in holder])
            want, have = len(shape.bundles), len(free)
            reason = (
                f"STRICT_SPREAD needs {want} nodes, and there are {have}" if have < want else ""
            )
            return msgspec.structs.replace(short, reason=reason or short.reason)
    return _placement(shape, {i: node_id for node_id, i in holder.items()})


def _augment(
    bundle: int, shape: GroupShape, free: Sequence[FreeNode], holder: dict[str, int], seen: set[str]
) -> bool:
    """Find a node for the bundle, moving others where needed (Kuhn's matching)."""
    for node in free:
        if node.node_id in seen or not node.fits(shape.bundles[bundle]):
            continue
        seen.add(node.node_id)
        other = holder.get(node.node_id)
        if other is None or _augment(other, shape, free, holder, seen):
            holder[node.node_id] = bundle
            return True
    return False


_PLACERS: dict[str, Callable[[GroupShape, list[FreeNode]], BundlePlacement | NoPlacement]] = {
    "STRICT_PACK": _strict_pack,
    "PACK": _pack,
    "SPREAD": _spread,
    "STRICT_SPREAD": _strict_spread,
}


def all_on(shape: GroupShape, node: FreeNode) -> BundlePlacement | None:
    """All bundles on this node; None: it lacks the room."""
    fits = node.takes(shape.bundles)
    return BundlePlacement(node_ids=(node.node_id,) * len(shape.bundles)) if fits else None


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
