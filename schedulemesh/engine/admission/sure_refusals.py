"""The classes of one group of a pool as a pass serves them: in the order of the queue, without those that
surely do not start, which are found out many at once (``state.need_index``).

Surely a task does not start for which its pool's quota is short, or that needs no less than another one that
has no room on any node or would delay a reserved start. On a tick evictions must not help it either, because
victims are searched for no more tasks, or they did not help another one that needs no more. What is left out
would have been refused, and that would have changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from schedulemesh.domain.resources import Resources
from schedulemesh.engine.admission.backfill import Backfill
from schedulemesh.engine.state.fair_order import Entry
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.need_index import Alike, LeastNeed
from schedulemesh.engine.state.queue_classes import PoolQueue, QueueClass
from schedulemesh.engine.transaction import Transaction

#: For which classes victims are still searched in a pass: those from this place on (None: for none), without
#: those that have no higher priority and need no less than one of these, and of those that lack quota or room
#: without those that have no higher priority than this.
Searches = tuple[Entry | None, Iterable[tuple[float, Resources]], float]
#: Classes of a group, on average, from which on it pays to look for those that may start.
LEAST_ALIKE = 4
#: On so many nodes at most that have enough GPUs free the rest is looked at.
_NODES = 16
#: Nobody is evicted for any of them.
NO_SEARCHES: Searches = (None, (), -inf)


class SureRefusals:
    """What surely keeps the classes of a group from starting, as things are."""

    def __init__(
        self, state: MeshState, pool_name: str, group: Alike, backfill: Backfill, searches: Searches
    ) -> None:
        _, node_labels, gpu, custom = group
        has = Resources(gpu=gpu, custom=custom)
        account, cluster = state.ledger.accounts[pool_name], state.cluster
        # Without nodes only quota decides, and a window may close nodes for some tasks of a class.
        no_node_has_more = bool(cluster.nodes) and not state.windows.by_name
        spec, free = account.spec, account.free
        #: What of the quota is free; whether that is too little of what is the same for all, or no node
        #: has so many free GPUs.
        self._free = free
        self._is_short = not has.fits(free) or (
            no_node_has_more and gpu > max(0, cluster.most_free_gpu)
        )
        rooms = None
        if gpu and no_node_has_more and not self._is_short:
            rooms = cluster.free_with_gpu(gpu, _NODES)
        #: The CPUs and memory that are free where there are enough GPUs; None: on many nodes.
        self._rooms = None if rooms is None else [(room.cpu, room.memory) for room in rooms]
        #: CPUs and memory of what has no room.
        self._no_room = [
            (need.cpu, need.memory)
            for need in state.queue.no_room.of(node_labels)
            if need.gpu <= gpu and (not need.custom or _has_custom(has, need))
        ]
        limit_s = spec.run_limit(None)
        longest = inf if limit_s is None else limit_s
        #: The same of what would delay a reserved start, with its place, and the longest run time with which
        #: later ones would not.
        self._held_back = [
            (other.entry, need.cpu, need.memory, other.limits.declared)
            for other, need in backfill.refusals_on_nodes(pool_name, node_labels)
            if other.limits.declared < longest
            if need.gpu <= gpu and (not need.custom or _has_custom(has, need))
        ]
        self._searched_from, vain, self._nobody = searches
        #: Priorities, CPUs and memory of what evictions do not help.
        self._vain = [
            (priority, need.cpu, need.memory)
            for priority, need in vain
            if need.gpu <= gpu and (not need.custom or _has_custom(has, need))
        ]

    def include(self, least: LeastNeed) -> bool:
        """Whether none of these classes starts."""
        if self._lack(least):
            if least.priority <= self._nobody:
                return True
        elif not self._is_held_back(least):
            return False
        return (
            self._searched_from is None
            or least.last < self._searched_from
            or self._keep_from_victims(least)
        )

    def _lack(self, least: LeastNeed) -> bool:
        """Whether each of them lacks quota or room."""
        cpu, memory, free = least.cpu, least.memory, self._free
        if self._is_short or (cpu and cpu > free.cpu) or (memory and memory > free.memory):
            return True
        if self._rooms is not None and not _is_in_one(self._rooms, cpu, memory):
            return True
        for other_cpu, other_memory in self._no_room:  # noqa: SIM110  # faster, and asked often
            if other_cpu <= cpu and other_memory <= memory:
                return True
        return False

    def _is_held_back(self, least: LeastNeed) -> bool:
        """Whether each of them would delay a reserved start."""
        cpu, memory = least.cpu, least.memory
        for entry, other_cpu, other_memory, limit_s in self._held_back:
            needs_no_less = other_cpu <= cpu and other_memory <= memory
            if needs_no_less and limit_s < least.shortest and entry < least.first:
                return True
        return False

    def _keep_from_victims(self, least: LeastNeed) -> bool:
        """Whether evictions help none of them."""
        cpu, memory, priority = least.cpu, least.memory, least.priority
        for most, other_cpu, other_memory in self._vain:
            if other_cpu <= cpu and other_memory <= memory and priority <= most:
                return True
        return False


def _is_in_one(rooms: Iterable[tuple[int, int]], cpu: int, memory: int) -> bool:
    """Whether there is so much in one of these."""
    for free_cpu, free_memory in rooms:  # faster, and asked often
        if (not cpu or cpu <= free_cpu) and (not memory or memory <= free_memory):
            return True
    return False


def _has_custom(has: Resources, need: Resources) -> bool:
    """Whether there is at least as much of each custom resource as of a need."""
    return Resources(custom=need.custom).fits(has)


def nothing_refused(_least: LeastNeed) -> bool:
    """That each class has to be tried."""
    return False


class UnrefusedClasses:
    """The classes of a group that may start, one after the other."""

    def __init__(self, tx: Transaction, pool: PoolQueue, pool_name: str, alike: Alike) -> None:
        self.pool_name, self.alike = pool_name, alike
        self.pool = pool
        self._tx = tx
        #: What is opened after this is not served; nor are those that were taken, which may have got another
        #: place since.
        self._opened = tx.state.queue.opened
        self._taken: set[QueueClass] = set()
        #: The place of the next one; None: there is none.
        self.entry: Entry | None = None

    def leave_out(self, served: Iterable[QueueClass], opened: int) -> None:
        """Serve neither these classes nor those that were opened later."""
        self._taken.update(served)
        self._opened = opened

    def take(self, entry: Entry) -> QueueClass | None:
        """The class at this place, which is not in the group from now on; None: another one is the next."""
        if entry != self.entry:
            return None
        queue_class = self._class_at(entry)
        if queue_class is not None:
            self._taken.add(queue_class)
        return queue_class

    def seek(
        self,
        entry: Entry | None,
        is_refused: Callable[[LeastNeed], bool],
        *,
        begin: bool = False,
    ) -> None:
        """Have the first class behind this place, or of all, be the next one that is not refused; ``begin``:
        or at this place.
        """
        index = self.pool.by_need
        group = None if index is None else index.groups.get(self.alike)
        self.entry = None if group is None else group.first_behind(entry, is_refused, begin=begin)
        while group is not None and self.entry is not None and not self._serves(self.entry):
            self.entry = group.first_behind(self.entry, is_refused)

    def _serves(self, entry: Entry) -> bool:
        queue_class = self._class_at(entry)
        if queue_class is None or queue_class.opened > self._opened:
            return False
        return queue_class not in self._taken and queue_class not in self.pool.closed

    def _class_at(self, entry: Entry) -> QueueClass | None:
        return self._tx.state.queue.by_id[entry[-1]].queue_class


def by_need(
    tx: Transaction, pool: PoolQueue, pool_name: str
) -> tuple[Iterable[QueueClass], list[UnrefusedClasses]]:
    """The classes of a pool that are tried one by one, and the groups of the others. There are none where it
    may depend on more than what a class asks for whether it starts, or where a refusal decides about others.
    """
    ledger, spec = tx.state.ledger, tx.state.ledger.accounts[pool_name].spec
    by_share = tx.state.queue.policy.order == "dominant_share"
    may_borrow = bool(ledger.holds) or spec.cohort is not None
    depends_on_more = spec.groups is not None or bool(spec.flavors) or spec.counts_owners
    if by_share or may_borrow or depends_on_more or spec.queueing == "strict":
        return pool.classes.values(), []
    index = pool.indexed_by_need()
    if index is None or len(index.groups) * LEAST_ALIKE > len(pool.classes):
        return pool.classes.values(), []
    return pool.apart, [UnrefusedClasses(tx, pool, pool_name, alike) for alike in index.groups]
