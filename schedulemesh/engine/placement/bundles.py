"""The room for the bundles of groups: the nodes as they are, or as they would be without some agents.

Which nodes bundles are placed on is decided by the strategies in ``placers``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, Resources, least
from schedulemesh.domain.topology import Topology
from schedulemesh.engine.placement.placers import (
    BundlePlacement,
    FreeNode,
    NoPlacement,
    all_on,
    on_one_node,
    place_bundles,
)
from schedulemesh.engine.placement.topology import no_domain, place_in_domains
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.device_guarantees import has_room
from schedulemesh.engine.state.domains import DomainTree
from schedulemesh.engine.state.nodes import Node, has_labels


class BundleFacts(NamedTuple):
    """What is known of the bundles of a shape together, found out once."""

    total: Resources
    #: The least of each kind that any of them has.
    smallest: Resources
    #: Whether all are equal.
    alike: bool
    #: The amounts of those with GPUs.
    gpus: tuple[int, ...]

    @classmethod
    def of(cls, shape: GroupShape) -> BundleFacts:
        """That of this shape."""
        kinds = dict.fromkeys(shape.bundles)
        gpus = tuple(need.gpu for need in shape.bundles if need.gpu)
        return cls(shape.total, least(kinds), len(kinds) == 1, gpus)


class Room:
    """The open nodes, with what would be free if some of the allocations there were removed."""

    def __init__(self, cluster: Cluster, *, total: bool = False, waits: bool = False) -> None:
        #: ``total``: every node counts as wholly free, also a cordoned one. ``waits``: victims end before
        #: anything is started, on these nodes or elsewhere, so promises to others must hold until then.
        self._waits = waits
        self._cluster = cluster
        self._total = total
        self._changed: dict[str, FreeNode] = {}
        #: The shape that was asked for last.
        self._facts: tuple[GroupShape, BundleFacts] | None = None

    def release(self, node_id: str, key: str, sign: int = 1) -> None:
        """Count the allocation of this name as removed (``sign`` -1: as there again)."""
        node = self._cluster.nodes.get(node_id)
        allocations = None if node is None else node.allocations.get(key)
        if node is None or allocations is None:
            return
        free = self._changed.get(node_id)
        if free is None:
            free = self._changed[node_id] = FreeNode(node, total=self._total, waits=self._waits)
        free.move(allocations.held, allocations.devices, sign)
        if sign > 0:
            free.removed.add(key)
        else:
            free.removed.discard(key)

    def claim(self, node_id: str, amount: Resources, sign: int = 1) -> None:
        """Count so much, without GPUs, as taken by somebody who waits (``sign`` -1: as not taken)."""
        node = self._cluster.nodes.get(node_id)
        if node is None:
            return
        free = self._changed.get(node_id)
        if free is None:
            free = self._changed[node_id] = FreeNode(node, total=self._total, waits=self._waits)
        free.amounts = free.amounts - amount if sign > 0 else free.amounts + amount

    def free_on(self, node_id: str) -> Resources:
        """What is free on the node."""
        changed = self._changed.get(node_id)
        return self._cluster.nodes[node_id].free if changed is None else changed.amounts

    def short_on(self, node_id: str, shape: GroupShape) -> tuple[Resources, bool]:
        """What the node lacks to hold the whole group: amounts, and whether its devices do not suffice."""
        free, facts = self._look(self._cluster.nodes[node_id]), self._facts_of(shape)
        return facts.total.beyond(free.amounts), not free.takes_gpus(facts.gpus)

    def has_room_on(self, node_id: str, shape: GroupShape) -> bool:
        """Whether the node has room for the whole group."""
        facts = self._facts_of(shape)
        return self._look(self._cluster.nodes[node_id]).holds(facts.total, facts.gpus)

    def place(self, shape: GroupShape) -> BundlePlacement | NoPlacement:
        """The placement of a group, or why it has no room. Changes nothing."""
        placement = self.placement(shape)
        if placement is not None:
            return placement
        able = self._usable(shape, None)
        if shape.topology is None:
            return self._placed(shape, able)
        anywhere = self._placed(msgspec.structs.replace(shape, topology=None), able)
        if isinstance(anywhere, NoPlacement):
            return anywhere
        tree = self._tree_of(shape.topology, able)
        return no_domain(shape, shape.topology, tree, self._free_node)

    def placement(
        self, shape: GroupShape, only: Collection[str] | None = None
    ) -> BundlePlacement | None:
        """The same without a reason, which costs less where most nodes are full. ``only``: use only these
        nodes.
        """
        if len(shape.bundles) == 1 and not self._changed and not self._total and only is None:
            return self._place_one(shape)
        one, facts = on_one_node(shape), self._facts_of(shape)
        if shape.topology is not None and not one:
            return self._in_domains(shape, shape.topology, only)
        able = self._able(shape, facts.total if one else facts.smallest, only)
        if one:
            free = sorted(map(self._look, able), key=FreeNode.order)
            on_node = next((n.node_id for n in free if n.holds(facts.total, facts.gpus)), None)
            return None if on_node is None else all_on(shape, on_node)
        if not able or not self._may_hold(facts.smallest, len(shape.bundles), able):
            return None
        if not facts.alike and not self._have_together(facts.total, able):
            return None
        placement = self._placed(shape, able)
        return placement if isinstance(placement, BundlePlacement) else None

    def _in_domains(
        self, shape: GroupShape, topology: Topology, only: Collection[str] | None
    ) -> BundlePlacement | None:
        """The placement of a group in domains of the topology. ``only``: use only these nodes."""
        every = self._cluster.nodes
        if only is None and not self._total and not shape.node_labels and not shape.same_label:
            tree = self._cluster.domains.of(topology)
            for node_id, free in self._changed.items():
                if not every[node_id].cordoned:
                    tree.put(every[node_id], free.amounts)
            # They are counted as they are again.
            tree.changed.update(self._changed)
            return place_in_domains(shape, topology, tree, self._free_node)
        for nodes in _by_label(shape, self._usable(shape, only)):
            tree = self._tree_of(topology, nodes)
            placement = place_in_domains(shape, topology, tree, self._free_node)
            if placement is not None:
                return placement
        return None

    def _usable(self, shape: GroupShape, only: Collection[str] | None) -> list[Node]:
        """The nodes that may be used, whatever is free there. ``only``: no others than these."""
        every = self._cluster.nodes
        nodes = every.values() if only is None else [every[n] for n in only if n in every]
        return [
            node
            for node in sorted(nodes, key=_node_id)
            if (self._total or not node.cordoned) and has_labels(node, shape)
        ]

    def _tree_of(self, topology: Topology, nodes: Sequence[Node]) -> DomainTree:
        """These nodes by domains, with what is free on them here."""
        tree = DomainTree(topology)
        for node in nodes:
            tree.put(node, self._look(node).amounts)
        return tree

    def counts_for(self, shape: GroupShape, only: Collection[str] | None = None) -> bool | None:
        """Whether there is a placement of a group on several nodes; None: counting does not tell. ``only``:
        use only these nodes.
        """
        facts, count = self._facts_of(shape), len(shape.bundles)
        able = self._able(shape, facts.smallest, only)
        if not self._may_hold(facts.smallest, count, able):
            return False
        if not facts.alike or shape.same_label or shape.topology is not None:
            return None
        together = len(shape.bundles) // shape.parts if shape.strategy == "STRICT_PACK" else 1
        apart = shape.strategy == "STRICT_SPREAD" and count > shape.parts
        for node in able:
            most = min(count, shape.parts) if apart else count
            count -= self._look(node).count(facts.smallest, most) // together * together
            if count <= 0:
                # Part by part, nodes may be chosen that a later part would need.
                return None if apart and shape.parts > 1 else True
        return False

    def kind(self, node_id: str, key: str, shape: GroupShape) -> Hashable:
        """What is equal for allocations that leave as much to this shape where they are counted as there
        again.
        """
        node = self._cluster.nodes.get(node_id)
        allocation = None if node is None else node.allocations.get(key)
        if node is None or allocation is None:
            return None
        free = self._look(node)
        devices = sorted((free.devices[i], units) for i, units in allocation.devices.units)
        useful = (self._total or not node.cordoned) and has_labels(node, shape)
        label = node.labels.get(shape.same_label) if shape.same_label else None
        domain = None
        if (topology := shape.topology) is not None:
            domain = topology.domain_of(node.labels, node_id, topology.narrowest)
        state = (free.signature(), useful, label, domain)
        promised = key in node.promised
        return (state, allocation.held, tuple(devices), allocation.reported, promised)

    def _facts_of(self, shape: GroupShape) -> BundleFacts:
        if self._facts is None or self._facts[0] is not shape:
            self._facts = (shape, BundleFacts.of(shape))
        return self._facts[1]

    def _able(
        self, shape: GroupShape, need: Resources, only: Collection[str] | None
    ) -> Sequence[Node]:
        """The nodes that may be used and have this much free. ``only``: no others than these."""
        every = self._cluster.nodes
        if only is None:
            nodes = every.values() if self._total else self._with_at_least(need)
        else:
            nodes = [every[n] for n in only if n in every]
        return [
            node
            for node in nodes
            if (self._total or not node.cordoned)
            and need.fits(node.total if self._total else self.free_on(node.node_id))
            and has_labels(node, shape)
        ]

    def _may_hold(self, smallest: Resources, count: int, nodes: Sequence[Node]) -> bool:
        """Whether these nodes have the amounts for so many bundles if each needed no more than this."""
        for node in nodes:
            free = node.total if self._total else self.free_on(node.node_id)
            most = count if not smallest.gpu else min(count, free.gpu // smallest.gpu)
            count -= smallest.count_in(free, most)
            if count <= 0:
                return True
        return False

    def _have_together(self, total: Resources, nodes: Sequence[Node]) -> bool:
        """Whether as much is free on these nodes together. It takes much less to see than how bundles that
        differ fit on them, which a search for victims asks again and again.
        """
        lack = total
        for node in nodes:
            free = node.total if self._total else self.free_on(node.node_id)
            # What is claimed beyond what is free takes nothing from other nodes.
            lack = lack.beyond(free.beyond(NOTHING))
            if not lack:
                return True
        return False

    def _with_at_least(self, need: Resources) -> Collection[Node]:
        """The nodes that may have as much free: the index knows all but those where something is removed."""
        nodes = {node.node_id: node for node in self._cluster.with_at_least(need)}
        nodes.update((node_id, self._cluster.nodes[node_id]) for node_id in self._changed)
        return nodes.values()

    def _placed(self, shape: GroupShape, nodes: Sequence[Node]) -> BundlePlacement | NoPlacement:
        """The placement on these nodes, or why there is none: of several values of ``same_label`` the reason
        of the one with the most nodes.
        """
        placement: BundlePlacement | NoPlacement | None = None
        for alike in _by_label(shape, nodes):
            placement = place_bundles(shape, [self._free(node) for node in alike])
            if isinstance(placement, BundlePlacement):
                return placement
        return place_bundles(shape, []) if placement is None else placement

    def _place_one(self, shape: GroupShape) -> BundlePlacement | None:
        """A single bundle on the nodes as they are, by the index of nodes."""
        need = shape.bundles[0]
        for node in self._cluster.with_room(shape, "bin_pack"):
            if not self._waits or has_room(node, need, waits=True):
                return BundlePlacement(node_ids=(node.node_id,))
        return None

    def _free_node(self, node_id: str) -> FreeNode:
        """Free resources of the node with this id, as a copy for one attempt."""
        return self._free(self._cluster.nodes[node_id])

    def _free(self, node: Node) -> FreeNode:
        """Free resources of the node, as a copy for one attempt."""
        changed = self._changed.get(node.node_id)
        return self._look(node) if changed is None else changed.copy()

    def _look(self, node: Node) -> FreeNode:
        """Free resources of the node, for reading only."""
        changed = self._changed.get(node.node_id)
        return FreeNode(node, total=self._total, waits=self._waits) if changed is None else changed


def _node_id(node: Node) -> str:
    return node.node_id


def _by_label(shape: GroupShape, nodes: Sequence[Node]) -> list[list[Node]]:
    """The nodes by their value of the shape's ``same_label``, the fewest first, so that large sets of nodes
    are kept for large groups; all together where it has none.
    """
    if not shape.same_label:
        return [list(nodes)]
    nodes_by_value: dict[str, list[Node]] = {}
    for node in nodes:
        nodes_by_value.setdefault(node.labels[shape.same_label], []).append(node)
    return [
        nodes_by_value[value]
        for value in sorted(nodes_by_value, key=lambda value: (len(nodes_by_value[value]), value))
    ]
