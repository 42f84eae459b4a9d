"""The state of placement groups: which exist, which agents use them, and which are free.

A group's bundles are allocated on nodes, like agents without a group; its agent runs in the group. A group
has at most one agent at a time, because a share of a group cannot be promised.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from types import MappingProxyType
from typing import TypeVar, overload

import msgspec
from sortedcontainers import SortedList

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.payloads import GangPayload, JobPayload, LeasePayload
from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.topology import Topology

#: No agent's name begins with it, so that bundles and agents share the namespace of a node's allocations.
_MARK = "\x1f"


class GroupPhase(str, Enum):
    """The phase of a placement group."""

    #: Its resources are not complete yet: victims or other groups are still ending for it.
    PLANNED = "planned"
    #: Its resources are held on the nodes, and Ray is creating it.
    CREATING = "creating"
    READY = "ready"
    #: Being removed; its resources are held until Ray has removed it.
    ENDING = "ending"


class Group(msgspec.Struct, kw_only=True, gc=False):
    """A placement group."""

    group_id: str
    pool_name: str
    shape: GroupShape
    #: Whether it is reserved for entitled tasks; False: dynamic.
    reserved: bool
    phase: GroupPhase
    #: The node of each bundle.
    node_ids: tuple[str, ...]
    #: The agent that runs in it, or for which it is created.
    agent: str | None = None
    #: The agent that gets it when the current one has ended.
    promised_to: str | None = None
    #: The agent that gets its resources: the group is removed when its current agent has ended.
    leaves_for: str | None = None
    #: Those that have claimed what that one leaves, the first one first.
    also_for: tuple[str, ...] = ()
    #: Since when it is unused, in seconds since 1970.
    idle_since: float = 0.0
    #: The number of agents that have used it.
    used: int = 0
    #: Whether Ray has ever placed it.
    made: bool = False

    @property
    def dynamic(self) -> bool:
        """Whether it counts among the dynamic groups of its pool. A virtual group is none of the pool's."""
        return not self.reserved and not self.shape.virtual

    @property
    def waiters(self) -> tuple[str, ...]:
        """The incoming agents that get its resources, each after those before it."""
        return () if self.leaves_for is None else (self.leaves_for, *self.also_for)

    @property
    def free(self) -> bool:
        """Whether an agent may be assigned to it."""
        return self.phase is GroupPhase.READY and self.agent is None and self.leaves_for is None

    @property
    def coming(self) -> bool:
        """Whether it is being created and not assigned to an agent."""
        return self.phase is GroupPhase.CREATING and self.agent is None

    def key(self, bundle: int) -> str:
        """The key of a bundle's allocation on its node."""
        return f"{_MARK}{self.group_id}/{bundle}"


def is_bundle(key: str) -> bool:
    """Whether the key of an allocation is that of a bundle; the others are names of agents."""
    return key.startswith(_MARK)


def bundle_of(key: str) -> tuple[str, int]:
    """The id of the group, and the number of the bundle, of the key of a bundle's allocation."""
    group_id, _, number = key[len(_MARK) :].rpartition("/")
    return group_id, int(number)


class PoolCounts(msgspec.Struct, kw_only=True, gc=False):
    """Statistics of the groups of one pool."""

    created: int = 0
    #: Agents that were assigned to a group which had been used before.
    reused: int = 0
    destroyed: int = 0
    #: Agents that were assigned to a group, and the total seconds that they waited for it.
    entered: int = 0
    waited_s: float = 0.0
    #: The last group that Ray did not place: when, and why.
    failed_at: float = float("-1e9")
    error: str = ""


#: Interchangeable groups: pool, whether reserved, shape.
_Kind = tuple[str, bool, GroupShape]
_KindT = TypeVar("_KindT", bound=Hashable)
_NONE: Mapping[GroupShape, int] = MappingProxyType({})


