"""What would be if some agents and placement groups were removed: quota, group limit, and room on the nodes.

A scenario changes no state. Removals are tried and taken back one by one (``release``, ``take_back``), and
all of them at once (``reset``). It answers whether an incoming task would then have all that it lacks; every
search for victims and for idle groups asks it, and keeps no state of its own.

Releasing more never makes it worse: ``minimise`` depends on that. A placement that was found is kept until
something that it might need is taken back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import msgspec

from schedulemesh.domain.flavors import TakenFlavor
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.placers import BundlePlacement, on_one_node
from schedulemesh.engine.state.groups import Group, GroupPhase
from schedulemesh.engine.state.lending import LoanCaps

#: Allocations as (node id, the name under which they are held there).
Allocations = tuple[tuple[str, str], ...]


class Demand(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an incoming task lacks before it can start."""

    short_quota: Resources = NOTHING
    #: Whether it lacks a place to run; it has one as soon as ``shape`` has room or a victim's group is taken.
    needs_place: bool = True
    #: The bundles that must find room on the nodes; None: only a victim's group will do.
    shape: GroupShape | None = None
    #: Its pool, and how many dynamic groups of that must be removed before there may be a new one.
    pool_name: str = ""
    too_many_groups: int = 0
    #: The limits of what it may borrow; None: there are none.
    caps: LoanCaps | None = None
    #: The only nodes on which a place is sought for bundles on several nodes; None: all.
    only_nodes: tuple[str, ...] | None = None
    #: The flavor in which it is to run; None: in none.
    flavor: TakenFlavor | None = None

    @property
    def amount(self) -> Resources:
        """What it takes of what victims leave: on nodes, or where it lacks no room there, of quota."""
        if self.shape is not None:
            return self.shape.total
        short = self.short_quota
        return short if self.flavor is None else self.flavor.resources_of(short)


