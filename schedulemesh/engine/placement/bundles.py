"""Placement of a group's bundles on nodes, by Ray's four placement strategies.

STRICT_PACK: all on one node. PACK: on few nodes. SPREAD: on many. STRICT_SPREAD: each on a node of its own.
The largest bundles are placed first. A placement is found wherever one exists: for STRICT_SPREAD by
matching bundles and nodes (augmenting paths), for PACK and SPREAD by a greedy choice and, where that fails,
by an exact search up to its limits (``exact``). How few or how many nodes PACK and SPREAD use is left to
the greedy choice.

Placements are computed on a ``Room``: the nodes as they are, or as they would be if some groups and agents
were removed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, UNIT, Resources, least, sum_of
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.placement.exact import assign
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.device_guarantees import has_room, is_sure
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


class _Free:
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

    def copy(self) -> _Free:
        twin = object.__new__(_Free)
        twin.node_id, twin.amounts, twin.taken = self.node_id, self.amounts, self.taken
        twin._node, twin.removed, twin._gpus = self._node, self.removed, list(self._gpus)
        twin._waits = self._waits
        twin.devices = list(self.devices)
        return twin

    def fits(self, need: Resources) -> bool:
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
        return self._sure(gpus)

    def _sure(self, gpus: list[int]) -> bool:
        return self._node is None or is_sure(self._node, gpus, self.removed, waits=self._waits)

    def signature(self) -> object:
        """See exact.Place; a node with promises is like no other."""
        unlike = self._node is not None and (self._node.promised or self.removed or self._waits)
        return (self.amounts, tuple(sorted(self.devices)), self.node_id if unlike else "")

    def put(self, need: Resources) -> None:
        without_gpu = msgspec.structs.replace(need, gpu=0) if need.gpu else need
        self.move(without_gpu, devices_for(self.devices, need.gpu) or Devices(), -1)
        self._gpus.append(need.gpu)
        self.taken = True

    def move(self, held: Resources, devices: Devices, sign: int) -> None:
        """Free (-1: take) so much CPU, memory and custom resources, and these devices."""
        gpu = 0
        for i, units in devices.units:
            self.devices[i] += sign * units
            gpu += units
        if gpu:
            held = Resources(cpu=held.cpu, memory=held.memory, gpu=gpu, custom=held.custom)
        self.amounts = self.amounts + held if sign > 0 else self.amounts - held

    def order(self) -> tuple[int, int, str]:
        return (self.amounts.gpu, self.amounts.cpu, self.node_id)


class Room:
    """The open nodes, with what would be free if some of the allocations there were removed."""

    def __init__(self, cluster: Cluster, *, total: bool = False, waits: bool = False) -> None:
        #: ``total``: every node counts as wholly free, also a cordoned one. ``waits``: victims end before
        #: anything is started, on these nodes or elsewhere, so promises to others must hold until then.
        self._waits = waits
        self._cluster = cluster
        self._total = total
        self._changed: dict[str, _Free] = {}

    def release(self, node_id: str, key: str, sign: int = 1) -> None:
        """Count the allocation of this name as removed (``sign`` -1: as there again)."""
        node = self._cluster.nodes.get(node_id)
        allocations = None if node is None else node.allocations.get(key)
        if node is None or allocations is None:
            return
        free = self._changed.get(node_id)
        if free is None:
            free = self._changed[node_id] = _Free(node, total=self._total, waits=self._waits)
        free.move(allocations.held, allocations.devices, sign)
        if sign > 0:
            free.removed.add(key)
        else:
            free.removed.discard(key)

    def free_on(self, node_id: str) -> Resources:
        """What is free on the node."""
        changed = self._changed.get(node_id)
        return self._cluster.nodes[node_id].free if changed is None else changed.amounts

    def short_on(self, node_id: str, shape: GroupShape) -> tuple[Resources, bool]:
        """What the node lacks to hold the whole group: amounts, and whether its devices do not suffice."""
        free = self._look(self._cluster.nodes[node_id])
        return shape.total.beyond(free.amounts), not free.takes_gpus(shape.bundles)

    def has_room_on(self, node_id: str, shape: GroupShape) -> bool:
        """Whether the node has room for the whole group."""
        return self._look(self._cluster.nodes[node_id]).takes(shape.bundles)

    def place(self, shape: GroupShape) -> BundlePlacement | NoPlacement:
        """The placement of a group, or why it has no room. Changes nothing."""
        placement = self.placement(shape)
        if placement is not None:
            return placement
        nodes = self._cluster.nodes.values() if self._total else self._cluster.open_nodes()
        return self._placed(shape, [node for node in nodes if has_labels(node, shape)])

    def placement(
        self, shape: GroupShape, only: Collection[str] | None = None
    ) -> BundlePlacement | None:
        """The same without a reason, which costs less where most nodes are full. ``only``: use only these
        nodes.
        """
        if len(shape.bundles) == 1 and not self._changed and not self._total and only is None:
            return self._place_one(shape)
        every = self._cluster.nodes
        one = on_one_node(shape)
        need = shape.total if one else least(shape.bundles)
        if only is None:
            nodes = every.values() if self._total else self._with_at_least(need)
        else:
            nodes = [every[n] for n in only if n in every]
        able = [
            node
            for node in nodes
            if (self._total or not node.cordoned)
            and need.fits(node.total if self._total else self.free_on(node.node_id))
            and has_labels(node, shape)
        ]
        if one:
            free = sorted(map(self._look, able), key=_Free.order)
            return next(filter(None, (_all_on(shape, node) for node in free)), None)
        found = self._placed(shape, able) if able else None
        return found if isinstance(found, BundlePlacement) else None

    def _with_at_least(self, need: Resources) -> Collection[Node]:
        """The nodes that may have as much free: the index knows all but those where something is removed."""
        found = {node.node_id: node for node in self._cluster.with_at_least(need)}
        found.update((node_id, self._cluster.nodes[node_id]) for node_id in self._changed)
        return found.values()

    def _placed(self, shape: GroupShape, nodes: Sequence[Node]) -> BundlePlacement | NoPlacement:
        """The placement on these nodes, or why there is none: of several values of ``same_label`` the reason
        of the one with the most nodes.
        """
        placer = _PLACERS["STRICT_PACK" if on_one_node(shape) else shape.strategy]
        found: BundlePlacement | NoPlacement | None = None
        for alike in _by_label(shape, nodes):
            found = placer(shape, [self._free(node) for node in alike])
            if isinstance(found, BundlePlacement):
                return found
        return placer(shape, []) if found is None else found

    def _place_one(self, shape: GroupShape) -> BundlePlacement | None:
        """A single bundle on the nodes as they are, by the index of nodes."""
        need = shape.bundles[0]
        for node in self._cluster.with_room(need, "bin_pack"):
            if has_labels(node, shape) and (not self._waits or has_room(node, need, waits=True)):
                return BundlePlacement(node_ids=(node.node_id,))
        return None

    def _free(self, node: Node) -> _Free:
        """Free resources of the node, as a copy for one attempt."""
        changed = self._changed.get(node.node_id)
        return self._look(node) if changed is None else changed.copy()

    def _look(self, node: Node) -> _Free:
        """Free resources of the node, for reading only."""
        changed = self._changed.get(node.node_id)
        return _Free(node, total=self._total, waits=self._waits) if changed is None else changed


def _by_label(shape: GroupShape, nodes: Sequence[Node]) -> list[list[Node]]:
    """The nodes by their value of the shape's ``same_label``, the fewest first, so that large sets of nodes
    are kept for large groups; all together where it has none.
    """
    if not shape.same_label:
        return [list(nodes)]
    found: dict[str, list[Node]] = {}
    for node in nodes:
        found.setdefault(node.labels[shape.same_label], []).append(node)
    return [found[value] for value in sorted(found, key=lambda value: (len(found[value]), value))]


def on_one_node(shape: GroupShape) -> bool:
    """Whether all its bundles are placed on one node."""
    return len(shape.bundles) == 1 or shape.strategy == "STRICT_PACK"


def _strict_pack(shape: GroupShape, free: list[_Free]) -> BundlePlacement | NoPlacement:
    for node in sorted(free, key=_Free.order):
        placement = _all_on(shape, node)
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


def _pack(shape: GroupShape, free: list[_Free]) -> BundlePlacement | NoPlacement:
    """Repeatedly fill the node that has room for most of the remaining bundles; of equal ones the fullest."""
    left = _biggest_first(shape)
    put: dict[int, str] = {}
    smallest = least(shape.bundles)
    while left:
        best: tuple[int, _Free, list[int]] | None = None
        for node in sorted((n for n in free if not n.taken), key=_Free.order):
            if not smallest.fits(node.amounts):
                continue
            takes = _takes_most(shape, left, node.copy())
            if takes and (best is None or len(takes) > best[0]):
                best = (len(takes), node, takes)
                if takes == left:
                    break
        if best is None:
            missing = _no_placement(shape, left[0], [node for node in free if not node.taken])
            return _exactly(shape, free) or missing
        _, node, takes = best
        node.taken = True
        put.update((i, node.node_id) for i in takes)
        left = [i for i in left if i not in takes]
    return _placement(shape, put)


def _takes_most(shape: GroupShape, bundles: Sequence[int], node: _Free) -> list[int]:
    """Those of the bundles, the first ones first, that the node takes together; they are put there."""
    takes = []
    for i in bundles:
        if node.fits(shape.bundles[i]):
            node.put(shape.bundles[i])
            takes.append(i)
    return takes


def _spread(shape: GroupShape, free: list[_Free]) -> BundlePlacement | NoPlacement:
    """Put each on the emptiest node that has no bundle yet, or else on the emptiest."""
    fresh = [node.copy() for node in free]
    put: dict[int, str] = {}
    for i in _biggest_first(shape):
        need = shape.bundles[i]
        fitting = [node for node in free if node.fits(need)]
        if not fitting:
            found = _exactly(shape, fresh)
            return (
                _no_placement(shape, i, free) if found is None else _spread_out(shape, found, fresh)
            )
        node = max(fitting, key=lambda n: (not n.taken, n.order()))
        node.put(need)
        put[i] = node.node_id
    return _placement(shape, put)


def _exactly(shape: GroupShape, free: Sequence[_Free]) -> BundlePlacement | None:
    """A placement wherever one exists, up to the limits of the exact search."""
    smallest = least(shape.bundles)
    able = (node for node in free if smallest.fits(node.amounts))
    places = sorted(able, key=_Free.order, reverse=True)
    found = assign(shape.bundles, places)
    return (
        None if found is None else BundlePlacement(node_ids=tuple(places[i].node_id for i in found))
    )


def _spread_out(
    shape: GroupShape, placement: BundlePlacement, free: Sequence[_Free]
) -> BundlePlacement:
    """The same with bundles moved to nodes that have none, as far as there is room."""
    node_ids = list(placement.node_ids)
    for node in sorted(free, key=_Free.order, reverse=True):
        if node.node_id in node_ids:
            continue
        for i in _biggest_first(shape):
            if node_ids.count(node_ids[i]) > 1 and node.takes([shape.bundles[i]]):
                node_ids[i] = node.node_id
                break
    return BundlePlacement(node_ids=tuple(node_ids))


def _strict_spread(shape: GroupShape, free: list[_Free]) -> BundlePlacement | NoPlacement:
    free = sorted(free, key=_Free.order)
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
    bundle: int, shape: GroupShape, free: Sequence[_Free], holder: dict[str, int], seen: set[str]
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


_PLACERS = {
    "STRICT_PACK": _strict_pack,
    "PACK": _pack,
    "SPREAD": _spread,
    "STRICT_SPREAD": _strict_spread,
}


def _all_on(shape: GroupShape, node: _Free) -> BundlePlacement | None:
    fits = node.takes(shape.bundles)
    return BundlePlacement(node_ids=(node.node_id,) * len(shape.bundles)) if fits else None


def _biggest_first(shape: GroupShape) -> list[int]:
    def size(i: int) -> tuple[int, int, int, int]:
        need = shape.bundles[i]
        return (-need.gpu, -need.cpu, -need.memory, i)

    return sorted(range(len(shape.bundles)), key=size)


def _placement(shape: GroupShape, put: dict[int, str]) -> BundlePlacement:
    return BundlePlacement(node_ids=tuple(put[i] for i in range(len(shape.bundles))))


def _no_placement(shape: GroupShape, bundle: int, free: Sequence[_Free]) -> NoPlacement:
    need = shape.bundles[bundle]
    closest = _closest(need, free)
    return NoPlacement(
        bundle=bundle,
        short=_lack(need, closest),
        node_id=None if closest is None else closest.node_id,
        reason=_no_node(free),
    )


def _no_node(free: Sequence[_Free]) -> str:
    return "" if free else "no open node with the labels asked for is left for it"


def _closest(need: Resources, free: Sequence[_Free]) -> _Free | None:
    """The node that lacks least: the fewest kinds, then the least amount."""

    def lack(node: _Free) -> tuple[int, int, str]:
        short = dict(need.beyond(node.amounts).items())
        return (len(short), sum(short.values()), node.node_id)

    return min(free, key=lack, default=None)


def _lack(need: Resources, node: _Free | None) -> Resources:
    return NOTHING if node is None else need.beyond(node.amounts)


def has_labels(node: Node, shape: GroupShape) -> bool:
    """Whether the node has the labels that the shape asks for."""
    wanted = shape.node_labels
    if shape.same_label and shape.same_label not in node.labels:
        return False
    return not wanted or all(node.labels.get(key) == value for key, value in wanted)


def _all_devices(node: Node) -> list[int]:
    devices = [UNIT] * (node.total.gpu // UNIT)
    spare = node.total.gpu % UNIT
    return [*devices, spare] if spare else devices