class GroupTable:
    """All groups of all pools, with an index of the free ones by kind, the longest free first."""

    def __init__(self) -> None:
        self.by_id: dict[str, Group] = {}
        #: Ids by pool name, for pools that have or had groups, in the order in which they first had any.
        self.of_pool: dict[str, dict[str, None]] = {}
        #: By pool name.
        self.counts: dict[str, PoolCounts] = {}
        #: Reserved groups that were destroyed on request, which are not created until their pool is ensured.
        self.dropped: dict[tuple[str, GroupShape], int] = {}
        #: Whether a task may find a group that did not before, since the queue was served last.
        self.changed = False
        #: The number in the id of the next group; never reused.
        self.next_number = 1
        #: Ids of those that are being removed.
        self.ending: dict[str, None] = {}
        #: How many reserved groups of each shape a pool's definition names, by pool name.
        self._named: dict[str, dict[GroupShape, int]] = {}
        #: How many of them are missing; kept up to date, so that not all groups are counted each time.
        self._lacking: dict[str, dict[GroupShape, int]] = {}
        #: (idle since, id) by kind.
        self._free: dict[_Kind, SortedList[tuple[float, str]]] = {}
        #: (length of id, id), that is by number, of the groups that are being created unassigned, by kind.
        self._coming: dict[_Kind, SortedList[tuple[int, str]]] = {}
        self._living: dict[_Kind, int] = {}
        #: By pool name and whether reserved.
        self._placed: dict[tuple[str, bool], int] = {}
        #: The number of reserved groups of all pools, without those that are being removed.
        self.reserved_groups = 0

    def define(self, pool_name: str, spec: GroupsSpec | None) -> None:
        """Set the definition of the pool's groups."""
        self.changed = True
        if spec is None:
            self._named.pop(pool_name, None)
            self._lacking.pop(pool_name, None)
            return
        self.of_pool.setdefault(pool_name, {})
        self.counts.setdefault(pool_name, PoolCounts())
        self._named[pool_name] = dict(Counter(spec.reserved))
        self._lacking.pop(pool_name, None)
        for shape in self._named[pool_name]:
            self._look(pool_name, shape)

    def drop(self, pool_name: str, shape: GroupShape, number: int = 1) -> None:
        """Do not create this number of reserved groups until the pool is ensured again."""
        self.dropped[pool_name, shape] = self.dropped.get((pool_name, shape), 0) + number
        self._look(pool_name, shape)

    def forget(self, pool_name: str) -> None:
        """A pool that has no groups exists no more."""
        self.define(pool_name, None)
        self.of_pool.pop(pool_name, None)
        self.counts.pop(pool_name, None)
        for key in [key for key in self.dropped if key[0] == pool_name]:
            del self.dropped[key]

    def rename(self, name: str, new_name: str) -> None:
        """A pool has another name; the ids of its groups stay."""

        def one(pool_name: str) -> str:
            return new_name if pool_name == name else pool_name

        groups = list(self.by_id.values())
        self.counts = {one(pool): counts for pool, counts in self.counts.items()}
        self.of_pool = {one(pool): {} for pool in self.of_pool}
        self.dropped = {(one(pool), shape): n for (pool, shape), n in self.dropped.items()}
        self._named = {one(pool): shapes for pool, shapes in self._named.items()}
        self.by_id, self.ending, self.changed = {}, {}, True
        self._lacking, self._free, self._coming = {}, {}, {}
        self._living, self._placed, self.reserved_groups = {}, {}, 0
        for group in groups:
            group.pool_name = one(group.pool_name)
            self.add(group)
        for pool, shapes in self._named.items():
            for shape in shapes:
                self._look(pool, shape)

    def add(self, group: Group) -> None:
        """Add a group."""
        self.by_id[group.group_id] = group
        self.of_pool.setdefault(group.pool_name, {})[group.group_id] = None
        self.counts.setdefault(group.pool_name, PoolCounts())
        if group.phase is GroupPhase.ENDING:
            self.ending[group.group_id] = None
        else:
            self._count(group, 1)
        self.sort(group)

    def remove(self, group_id: str) -> Group:
        """Remove a group."""
        group = self.by_id.pop(group_id)
        del self.of_pool[group.pool_name][group_id]
        if group.phase is GroupPhase.ENDING:
            del self.ending[group_id]
        else:
            self._count(group, -1)
        self._unlist(_kind(group), group)
        return group

    def end(self, group: Group) -> None:
        """Mark a group as being removed: it is no longer free and no longer counted."""
        group.phase = GroupPhase.ENDING
        self.ending[group.group_id] = None
        self._count(group, -1)
        self.sort(group)

    def reshape(self, group: Group, shape: GroupShape, node_ids: tuple[str, ...]) -> None:
        """Set of which bundles a group consists, and on which nodes they are."""
        self._count(group, -1)
        self._unlist(_kind(group), group)
        group.shape, group.node_ids = shape, node_ids
        self._count(group, 1)
        self.sort(group)

    def sort(self, group: Group) -> None:
        """Index the group as free, as coming, or not at all, according to its current fields."""
        kind = _kind(group)
        self._unlist(kind, group)
        if group.free:
            self._free.setdefault(kind, SortedList()).add(_idle_since(group))
        elif group.coming:
            self._coming.setdefault(kind, SortedList()).add(_number(group))

    def living(self, pool_name: str, *, reserved: bool, shape: GroupShape) -> int:
        """The number of groups of this kind, without those that are being removed."""
        return self._living.get((pool_name, reserved, shape), 0)

    def dynamic_count(self, pool_name: str) -> int:
        """The number of dynamic groups of the pool, without those that are being removed and virtual ones."""
        return self._placed.get((pool_name, False), 0)

    def count(self, pool_name: str) -> int:
        """The number of groups of the pool, without those that are being removed and virtual ones."""
        return self.dynamic_count(pool_name) + self._placed.get((pool_name, True), 0)

    def reserved_shapes(self, pool_name: str) -> Iterable[GroupShape]:
        """The shapes of the reserved groups that a pool's definition names, each once."""
        return self._named.get(pool_name, ())

    def reserved_count(self, pool_name: str, shape: GroupShape) -> int:
        """The number of reserved groups of this shape that the pool should have."""
        named = self._named.get(pool_name, {}).get(shape, 0)
        return named - self.dropped.get((pool_name, shape), 0)

    def lacking(self, pool_name: str) -> Mapping[GroupShape, int]:
        """The number of missing reserved groups of each shape."""
        lacking = self._lacking.get(pool_name)
        if lacking is None:
            return _NONE
        return {shape: lacking[shape] for shape in self._named[pool_name] if shape in lacking}

    def free_of(self, pool_name: str, *, reserved: bool, shape: GroupShape) -> Iterator[Group]:
        """The free groups of one kind, the longest free first."""
        for _, group_id in self._free.get((pool_name, reserved, shape), ()):
            yield self.by_id[group_id]

    def coming_of(self, pool_name: str, *, reserved: bool, shape: GroupShape) -> Iterator[Group]:
        """The unassigned groups of one kind that are being created, the oldest first."""
        for _, group_id in self._coming.get((pool_name, reserved, shape), ()):
            yield self.by_id[group_id]

    def free_dynamic(self) -> Iterator[tuple[str, Iterator[Group]]]:
        """The free dynamic groups by kind: the pool's name, and its groups, the longest free first."""
        for (pool_name, reserved, _), entries in self._free.items():
            if not reserved:
                yield pool_name, (self.by_id[group_id] for _, group_id in entries)

    def idle(self) -> Sequence[Group]:
        """Every free dynamic group, the longest idle first; lazy, and valid until a group changes."""
        dynamic = (entries for (_, reserved, _), entries in self._free.items() if not reserved)
        return _Idle(self.by_id, list(dynamic))

    def idle_count(self, pool_name: str) -> int:
        """How many free dynamic groups the pool has."""
        return sum(
            len(entries)
            for (pool, reserved, _), entries in self._free.items()
            if pool == pool_name and not reserved
        )

    def check(self) -> None:
        """Raise AssertionError unless the index matches the groups."""
        free = {(kind, entry) for kind, entries in self._free.items() for entry in entries}
        if free != {(_kind(g), _idle_since(g)) for g in self.by_id.values() if g.free}:
            raise AssertionError("the index of free groups is not the free groups")
        fresh = GroupTable()
        fresh.dropped, fresh._named = self.dropped, self._named
        for group in self.by_id.values():
            fresh.add(group)
        for pool_name, shapes in self._named.items():
            for shape in shapes:
                fresh._look(pool_name, shape)
        for field in ("_coming", "_living", "_placed", "reserved_groups", "_lacking", "ending"):
            if getattr(fresh, field) != getattr(self, field):
                raise AssertionError(f"{field.lstrip('_')} is not what the groups are")

    def _count(self, group: Group, by: int) -> None:
        _add(self._living, _kind(group), by)
        if not group.shape.virtual:
            _add(self._placed, (group.pool_name, group.reserved), by)
        if group.reserved:
            self.reserved_groups += by
            self._look(group.pool_name, group.shape)

    def _look(self, pool_name: str, shape: GroupShape) -> None:
        """Update the number of missing reserved groups of this shape."""
        lacking = self._lacking.setdefault(pool_name, {})
        short = self.reserved_count(pool_name, shape) - self.living(
            pool_name, reserved=True, shape=shape
        )
        if short > 0:
            lacking[shape] = short
        else:
            lacking.pop(shape, None)
        if not lacking:
            del self._lacking[pool_name]

    def _unlist(self, kind: _Kind, group: Group) -> None:
        self.changed = True
        entries = self._free.get(kind)
        if entries is not None:
            entries.discard(_idle_since(group))
            if not entries:
                del self._free[kind]
        coming = self._coming.get(kind)
        if coming is not None:
            coming.discard(_number(group))
            if not coming:
                del self._coming[kind]


