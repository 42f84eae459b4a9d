"""The book of placement groups: which exist, who lives in them, and which are free for whom.

A group's bundles stand on the nodes like agents do; its agent stands in the group. One agent has one group:
a share of a group would be room that nobody can promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec
from sortedcontainers import SortedList

from schedulemesh.domain.labels import Labels, matches
from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.facts import Devices

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
    #: The GPU devices that each bundle will hold when its room is whole.
    wanted: tuple[Devices, ...] = ()
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


class GroupBook:
    """All groups of all pools, with the free ones by kind, the longest free first."""

    def __init__(self) -> None:
        self.by_id: dict[str, Group] = {}
        #: Ids by pool name, for pools that keep or kept groups.
        self.of_pool: dict[str, dict[str, None]] = {}
        #: By pool name.
        self.counts: dict[str, PoolCounts] = {}
        #: Reserved groups that were destroyed on demand, and stay gone until their pool is ensured again.
        self.dropped: dict[tuple[str, GroupShape], int] = {}
        #: The number in the id of the next group; never given twice.
        self.next_number = 1
        #: (idle since, id) by kind.
        self._free: dict[_Kind, SortedList[tuple[float, str]]] = {}
        self._living: dict[_Kind, int] = {}
        self._dynamic: dict[str, int] = {}

    def add(self, group: Group) -> None:
        """A group comes onto the book."""
        self.by_id[group.group_id] = group
        self.of_pool.setdefault(group.pool_name, {})[group.group_id] = None
        self.counts.setdefault(group.pool_name, PoolCounts())
        if group.phase is not GroupPhase.ENDING:
            self._count(group, 1)
        self.sort(group)

    def remove(self, group_id: str) -> Group:
        """A group goes off the book."""
        group = self.by_id.pop(group_id)
        del self.of_pool[group.pool_name][group_id]
        if group.phase is not GroupPhase.ENDING:
            self._count(group, -1)
        self._forget_free(group)
        return group

    def end(self, group: Group) -> None:
        """A group is being removed: it is neither free nor counted any more."""
        group.phase = GroupPhase.ENDING
        self._count(group, -1)
        self.sort(group)

    def sort(self, group: Group) -> None:
        """List the group as free, or not, as it is now."""
        self._forget_free(group)
        if group.free:
            self._free.setdefault(_kind(group), SortedList()).add(_idle_since(group))

    def living(self, pool_name: str, *, reserved: bool, shape: GroupShape) -> int:
        """How many groups of this kind there are, those that end not counted."""
        return self._living.get((pool_name, reserved, shape), 0)

    def dynamic_count(self, pool_name: str) -> int:
        """How many dynamic groups the pool has, those that end not counted."""
        return self._dynamic.get(pool_name, 0)

    def free_of(self, pool_name: str, *, reserved: bool, shape: GroupShape) -> Iterator[Group]:
        """The free groups of one kind, the longest free first."""
        for _, group_id in self._free.get((pool_name, reserved, shape), ()):
            yield self.by_id[group_id]

    def idle(self) -> list[Group]:
        """Every free dynamic group, the longest idle first."""
        found = [
            self.by_id[group_id]
            for (_, reserved, _), ids in self._free.items()
            if not reserved
            for _, group_id in ids
        ]
        return sorted(found, key=_idle_since)

    def check(self) -> None:
        """Raise AssertionError unless what is indexed is what the groups are."""
        free = {(kind, entry) for kind, entries in self._free.items() for entry in entries}
        if free != {(_kind(g), _idle_since(g)) for g in self.by_id.values() if g.free}:
            raise AssertionError("the index of free groups is not the free groups")
        fresh = GroupBook()
        for group in self.by_id.values():
            fresh.add(group)
        if (fresh._living, fresh._dynamic) != (self._living, self._dynamic):
            raise AssertionError("the counts of groups are not the groups")

    def _count(self, group: Group, by: int) -> None:
        _add(self._living, _kind(group), by)
        if not group.reserved:
            _add(self._dynamic, group.pool_name, by)

    def _forget_free(self, group: Group) -> None:
        entries = self._free.get(_kind(group))
        if entries is not None:
            entries.discard(_idle_since(group))
            if not entries:
                del self._free[_kind(group)]


def best_reserved(spec: GroupsSpec, bundles: tuple[Resources, ...]) -> GroupShape | None:
    """The reserved shape that is the closest fit for these bundles; None: none holds them.

    Only that one is theirs: a small task in a big group would block what the big one is kept for.
    """
    holding = [shape for shape in dict.fromkeys(spec.reserved) if shape.holds(bundles)]
    return min(holding, key=_size, default=None)


def dynamic_shape(spec: GroupsSpec, bundles: tuple[Resources, ...]) -> GroupShape:
    """The shape of a group that is made for these bundles."""
    return GroupShape(
        bundles=bundles,
        strategy=spec.strategy,
        node_labels=tuple(sorted(spec.node_labels.items())),
    )


def entitled(spec: GroupsSpec, priority: float, labels: Labels) -> bool:
    """Whether a task of this priority and these labels may have reserved groups."""
    by_label = bool(spec.entitled_labels) and matches(spec.entitled_labels, labels)
    return priority > spec.entitled_above or by_label


def _kind(group: Group) -> _Kind:
    return (group.pool_name, group.reserved, group.shape)


def _add(counts: dict[_Kind, int] | dict[str, int], key: object, by: int) -> None:
    counts[key] = counts.get(key, 0) + by  # type: ignore[index,call-overload]  # a key of its own
    if not counts[key]:  # type: ignore[index]
        del counts[key]  # type: ignore[arg-type]


def _idle_since(group: Group) -> tuple[float, str]:
    return (group.idle_since, group.group_id)


def _size(shape: GroupShape) -> tuple[int, int, int, int]:
    total = shape.total
    return (total.gpu, total.cpu, total.memory, sum(units for _, units in total.custom))
