"""The victim search for a newcomer that needs a placement group: who leaves, and which group it gets.

Best is a victim whose own group suits: the victim goes, the group stays, and nothing is made anew. First one
such victim that is enough for quota too, highest score first; else one of them with others for quota. Only if
there is none, and only where the caller lets quota and nodes be fought for, groups are removed with their
agents until a new one has room: on one node, or wherever its strategy leads. Nodes are compared as in
``victims``. Everyone who turns out not to be needed is given back, lowest score first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from schedulemesh.engine.draft import Draft
from schedulemesh.engine.homes import Home, NoHome, Wish, suits
from schedulemesh.engine.pg_pool import Group, GroupPhase
from schedulemesh.engine.placing import Room, Spot
from schedulemesh.engine.running import TaskClass
from schedulemesh.engine.state import MeshState
from schedulemesh.engine.victims import Bound, Search, Unit, place_of

#: Victims that are looked at for a group that spreads over nodes, highest score first.
_LOOKED_AT = 500


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who leaves, and the group that the newcomer gets."""

    units: tuple[Unit, ...]
    home: Home


class GroupSearch(msgspec.Struct, kw_only=True):
    """One search. ``search`` knows the newcomer and its quota; room on a node is not in question there."""

    search: Search
    wish: Wish
    home: Home | NoHome
    #: Nobody leaves for quota, and no group is removed.
    for_group: bool

    def plan(self) -> GroupPlan | None:
        """Who leaves; None: no eviction that the policy allows would give the newcomer quota and group."""
        if isinstance(self.home, Home):
            plan = None if self.for_group else self.search.plan()
            return None if plan is None else GroupPlan(units=plan.units, home=self.home)
        if self.for_group and self.search.short_quota:
            return None
        return self._handed_over() or (None if self.for_group else self._made_room())

    @property
    def _state(self) -> MeshState:
        return self.search.state

    def _handed_over(self) -> GroupPlan | None:
        """The group of a victim."""
        first: Unit | None = None
        for unit in self.search.units(self._of_my_pool):
            group = self._suiting(unit)
            if group is None:
                continue
            if not self._quota_with(unit).short_quota:
                return GroupPlan(units=(unit,), home=Home(path="preempted", group=group))
            first = first or unit
        if first is None or self.for_group:
            return None
        taken = self.search.fill_quota(self._quota_with(first), (first,))
        if taken is None:
            return None
        kept = self._given_back(taken, self._enough_to_hand_over)
        return self._plan_with_group(kept)

    def _plan_with_group(self, units: Sequence[Unit]) -> GroupPlan | None:
        for unit in units:
            group = self._suiting(unit)
            if group is not None:
                return GroupPlan(units=tuple(units), home=Home(path="preempted", group=group))
        return None

    def _made_room(self) -> GroupPlan | None:
        """A new group where victims, and the groups that they leave behind, stand now."""
        if not isinstance(self.home, NoHome) or not self.home.could_ever:
            return None
        if not self.wish.spec.dynamic or self.wish.spec.max_dynamic < 1:
            return None
        best: tuple[Bound, GroupPlan] | None = None
        for site, units in self._sites().items():
            taken = self._taken_at(units)
            if taken is None:
                continue
            kept = tuple(self._given_back(taken, self._enough_to_make))
            spot = self._spot_without(kept)
            if not isinstance(spot, Spot):
                continue
            leaving = tuple(group for unit in kept if (group := self._leaving(unit)) is not None)
            place = place_of(kept, site)
            if best is None or place < best[0]:
                home = Home(path="created", spot=spot, leaving=leaving)
                best = (place, GroupPlan(units=kept, home=home))
        return None if best is None else best[1]

    def _sites(self) -> dict[str, list[Unit]]:
        """Whose leaving makes room where: by node for a group that goes on one, else all together."""
        one_node = len(self.wish.shape.bundles) == 1 or self.wish.shape.strategy == "STRICT_PACK"
        sites: dict[str, list[Unit]] = {}
        for looked_at, unit in enumerate(self.search.units(_any)):
            if not one_node and looked_at >= _LOOKED_AT:
                break
            for node_id, _ in self._frees(unit):
                site = sites.setdefault(node_id if one_node else "", [])
                if not site or site[-1] is not unit:
                    site.append(unit)
        return sites

    def _taken_at(self, units: Sequence[Unit]) -> tuple[Unit, ...] | None:
        """Candidates in order until the pool's limit, the nodes and the quota suffice."""
        taken: list[Unit] = []
        if not self._below_limit(taken):
            own = next((unit for unit in units if self._frees_limit(unit)), None)
            own = own or next(filter(self._frees_limit, self.search.units(self._of_my_pool)), None)
            if own is None:
                return None
            taken.append(own)
        for unit in units:
            if self._has_spot(taken):
                break
            if unit not in taken:
                taken.append(unit)
        if not self._has_spot(taken):
            return None
        draft = self._quota_with(*taken)
        return self.search.fill_quota(draft, tuple(taken)) if draft.short_quota else tuple(taken)

    def _given_back(
        self, units: Sequence[Unit], enough: Callable[[Sequence[Unit]], bool]
    ) -> list[Unit]:
        """The same without those that are not needed, lowest score first."""
        kept = sorted(units, key=lambda unit: unit.order)
        for unit in reversed(tuple(kept)):
            fewer = [other for other in kept if other is not unit]
            if fewer and enough(fewer):
                kept = fewer
        return kept

    def _enough_to_hand_over(self, units: Sequence[Unit]) -> bool:
        return not self._quota_with(*units).short_quota and any(map(self._suiting, units))

    def _enough_to_make(self, units: Sequence[Unit]) -> bool:
        quota = not self._quota_with(*units).short_quota
        return quota and self._below_limit(units) and self._has_spot(units)

    def _has_spot(self, units: Sequence[Unit]) -> bool:
        return isinstance(self._spot_without(units), Spot)

    def _spot_without(self, units: Sequence[Unit]) -> object:
        room = Room(self._state.cluster)
        for unit in units:
            for node_id, key in self._frees(unit):
                room.release(node_id, key)
        return room.place(self.wish.shape)

    def _below_limit(self, units: Sequence[Unit]) -> bool:
        freed = sum(map(self._frees_limit, units))
        have = self._state.groups.dynamic_count(self.wish.pool_name)
        return have - freed < self.wish.spec.max_dynamic

    def _frees_limit(self, unit: Unit) -> bool:
        group = self._leaving(unit)
        return group is not None and group.pool_name == self.wish.pool_name

    def _frees(self, unit: Unit) -> Iterator[tuple[str, str]]:
        """(node id, under which name it stands there) of all room that its leaving frees."""
        group = self._leaving(unit)
        if group is not None:
            yield from ((node_id, group.key(i)) for i, node_id in enumerate(group.node_ids))
        elif unit.agent.group_id is None and unit.agent.node_id is not None:
            yield unit.agent.node_id, unit.agent.spec.name

    def _leaving(self, unit: Unit) -> Group | None:
        """The dynamic group that would go with it."""
        group = self._state.groups.by_id.get(unit.agent.group_id or "")
        if group is None or group.reserved or not _its_own(group, unit):
            return None
        return group

    def _suiting(self, unit: Unit) -> Group | None:
        """Its group, if the newcomer may have that."""
        group = self._state.groups.by_id.get(unit.agent.group_id or "")
        if group is None or not _its_own(group, unit):
            return None
        return group if suits(self._state, self.wish, group) else None

    def _quota_with(self, *units: Unit) -> Draft:
        draft = Draft(self.search.need, self.search.short_quota, None)
        for unit in units:
            draft.release(unit.agent)
        return draft

    def _of_my_pool(self, task_class: TaskClass) -> bool:
        return task_class.has_tasks() and task_class.pool_name == self.wish.pool_name


def _any(task_class: TaskClass) -> bool:
    return task_class.has_tasks()


def _its_own(group: Group, unit: Unit) -> bool:
    """Whether the agent lives there, and nobody else was promised the group."""
    lives = group.agent == unit.agent.spec.name and group.phase is GroupPhase.READY
    return lives and group.promised_to is None and group.leaves_for is None