class _Idle(Sequence[Group]):
    """Groups of several kinds in the order in which they became idle."""

    def __init__(
        self, by_id: Mapping[str, Group], kinds: list[SortedList[tuple[float, str]]]
    ) -> None:
        self._by_id = by_id
        self._count = sum(map(len, kinds))
        self._rest = heapq.merge(*kinds)
        self._read: list[Group] = []

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Group: ...

    @overload
    def __getitem__(self, at: slice) -> list[Group]: ...

    def __getitem__(self, at: int | slice) -> Group | list[Group]:
        some = at if isinstance(at, slice) else slice(at, (at + 1) or None)
        last = some.indices(self._count)[1]
        missing = islice(self._rest, max(0, last - len(self._read)))
        self._read += (self._by_id[group_id] for _, group_id in missing)
        return self._read[at]


def dynamic_shape(
    spec: GroupsSpec,
    bundles: tuple[Resources, ...],
    own_group: GangPayload | LeasePayload | JobPayload | None = None,
    *,
    virtual: bool = False,
    node_labels: NodeLabels = (),
    topology: Topology | None = None,
) -> GroupShape:
    """The shape of a dynamic group for these bundles. ``own_group``: how a gang, a lease or a job is
    placed; ``node_labels``: what its agent asks for beside the labels of the pool's groups; ``topology``: how
    close together its task is to be.
    """
    labelled = own_group if isinstance(own_group, (GangPayload, LeasePayload)) else None
    return GroupShape(
        bundles=bundles,
        strategy=spec.strategy if own_group is None else own_group.strategy or spec.strategy,
        node_labels=tuple(sorted({*spec.node_labels.items(), *node_labels})),
        same_label="" if labelled is None else labelled.same_label,
        virtual=virtual,
        parts=1 if own_group is None else own_group.parts,
        topology=topology if len(bundles) > 1 else None,
    )


def shape_on_node(agent: AgentSpec, need: Resources) -> GroupShape:
    """What an agent that needs so much asks for where it runs on a node, outside of placement groups."""
    return GroupShape(bundles=(need,), node_labels=agent.node_labels)


def _kind(group: Group) -> _Kind:
    return (group.pool_name, group.reserved, group.shape)


def _add(counts: dict[_KindT, int], key: _KindT, by: int) -> None:
    number = counts.get(key, 0) + by
    if number:
        counts[key] = number
    else:
        del counts[key]


def _number(group: Group) -> tuple[int, str]:
    """The sort key of group ids by number, within one pool."""
    return (len(group.group_id), group.group_id)


def _idle_since(group: Group) -> tuple[float, str]:
    return (group.idle_since, group.group_id)