class Removal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What becomes free when one agent, or one group without an agent, is removed."""

    name: str
    quota: Resources = NOTHING
    #: Quota that is free for it within the limits of the demand, by lender.
    limited: tuple[tuple[str, Resources], ...] = ()
    allocations: Allocations = ()
    #: The dynamic group that is removed with it.
    group: Group | None = None
    #: The group that the incoming task gets from it; that one stays.
    preempted_group: Group | None = None
    #: Further groups that are removed with it.
    groups: tuple[Group, ...] = ()
    #: What others that wait get of what becomes free on each node.
    claimed: tuple[tuple[str, Resources], ...] = ()


class Scenario:
    """What would be if some agents and groups were removed, for one demand."""

    def __init__(self, room: Room, demand: Demand) -> None:
        #: ``room`` may have removals that are not in question, such as all idle groups.
        self._room = room
        self._demand = demand
        self._one_node = demand.shape is not None and on_one_node(demand.shape)
        self._released: dict[str, Removal] = {}
        self._freed = NOTHING
        #: What is free within limits, by lender.
        self._limited: dict[str, Resources] = {}
        self._with_groups: set[str] = set()
        #: The only node that counts as a place to run; None: every place does.
        self._only_node: str | None = None
        #: How many removals there are on each node.
        self._changed: Counter[str] = Counter()
        #: How many groups of the demand's pool are still too many.
        self.too_many_groups = demand.too_many_groups
        #: Where the shape has room with nothing released; None: nowhere.
        self.initial = (
            None if demand.shape is None else room.placement(demand.shape, demand.only_nodes)
        )
        #: Where it has room now; None: nowhere, or not known.
        self._placement = self.initial

    def release(self, item: Removal | Group) -> None:
        """Try this removed."""
        removal = _removal(item)
        self._released[removal.name] = removal
        self._move(removal, 1)

    def take_back(self, item: Removal | Group) -> None:
        """Let this stay after all."""
        removal = self._released.pop(_removal(item).name)
        self._move(removal, -1)
        if self._placement is not None:
            node_ids = self._placement.node_ids
            if any(node_id in node_ids for node_id, _ in removal.allocations):
                self._placement = self.initial

    def reset(self, only_node: str | None = None) -> None:
        """Let everything stay. ``only_node``: from now on only this node counts as a place to run; None: any
        place does.
        """
        self._only_node = only_node
        for removal in list(self._released.values()):
            self.take_back(removal)

    def is_released(self, name: str) -> bool:
        """Whether the agent or group of this name is tried removed."""
        return name in self._released

    @property
    def short_quota(self) -> Resources:
        """The quota still lacking."""
        short = self._demand.short_quota.beyond(self._freed)
        caps = self._demand.caps
        if caps is None or not short:
            return short
        return short - caps.usable(short, self._limited)

    def has_place(self) -> bool:
        """Whether there is a place to run, whatever quota says."""
        if not self._demand.needs_place or self._with_groups:
            return True
        return self.too_many_groups <= 0 and self._has_room()

    def _has_room(self) -> bool:
        """Whether there is a placement, which is not sought where counting is enough."""
        shape = self._demand.shape
        if self._placement is None and shape is not None and not self._one_node:
            has_room = self._room.counts_for(shape, self._demand.only_nodes)
            if has_room is not None:
                return has_room
        return self.placement() is not None

    def kind(self, item: Removal | Group) -> Hashable:
        """What is equal for items that make the same difference now, whichever of them is taken back."""
        removal = _removal(item)
        if removal.group or removal.preempted_group or removal.groups or removal.claimed:
            return removal.name
        shape = self._demand.shape
        freed = frozenset[Hashable]()
        if shape is not None:
            freed = frozenset(
                (self._only_node in (None, node_id), self._room.kind(node_id, key, shape))
                for node_id, key in removal.allocations
            )
        if len(freed) < len(removal.allocations) and shape is not None:
            return removal.name
        return (removal.quota, removal.limited, freed)

    def enough(self) -> bool:
        """Whether the incoming task has all that it lacks."""
        return not self.short_quota and self.has_place()

    def placement(self) -> BundlePlacement | None:
        """Where the shape has room; None: nowhere."""
        if self._placement is None and self._demand.shape is not None:
            # On a node from which nothing is removed there was no room before.
            changed = [node_id for node_id, count in self._changed.items() if count]
            if self._only_node is not None:
                changed = [self._only_node] if self._only_node in changed else []
            only = changed if self._one_node else self._demand.only_nodes
            self._placement = self._room.placement(self._demand.shape, only) if changed else None
        return self._placement

    def _move(self, removal: Removal, sign: int) -> None:
        quota = removal.quota
        if self._demand.short_quota:
            self._freed = self._freed + quota if sign > 0 else self._freed - quota
            for lender, amount in removal.limited:
                before = self._limited.get(lender, NOTHING)
                self._limited[lender] = before + amount if sign > 0 else before - amount
        self.too_many_groups -= sign * own_groups(removal, self._demand.pool_name)
        if removal.preempted_group is not None:
            (self._with_groups.add if sign > 0 else self._with_groups.discard)(removal.name)
        if self._demand.shape is None:
            return
        for node_id, key in removal.allocations:
            self._room.release(node_id, key, sign)
            self._changed[node_id] += sign
        for node_id, amount in removal.claimed:
            self._room.claim(node_id, amount, sign)


def own_groups(removal: Removal, pool_name: str) -> int:
    """How many of the dynamic groups that count for a pool are removed with it."""
    removed = removal.groups if removal.group is None else (removal.group, *removal.groups)
    return sum(
        group.dynamic and group.pool_name == pool_name and group.phase is not GroupPhase.ENDING
        for group in removed
    )


def _removal(item: Removal | Group) -> Removal:
    """What becomes free with it; a group is one without an agent."""
    if isinstance(item, Removal):
        return item
    return Removal(name=item.group_id, allocations=bundle_allocations(item), group=item)


def bundle_allocations(group: Group) -> Allocations:
    """What the bundles of a group hold on the nodes."""
    return tuple((node_id, group.key(i)) for i, node_id in enumerate(group.node_ids))
