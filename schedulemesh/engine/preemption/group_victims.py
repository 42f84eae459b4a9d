"""The victim search for a newcomer that needs a placement group: who leaves, and which group it gets.

Best is a victim whose own group suits: the victim goes, the group stays, and nothing is made anew. In this
order: one such victim that is enough for quota too, highest score first; one whose group is removed for a
new one; one whose group suits with others for quota; several whose groups are removed. A group is removed,
and others leave for quota, only where the caller lets quota and nodes be fought for. Everyone who turns out
not to be needed is given back, lowest score first.

A newcomer of a pool without groups may need room where groups stand, too (``with_groups``).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.engine.placement.group_choice import (
    Home,
    NoHome,
    Wish,
    excess,
    lives_alone,
    suits,
)
from schedulemesh.engine.preemption.group_room import Cleared, Clearing
from schedulemesh.engine.preemption.scenario import Draft
from schedulemesh.engine.preemption.search import Bound, Plan, Search, Unit, place_of
from schedulemesh.engine.state.groups import Group
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.tasks import TaskClass


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
        one, first = self._handed_over()
        if one is not None or self.for_group:
            return one
        clearing = self._clearing()
        return (
            (None if clearing is None else self._made(clearing.one()))
            or (None if first is None else self._handed_over_with(first))
            or (None if clearing is None else self._made(clearing.several()))
        )

    @property
    def _state(self) -> MeshState:
        return self.search.state

    def _handed_over(self) -> tuple[GroupPlan | None, Unit | None]:
        """The group of the first victim that is enough, and the first one whose group would do."""
        first: Unit | None = None
        for unit in self.search.units(self._of_my_pool):
            group = self._suiting(unit)
            if group is None:
                continue
            if not self._quota_with(unit).short_quota:
                home = Home(path="preempted", group=group)
                return GroupPlan(units=(unit,), home=home), unit
            first = first or unit
        return None, first

    def _handed_over_with(self, first: Unit) -> GroupPlan | None:
        """The group of one victim, and others for quota."""
        taken = self.search.fill_quota(self._quota_with(first), (first,))
        return None if taken is None else self._plan_with_group(self._needed(taken))

    def _plan_with_group(self, units: Sequence[Unit]) -> GroupPlan | None:
        for unit in units:
            group = self._suiting(unit)
            if group is not None:
                return GroupPlan(units=tuple(units), home=Home(path="preempted", group=group))
        return None

    def _clearing(self) -> Clearing | None:
        """The search for room for a new group; None: there may be no new one."""
        spec = self.wish.spec
        if not isinstance(self.home, NoHome) or not self.home.could_ever:
            return None
        if not spec.dynamic or spec.max_dynamic < 1:
            return None
        return Clearing(
            self.search,
            self.wish.shape,
            own=self.wish.pool_name,
            too_many=excess(self._state, self.wish),
        )

    def _made(self, found: Cleared | None) -> GroupPlan | None:
        if found is None:
            return None
        home = Home(path="created", spot=found.spot, leaving=found.leaving)
        return GroupPlan(units=found.units, home=home)

    def _needed(self, units: Sequence[Unit]) -> list[Unit]:
        """The same without those that are not needed, lowest score first."""
        kept = sorted(units, key=lambda unit: unit.order)
        for unit in reversed(tuple(kept)):
            fewer = [other for other in kept if other is not unit]
            if self._enough_to_hand_over(fewer):
                kept = fewer
        return kept

    def _enough_to_hand_over(self, units: Sequence[Unit]) -> bool:
        return not self._quota_with(*units).short_quota and any(map(self._suiting, units))

    def _suiting(self, unit: Unit) -> Group | None:
        """Its group, if the newcomer may have that."""
        group = self._state.groups.by_id.get(unit.agent.group_id or "")
        if group is None or not lives_alone(group, unit.agent.spec.name):
            return None
        return group if suits(self._state, self.wish, group) else None

    def _quota_with(self, *units: Unit) -> Draft:
        draft = Draft(self.search.need, self.search.short_quota, None)
        for unit in units:
            draft.release(unit.agent)
        return draft

    def _of_my_pool(self, task_class: TaskClass) -> bool:
        return task_class.has_tasks() and task_class.pool_name == self.wish.pool_name


def with_groups(search: Search, plan: Plan | None) -> Plan | None:
    """The best plan for a newcomer without a group, ``plan`` being the best that leaves groups alone."""
    groups = search.state.groups.by_id.values()
    if not search.by_node or not groups:
        return plan
    if plan is not None and len(plan.units) == 1:
        return plan
    nodes = {node_id for group in groups if not group.reserved for node_id in group.node_ids}
    clearing = Clearing(search, GroupShape(bundles=(search.need,)), nodes=nodes)
    found = clearing.one() or clearing.several()
    if found is None or (plan is not None and _rank(plan.units) <= _rank(found.units)):
        return plan
    return Plan(
        units=found.units,
        node_id=found.spot.node_ids[0],
        groups=found.leaving,
    )


def _rank(units: tuple[Unit, ...]) -> tuple[bool, Bound]:
    return (len(units) > 1, place_of(units, ""))
