"""The nodes by domains of the topology: which nodes are in a rack, a block, and how much is free there.

A tree of domains is kept for each list of levels that is asked for, and only the nodes that changed since are
counted again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from schedulemesh.domain.resources import Resources
from schedulemesh.domain.topology import Topology
from schedulemesh.engine.state.nodes import Node

#: Trees that are kept; the least recently used one is dropped first.
KEPT = 8


class Domain:
    """The open nodes of a rack, of a block, or of the whole cluster, and what is free on them together."""

    __slots__ = ("children", "cpu", "gpu", "key", "memory", "node_ids")

    def __init__(self, key: tuple[str, ...]) -> None:
        #: See ``Topology.domain_of``; empty: the whole cluster.
        self.key = key
        self.gpu = self.cpu = self.memory = 0
        self.node_ids: dict[str, None] = {}
        #: The domains of the next narrower level, by key.
        self.children: dict[tuple[str, ...], Domain] = {}

    @property
    def name(self) -> str:
        """What it is called, such as ``b1/r7``: the values of its labels; a node's id, where it is one."""
        return "/".join(filter(None, self.key))

    @property
    def order(self) -> tuple[int, int, int, tuple[str, ...]]:
        """The sort key by what is free, the least first."""
        return (self.gpu, self.cpu, self.memory, self.key)

    @property
    def free(self) -> Resources:
        """What is free of the kinds that are counted."""
        return Resources(gpu=self.gpu, cpu=self.cpu, memory=self.memory)

    def has(self, need: Resources) -> bool:
        """Whether as much is free on all nodes together, of the kinds that are counted."""
        return need.gpu <= self.gpu and need.cpu <= self.cpu and need.memory <= self.memory

    def most(self, need: Resources) -> float:
        """No more needs of this size than this have room here."""
        counts = [
            free // needed if free > 0 else 0
            for needed, free in (
                (need.gpu, self.gpu),
                (need.cpu, self.cpu),
                (need.memory, self.memory),
            )
            if needed
        ]
        return min(counts, default=float("inf"))


class DomainTree:
    """The domains of all levels of one list of levels."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.root = Domain(())
        #: By node id: what of it is counted, and its domains from the widest on.
        self._counted: dict[str, tuple[int, int, int, tuple[Domain, ...]]] = {}
        #: Nodes that have to be counted again.
        self.changed: set[str] = set()

    def at(self, level: int) -> list[Domain]:
        """The domains of the level of this index; -1: the whole cluster alone."""
        domains = [self.root]
        for _ in range(level + 1):
            domains = [child for domain in domains for child in domain.children.values()]
        return domains

    def inside(self, domain: Domain, levels: int) -> list[Domain]:
        """The domains so many levels below this one."""
        domains = [domain]
        for _ in range(levels):
            domains = [child for each in domains for child in each.children.values()]
        return domains

    def able(self, domain: Domain, need: Resources) -> Iterator[str]:
        """The ids of the nodes of a domain on which as much is free, of the kinds that are counted."""
        counted, gpu, cpu, memory = self._counted, need.gpu, need.cpu, need.memory
        return (
            node_id
            for node_id in domain.node_ids
            if (free := counted[node_id])[0] >= gpu and free[1] >= cpu and free[2] >= memory
        )

    def put(self, node: Node, free: Resources) -> None:
        """Count a node, on which so much is free, in place of what was counted of it before."""
        counted = self._counted.get(node.node_id)
        if counted is not None and counted[:3] == (free.gpu, free.cpu, free.memory):
            return
        self.drop(node.node_id)
        path = tuple(self._path(node))
        # What external work uses beyond the total takes nothing from other nodes.
        gpu, cpu, memory = max(0, free.gpu), max(0, free.cpu), max(0, free.memory)
        for domain in path:
            domain.gpu += gpu
            domain.cpu += cpu
            domain.memory += memory
            domain.node_ids[node.node_id] = None
        self._counted[node.node_id] = (gpu, cpu, memory, path)

    def drop(self, node_id: str) -> None:
        """Count a node no more."""
        if (counted := self._counted.pop(node_id, None)) is None:
            return
        gpu, cpu, memory, path = counted
        for domain in path:
            domain.gpu -= gpu
            domain.cpu -= cpu
            domain.memory -= memory
            del domain.node_ids[node_id]
        for wider, narrower in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
            if not narrower.node_ids:
                del wider.children[narrower.key]

    def refresh(self, nodes: Mapping[str, Node]) -> None:
        """Count the changed nodes again."""
        for node_id in self.changed:
            node = nodes.get(node_id)
            # Its labels may have changed.
            self.drop(node_id)
            if node is not None and not node.cordoned:
                self.put(node, node.free)
        self.changed.clear()

    def _path(self, node: Node) -> Iterator[Domain]:
        domain, topology = self.root, self._topology
        yield domain
        for level in range(len(topology.levels)):
            key = topology.domain_of(node.labels, node.node_id, level)
            if (child := domain.children.get(key)) is None:
                child = domain.children[key] = Domain(key)
            yield child
            domain = child


class DomainTrees:
    """The trees over one set of nodes."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        #: By levels, the last used last.
        self.by_levels: dict[tuple[str, ...], DomainTree] = {}

    def touch(self, node_id: str) -> None:
        """Note that the node was changed, added or removed."""
        for tree in self.by_levels.values():
            tree.changed.add(node_id)

    def of(self, topology: Topology) -> DomainTree:
        """The tree of these levels, up to date."""
        tree = self.by_levels.pop(topology.levels, None)
        if tree is None:
            tree = DomainTree(topology)
            tree.changed.update(self._nodes)
        self.by_levels[topology.levels] = tree
        if len(self.by_levels) > KEPT:
            del self.by_levels[next(iter(self.by_levels))]
        tree.refresh(self._nodes)
        return tree
