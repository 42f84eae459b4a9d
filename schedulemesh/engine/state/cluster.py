"""All nodes, and the operations by which facts change them.

A pool's quota is a limit; this is what the cluster physically has. Every operation keeps three things in
step: each node's free resources, an index by free GPU and CPU, and the rankings by other strategies.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.state.device_guarantees import has_room
from schedulemesh.engine.state.devices import (
    NO_DEVICES,
    add_devices,
    devices_for,
    gpu_of,
    worst_devices,
)
from schedulemesh.engine.state.domains import DomainTrees
from schedulemesh.engine.state.fragmentation import Workload
from schedulemesh.engine.state.node_ranking import Rankings
from schedulemesh.engine.state.nodes import (
    Allocation,
    Node,
    discard_contradicted,
    has_labels,
    named_devices,
    unused_devices,
)

_INFINITY = float("inf")

#: Of how many shapes is remembered whether nodes could hold them.
_SHAPES = 1_000


class Cluster:
    """All nodes, with an index that finds the fullest or emptiest one with enough, and rankings by any other
    strategy.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        #: Which kinds of tasks were admitted, and how often.
        self.workload = Workload()
        #: Keys of all nodes that are not cordoned, ascending.
        self._index: list[tuple[int, int, str]] = []
        self._rankings = Rankings(self.nodes, self.workload)
        #: The nodes by domains of the topology, for the levels that tasks have asked for.
        self.domains = DomainTrees(self.nodes)
        #: The nodes on which room has become free since the queue was served last, and those that were lost.
        self.freed: set[str] = set()
        #: Nodes that count as cordoned for as long as a decision takes, by id; see ``without``.
        self.set_aside: dict[str, Node] = {}
        #: The totals of all nodes, each once; None: to be collected again.
        self._totals: frozenset[Resources] | None = None
        #: Whether the nodes could hold a group of each of these shapes if they were empty: what was found out
        #: since a node was added, changed or lost.
        self.could_ever_hold: dict[GroupShape, bool] = {}
        #: The same of single bundles, which ``could_ever`` has found out.
        self._could_ever: dict[GroupShape, bool] = {}

    def see(self, report: NodeReport) -> None:
        """Add a node, or update its total, labels and external usage; its allocations stay."""
        node = self.nodes.get(report.node_id)
        if node is None:
            node = Node(
                node_id=report.node_id, total=report.total, devices=[], slots={}, allocations={}
            )
            self.nodes[report.node_id] = node
        else:
            self._unindex(node)
        self._rankings.rescale()
        self._forget_totals()
        node.total, node.labels = report.total, report.labels
        if report.external_usage is not None:
            node.external_usage = report.external_usage
        self._recount(node)
        self._reindex(node)
        self.freed.add(report.node_id)

    def adopt(self, node: Node) -> None:
        """Add a node with its allocations, from a snapshot."""
        self.nodes[node.node_id] = node
        self._forget_totals()
        self._reindex(node)

    def lose(self, node_id: str) -> None:
        """Remove a node with its allocations."""
        node = self.nodes.pop(node_id)
        self._forget_totals()
        self._unindex(node)
        self.domains.touch(node_id)
        self._rankings.rescale()
        # Without any node, only quota decides.
        self.freed.add(node_id)

    def cordon(self, node_id: str, cordoned: bool) -> None:
        """Set whether the node is closed to new agents."""
        node = self.nodes[node_id]
        self._unindex(node)
        node.cordoned = cordoned
        self._reindex(node)
        self.freed.add(node_id)

    @contextmanager
    def without(self, node_ids: Iterable[str]) -> Iterator[None]:
        """Have these nodes, and no others, count as cordoned beside those that are, for as long as one
        decision takes, which must not cordon or lose any node.
        """
        before = self.set_aside
        nodes = (self.nodes.get(node_id) for node_id in node_ids)
        self._set_aside(
            {
                node.node_id: node
                for node in nodes
                if node is not None and (not node.cordoned or node.node_id in before)
            }
        )
        try:
            yield
        finally:
            self._set_aside(before)

    def _set_aside(self, after: dict[str, Node]) -> None:
        before, self.set_aside = self.set_aside, after
        opened = [node for node_id, node in before.items() if node_id not in after]
        closed = [node for node_id, node in after.items() if node_id not in before]
        if closed:
            self._index = [key for key in self._index if key[2] not in after]
        if opened:
            self._index += [node.key for node in opened]
            self._index.sort()
        for node in (*opened, *closed):
            node.cordoned = node.node_id in after
            if self._rankings.by_need:
                self._rankings.touch(node.node_id)
            if self.domains.by_levels:
                self.domains.touch(node.node_id)

    def take(self, node_id: str, key: str, amount: Resources, devices: Devices) -> None:
        """Add these amounts to an allocation; does nothing on a node that is not in the cluster."""
        node = self.nodes.get(node_id)
        if node is None:
            return
        self._unindex(node)
        allocation = node.allocations.get(key)
        self._charge(node, amount, devices, 1)
        if allocation is None:
            node.allocations[key] = Allocation(held=amount, devices=devices)
        else:
            allocation.held = allocation.held + amount
            allocation.devices = add_devices(allocation.devices, devices)
        self._reindex(node)

    def leave(self, node_id: str, key: str) -> None:
        """Remove an allocation."""
        node = self.nodes.get(node_id)
        if node is None or key not in node.allocations:
            return
        self._unindex(node)
        allocation = node.allocations.pop(key)
        if node.promised:
            node.promised = tuple(other for other in node.promised if other != key)
        self._charge(node, allocation.held, allocation.devices, -1)
        self._reindex(node)
        self.freed.add(node_id)

    def promise(self, node_id: str, key: str, gpu: int, agent_name: str) -> None:
        """Promise this GPU amount to an incoming agent, whose allocation gets it when its victims have
        ended.
        """
        node = self.nodes.get(node_id)
        if node is None or not gpu:
            return
        allocation = node.allocations.setdefault(key, Allocation(held=NOTHING))
        allocation.promised_to, allocation.wants = agent_name, gpu
        node.promised = tuple(sorted({*node.promised, key}))
        self._touch(node)

    def release_for(self, node_id: str, key: str, agent_name: str) -> None:
        """Mark an allocation as leaving: this incoming agent gets its resources when it ends, or what others
        leave of them that were before it.
        """
        node = self.nodes.get(node_id)
        leaving = None if node is None else node.allocations.get(key)
        if node is None or leaving is None or agent_name in leaving.waiters:
            return
        if leaving.waiters:
            leaving.also_for = (*leaving.also_for, agent_name)
        else:
            leaving.leaves_for = agent_name
        self._touch(node)

    def release_no_more_for(self, node_id: str, key: str, agent_name: str) -> None:
        """Undo ``release_for``: the incoming agent is gone."""
        node = self.nodes.get(node_id)
        leaving = None if node is None else node.allocations.get(key)
        if node is None or leaving is None:
            return
        first, *others = [name for name in leaving.waiters if name != agent_name] or [""]
        leaving.leaves_for, leaving.also_for = first, tuple(others)
        self._touch(node)

    def fulfil(self, node_id: str, key: str) -> None:
        """Turn a promised allocation into an ordinary one."""
        node = self.nodes.get(node_id)
        if node is not None and key in node.promised:
            node.allocations[key].promised_to = ""
            node.promised = tuple(other for other in node.promised if other != key)
            self._touch(node)
            self.freed.add(node_id)

    def confirm(self, node_id: str, key: str, need: Resources, gpu_ids: tuple[str, ...]) -> None:
        """Record that the agent runs on these GPUs. Devices assumed for others are assigned again, and
        earlier reports that this one contradicts are assumptions from now on.

        An agent that cannot report its devices keeps those assumed for it.
        """
        node = self.nodes.get(node_id)
        if node is None:
            return
        if node.promised:
            self.fulfil(node_id, key)
        allocation = node.allocations.get(key)
        devices = named_devices(node, key, need.gpu, gpu_ids) if need.gpu else NO_DEVICES
        reported = bool(devices.units) or not need.gpu
        if allocation is not None and (
            allocation.devices == devices or not reported or not need.gpu
        ):
            allocation.reported = reported
            return
        if not reported:
            devices = devices_for(node.devices, need.gpu) or worst_devices(node.devices, need.gpu)
        self._unindex(node)
        need_without_gpu = msgspec.structs.replace(need, gpu=0)
        node.allocations[key] = Allocation(
            held=need_without_gpu, devices=devices, reported=reported
        )
        discard_contradicted(node, key)
        self._recount(node)
        self._reindex(node)
        self.freed.add(node_id)

    def touch(self, node_id: str | None) -> None:
        """Invalidate what the victim search summed up for this node: its tasks have changed."""
        node = self.nodes.get(node_id or "")
        if node is not None:
            node.version += 1

    def choose(self, shape: GroupShape, strategy: str) -> Node | None:
        """The best node for a single bundle by a built-in strategy; None: it fits on no node."""
        return next(self.with_room(shape, strategy), None)

    def with_room(self, shape: GroupShape, strategy: str) -> Iterator[Node]:
        """The nodes with the shape's labels on which its single bundle fits, without cordoned ones, in the
        order of a built-in strategy; lazily.
        """
        need = shape.bundles[0]
        nodes = self._fullest(need) if strategy == "bin_pack" else self._with_room(need, strategy)
        if not shape.node_labels and not shape.same_label:
            return nodes
        return (node for node in nodes if has_labels(node, shape))

    def _with_room(self, need: Resources, strategy: str) -> Iterator[Node]:
        if strategy == "spread":
            return self._emptiest(need)
        return self._rankings.ranked(strategy, need)

    def with_labels(self, shape: GroupShape) -> Collection[Node]:
        """The nodes with the shape's labels, cordoned ones included."""
        nodes = self.nodes.values()
        if not shape.node_labels and not shape.same_label:
            return nodes
        return [node for node in nodes if has_labels(node, shape)]

    def could_ever(self, shape: GroupShape) -> bool:
        """Whether a single bundle fits on any node with the shape's labels without allocations."""
        need = shape.bundles[0]
        if not shape.node_labels:
            return any(need.fits(total) for total in self.totals)
        fits = self._could_ever.get(shape)
        if fits is None:
            if len(self._could_ever) >= _SHAPES:
                self._could_ever.clear()
            nodes = self.nodes.values()
            fits = any(need.fits(node.total) and has_labels(node, shape) for node in nodes)
            self._could_ever[shape] = fits
        return fits

    @property
    def totals(self) -> frozenset[Resources]:
        """The totals of all nodes, each once."""
        if self._totals is None:
            self._totals = frozenset(node.total for node in self.nodes.values())
        return self._totals

    def _forget_totals(self) -> None:
        self._totals = None
        self.could_ever_hold.clear()
        self._could_ever.clear()

    def check_index(self) -> None:
        """Raise AssertionError unless the index contains exactly the nodes that are not cordoned, under their
        present keys.
        """
        keys = sorted(node.key for node in self.nodes.values() if not node.cordoned)
        if keys != self._index:
            raise AssertionError("the node index does not match the nodes that are not cordoned")

    def with_at_least(self, need: Resources) -> Iterator[Node]:
        """Nodes that are not cordoned, by ascending free GPU, then CPU, among them all on which the need
        fits: the others have less GPU, or as much and less CPU.
        """
        index = self._index
        for at in range(bisect_left(index, self._least_key(need)), len(index)):
            yield self.nodes[index[at][2]]

    @property
    def most_free_gpu(self) -> int:
        """The GPUs of the node that has most of them free, among those that are not cordoned, in units of
        1/10,000.
        """
        return self._index[-1][0] if self._index else 0

    def free_with_gpu(self, gpu: int, most: int) -> list[Resources] | None:
        """What is free on each of the nodes that are not cordoned and have so much GPU free, in units of
        1/10,000; None: that are more than ``most``.
        """
        begin = bisect_left(self._index, (gpu, -_INFINITY, ""))
        if len(self._index) - begin > most:
            return None
        return [self.nodes[key[2]].free for key in self._index[begin:]]

    def emptiest(self, count: int) -> Iterator[Node]:
        """Nodes that are not cordoned, by descending free GPU, then CPU, at most so many."""
        for key in self._index[: -count - 1 : -1]:
            yield self.nodes[key[2]]

    def open_nodes(self) -> Iterator[Node]:
        """The nodes that are not cordoned, in the order of their ids."""
        for node_id in sorted(self.nodes):
            if not self.nodes[node_id].cordoned:
                yield self.nodes[node_id]

    def _fullest(self, need: Resources) -> Iterator[Node]:
        """Nodes with enough, by ascending free GPU, then CPU; skips along the index where CPU is short."""
        index = self._index
        at = bisect_left(index, self._least_key(need))
        while at < len(index):
            free_gpu, free_cpu, node_id = index[at]
            if need.cpu and free_cpu < need.cpu:
                at = bisect_left(index, (free_gpu, need.cpu, ""), at + 1)
                continue
            node = self.nodes[node_id]
            if has_room(node, need):
                yield node
            at += 1

    def _emptiest(self, need: Resources) -> Iterator[Node]:
        least = bisect_left(self._index, self._least_key(need))
        for at in range(len(self._index) - 1, least - 1, -1):
            node = self.nodes[self._index[at][2]]
            if has_room(node, need):
                yield node

    def _least_key(self, need: Resources) -> tuple[float, float, str]:
        """No suitable node comes before this key. Of a kind that is not requested, a node may have less than
        nothing free: external work may use what our agents hold.
        """
        return (need.gpu or -_INFINITY, need.cpu or -_INFINITY, "")

    def _touch(self, node: Node) -> None:
        node.version += 1
        if self._rankings.by_need:
            self._rankings.touch(node.node_id)
        if self.domains.by_levels:
            self.domains.touch(node.node_id)

    def _reindex(self, node: Node) -> None:
        self._touch(node)
        if not node.cordoned:
            insort(self._index, (node.free.gpu, node.free.cpu, node.node_id))

    def _unindex(self, node: Node) -> None:
        if not node.cordoned:
            key = (node.free.gpu, node.free.cpu, node.node_id)
            del self._index[bisect_left(self._index, key)]

    def _charge(self, node: Node, amount: Resources, devices: Devices, sign: int) -> None:
        gpu = 0
        for i, units in devices.units:
            if i < len(node.devices):
                node.devices[i] -= sign * units
                gpu += units
        delta = amount if not gpu else msgspec.structs.replace(amount, gpu=gpu)
        node.free = node.free - delta if sign > 0 else node.free + delta

    def _recount(self, node: Node) -> None:
        """Compute the free resources again: reported allocations first, then external usage, then the assumed
        ones on newly chosen devices, whole devices before shares.
        """
        node.devices = unused_devices(node)
        node.free = msgspec.structs.replace(node.total, gpu=sum(node.devices))
        assumed = []
        for allocation in node.allocations.values():
            if allocation.reported or not allocation.devices.units:
                self._charge(node, allocation.held, allocation.devices, 1)
            else:
                assumed.append((gpu_of(allocation.devices), allocation))
        external = msgspec.structs.replace(node.external_usage, gpu=0)
        self._charge(node, external, worst_devices(node.devices, node.external_usage.gpu), 1)
        for gpu, allocation in sorted(assumed, key=_amount, reverse=True):
            allocation.devices = devices_for(node.devices, gpu) or allocation.devices
            self._charge(node, allocation.held, allocation.devices, 1)


def _amount(entry: tuple[int, Allocation]) -> int:
    return entry[0]
