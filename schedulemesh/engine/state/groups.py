"""The book of placement groups: which exist, who lives in them, and which are free for whom.

A group's bundles stand on the nodes like agents do; its agent stands in the group. One agent has one group:
a share of a group would be room that nobody can promise.
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

from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.resources import Resources

#: No agent's name begins with it, so that bundles and agents stand side by side on a node.
MARK = "\x1f"


class GroupPhase(str, Enum):
    """Where a placement group stands."""

    #: Its room is not whole yet: others are still leaving for it.
    PLANNED = "planned"
    #: Its room is held on the nodes, and Ray is making it.
    CREATING = "creating"
    READY = "ready"
    #: Being removed; its room is held until it is gone.
    ENDING = "ending"


class Group(msgspec.Struct, kw_only=True, gc=False):
    """A placement group on the book."""

    group_id: str
    pool_name: str
    shape: GroupShape
    #: Kept for entitled tasks; False: dynamic.
    reserved: bool
    phase: GroupPhase
    #: The node of each bundle.
    node_ids: tuple[str, ...]
    #: The agent that lives in it, or that it is made for.
    agent: str | None = None
    #: The agent that gets it once the present one has left.
    promised_to: str | None = None
    #: The agent that its room goes to: it is removed when nobody lives in it any more.
    leaves_for: str | None = None
    #: Since when nobody uses it, in seconds since 1970.
    idle_since: float = 0.0
    #: How many agents have lived in it.
    used: int = 0
    #: Whether Ray has ever placed it.
    made: bool = False

    @property
    def free(self) -> bool:
        """Whether the next agent may have it."""
        return self.phase is GroupPhase.READY and self.agent is None and self.leaves_for is None

    @property
    def coming(self) -> bool:
        """Whether it is being made for nobody in particular."""
        return self.phase is GroupPhase.CREATING and self.agent is None

    def key(self, bundle: int) -> str:
        """Under which name a bundle stands on its node."""
        return f"{MARK}{self.group_id}/{bundle}"


class PoolCounts(msgspec.Struct, kw_only=True, gc=False):
    """What has happened to the groups of one pool."""

    created: int = 0
    #: Agents that came to a group which had been used before.
    reused: int = 0
    destroyed: int = 0
    #: Agents that came to a group, and the seconds that all of them waited for it.
    entered: int = 0
    waited_s: float = 0.0
    #: The last group that Ray did not place: when, and why.
    failed_at: float = float("-1e9")
    error: str = ""


#: Groups that can stand for each other: pool, whether reserved, shape.
_Kind = tuple[str, bool, GroupShape]
_KindT = TypeVar("_KindT", bound=Hashable)
_NONE: Mapping[GroupShape, int] = MappingProxyType({})


class GroupBook:
    """All groups of all pools, with the free ones by kind, the longest free first."""

    def __init__(self) -> None:
        self.by_id: dict[str, Group] = {}
        #: Ids by pool name, for pools that keep or kept groups; the first that did first.
        self.of_pool: dict[str, dict[str, None]] = {}
        #: By pool name.
        self.counts: dict[str, PoolCounts] = {}
        #: Reserved groups that were destroyed on demand, and stay gone until their pool is ensured again.
        self.dropped: dict[tuple[str, GroupShape], int] = {}
        #: The number in the id of the next group; never given twice.
        self.next_number = 1
        #: Ids of those that are being removed.
        self.ending: dict[str, None] = {}
        #: How many reserved groups of each shape a pool's definition names, by pool name.
        self._named: dict[str, dict[GroupShape, int]] = {}
        #: How many of them are wanted and not there; kept up to date, so that nobody counts all groups.
        self._lacking: dict[str, dict[GroupShape, int]] = {}
        #: (idle since, id) by kind.
        self._free: dict[_Kind, SortedList[tuple[float, str]]] = {}
        #: (length of id, id), that is by number, of groups that are being made for nobody in particular, by
        #: kind.
        self._coming: dict[_Kind, SortedList[tuple[int, str]]] = {}
        self._living: dict[_Kind, int] = {}
        #: By pool name and whether reserved.
        self._placed: dict[tuple[str, bool], int] = {}

    def define(self, pool_name: str, spec: GroupsSpec | None) -> None:
        """The pool keeps groups like this from now on."""
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
        """So many reserved groups are not wanted until the pool is ensured again."""
        self.dropped[pool_name, shape] = self.dropped.get((pool_name, shape), 0) + number
        self._look(pool_name, shape)

    def add(self, group: Group) -> None:
        """A group comes onto the book."""
        self.by_id[group.group_id] = group
        self.of_pool.setdefault(group.pool_name, {})[group.group_id] = None
        self.counts.setdefault(group.pool_name, PoolCounts())
        if group.phase is GroupPhase.ENDING:
            self.ending[group.group_id] = None
        else:
            self._count(group, 1)
        self.sort(group)

    def remove(self, group_id: str) -> Group:
        """A group goes off the book."""
        group = self.by_id.pop(group_id)
        del self.of_pool[group.pool_name][group_id]
        if group.phase is GroupPhase.ENDING:
            del self.ending[group_id]
        else:
            self._count(group, -1)
        self._unlist(_kind(group), group)
        return group

    def end(self, group: Group) -> None:
        """A group is being removed: it is neither free nor counted any more."""
        group.phase = GroupPhase.ENDING
        self.ending[group.group_id] = None
        self._count(group, -1)
        self.sort(group)

    def sort(self, group: Group) -> None:
        """List the group as free, or coming, or neither, as it is now."""
        kind = _kind(group)
        self._unlist(kind, group)
        if group.free:
            self._free.setdefault(kind, SortedList()).add(_idle_since(group))
        elif group.coming:
            self._coming.setdefault(kind, SortedList()).add(_number(group))

    def living(self, pool_name: str, *, reserved: bool, shape: GroupShape) -> int:
        """How many groups of this kind there are, those that end not counted."""
        return self._living.get((pool_name, reserved, shape), 0)

    def dynamic_count(self, pool_name: str) -> int:
        """How many dynamic groups the pool has, those that end not counted."""
        return self._placed.get((pool_name, False), 0)

    def count(self, pool_name: str) -> int:
        """How many groups the pool has, those that end not counted."""
        return self.dynamic_count(pool_name) + self._placed.get((pool_name, True), 0)

    def reserved_shapes(self, pool_name: str) -> Iterable[GroupShape]:
        """The shapes of the reserved groups that a pool's definition names, each once."""
        return self._named.get(pool_name, ())

    def wanted(self, pool_name: str, shape: GroupShape) -> int:
        """How many reserved groups of this shape the pool is to have."""
        named = self._named.get(pool_name, {}).get(shape, 0)
        return named - self.dropped.get((pool_name, shape), 0)

    def lacking(self, pool_name: str) -> Mapping[GroupShape, int]:
        """How many reserved groups of each shape are wanted and not there."""
        lacking = self._lacking.get(pool_name)
        if lacking is None:
            return _NONE
        return {shape: lacking[shape] for shape in self._named[pool_name] if shape in lacking}

    def free_of(self, pool_name: str, *, reserved: bool, shape: GroupShape) -> Iterator[Group]:
        """The free groups of one kind, the longest free first."""
        for _, group_id in self._free.get((pool_name, reserved, shape), ()):
            yield self.by_id[group_id]

    def coming_of(self, pool_name: str, *, reserved: bool, shape: GroupShape) -> Iterator[Group]:
        """The groups of one kind that are being made for nobody in particular, the first made first."""
        for _, group_id in self._coming.get((pool_name, reserved, shape), ()):
            yield self.by_id[group_id]

    def free_dynamic(self) -> Iterator[tuple[str, Iterator[Group]]]:
        """The free dynamic groups by kind: the pool's name, and its groups, the longest free first."""
        for (pool_name, reserved, _), entries in self._free.items():
            if not reserved:
                yield pool_name, (self.by_id[group_id] for _, group_id in entries)

    def idle(self) -> Sequence[Group]:
        """Every free dynamic group, the longest idle first; looked up only as far as it is read, and valid
        until a group changes.
        """
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
        """Raise AssertionError unless what is indexed is what the groups are."""
        free = {(kind, entry) for kind, entries in self._free.items() for entry in entries}
        if free != {(_kind(g), _idle_since(g)) for g in self.by_id.values() if g.free}:
            raise AssertionError("the index of free groups is not the free groups")
        fresh = GroupBook()
        fresh.dropped, fresh._named = self.dropped, self._named
        for group in self.by_id.values():
            fresh.add(group)
        for pool_name, shapes in self._named.items():
            for shape in shapes:
                fresh._look(pool_name, shape)
        for field in ("_coming", "_living", "_placed", "_lacking", "ending"):
            if getattr(fresh, field) != getattr(self, field):
                raise AssertionError(f"{field.lstrip('_')} is not what the groups are")

    def _count(self, group: Group, by: int) -> None:
        _add(self._living, _kind(group), by)
        _add(self._placed, (group.pool_name, group.reserved), by)
        if group.reserved:
            self._look(group.pool_name, group.shape)

    def _look(self, pool_name: str, shape: GroupShape) -> None:
        """Write down anew how many reserved groups of this shape the pool lacks."""
        lacking = self._lacking.setdefault(pool_name, {})
        short = self.wanted(pool_name, shape) - self.living(pool_name, reserved=True, shape=shape)
        if short > 0:
            lacking[shape] = short
        else:
            lacking.pop(shape, None)
        if not lacking:
            del self._lacking[pool_name]

    def _unlist(self, kind: _Kind, group: Group) -> None:
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


def dynamic_shape(spec: GroupsSpec, bundles: tuple[Resources, ...]) -> GroupShape:
    """The shape of a group that is made for these bundles."""
    return GroupShape(
        bundles=bundles,
        strategy=spec.strategy,
        node_labels=tuple(sorted(spec.node_labels.items())),
    )


def _kind(group: Group) -> _Kind:
    return (group.pool_name, group.reserved, group.shape)


def _add(counts: dict[_KindT, int], key: _KindT, by: int) -> None:
    number = counts.get(key, 0) + by
    if number:
        counts[key] = number
    else:
        del counts[key]


def _number(group: Group) -> tuple[int, str]:
    """In the order of their numbers, within one pool."""
    return (len(group.group_id), group.group_id)


def _idle_since(group: Group) -> tuple[float, str]:
    return (group.idle_since, group.group_id)
