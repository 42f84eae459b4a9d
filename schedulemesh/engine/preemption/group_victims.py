"""The victim search for a newcomer that needs a placement group: who leaves, and which group it gets.

A victim may hand its group over where that suits: the group stays, and nothing is made anew. Or its group is
removed, or its room on the nodes used, for a new one. Which of the two it is makes no difference to who goes:
first one victim that is enough, in the policy's order of victims; only if there is none several, compared as
nodes are in ``search``. Where the order does not tell two choices apart, the group that is handed over wins,
because it costs less. A group is removed, and others leave for quota, only where the caller lets quota and
nodes be fought for. Everyone who turns out not to be needed is given back, lowest score first.

A newcomer of a pool without groups may need room where groups stand, too (``with_groups``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.engine.placement.group_choice import (
    Assignment,
    GroupRequest,
    NoAssignment,
    excess,
    lives_alone,
    suits,
)
from schedulemesh.engine.placement.minimise import minimise
from schedulemesh.engine.preemption.group_room import Cleared, RoomSearch
from schedulemesh.engine.preemption.scenario import Scenario
from schedulemesh.engine.preemption.search import Plan, Search, VictimAgent, order_of, place_of
from schedulemesh.engine.state.groups import Group
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.tasks import TaskClass


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who leaves, and the group that the newcomer gets."""

    units: tuple[VictimAgent, ...]
    assignment: Assignment


class GroupSearch(msgspec.Struct, kw_only=True):
    """One search. ``search`` knows the newcomer and its quota; room on a node is not in question there."""

    search: Search
    group_request: GroupRequest
    assignment: Assignment | NoAssignment
    #: Nobody leaves for quota, and no group is removed.
    for_group: bool

    def plan(self) -> GroupPlan | None:
        """Who leaves; None: no eviction that the policy allows would give the newcomer quota and group."""
        if isinstance(self.assignment, Assignment):
            plan = None if self.for_group else self.search.plan()
            return None if plan is None else GroupPlan(units=plan.units, assignment=self.assignment)
        if self.for_group and self.search.short_quota:
            return None
        handed_over = self._handed_over()
        if self.for_group or (handed_over is not None and self._is_first(handed_over)):
            return handed_over
        room_search = self._room_search()
        made = None if room_search is None else self._made(room_search.one())
        if handed_over is not None or made is not None:
            return _first_of(handed_over, made, _order)
        made = None if room_search is None else self._made(room_search.several())
        return _first_of(self._handed_over_with_others(), made, _place)

    @property
    def _state(self) -> MeshState:
        return self.search.state

    def _handed_over(self) -> GroupPlan | None:
        """The group of the first victim that is enough."""
        for unit in self.search.units(self._of_my_pool):
            group = self._suiting(unit)
            if group is not None and not self._quota_with(unit).short_quota:
                return GroupPlan(
                    units=(unit,), assignment=Assignment(path="preempted", group=group)
                )
        return None

    def _is_first(self, plan: GroupPlan) -> bool:
        """Whether no candidate at all comes before its victim, so that nothing else needs to be tried."""
        first = next(self.search.units(TaskClass.has_tasks), None)
        return first is not None and first.order[:2] >= _order(plan)

    def _handed_over_with_others(self) -> GroupPlan | None:
        """The group of one victim, and others for quota: of each priority the first one is tried."""
        firsts: dict[float, VictimAgent] = {}
        for unit in self.search.units(self._of_my_pool):
            if unit.top_priority not in firsts and self._suiting(unit) is not None:
                firsts[unit.top_priority] = unit
        best: GroupPlan | None = None
        for unit in firsts.values():
            taken = self.search.fill_quota(self._quota_with(unit), (unit,))
            found = None if taken is None else self._plan_with_group(self._needed(taken))
            best = _first_of(best, found, _place)
        return best

    def _plan_with_group(self, units: Sequence[VictimAgent]) -> GroupPlan | None:
        for unit in units:
            group = self._suiting(unit)
            if group is not None:
                return GroupPlan(
                    units=tuple(units), assignment=Assignment(path="preempted", group=group)
                )
        return None

    def _room_search(self) -> RoomSearch | None:
        """The search for room for a new group; None: there may be no new one."""
        spec = self.group_request.spec
        if not isinstance(self.assignment, NoAssignment) or not self.assignment.could_ever:
            return None
        if not spec.dynamic or spec.max_dynamic < 1:
            return None
        return RoomSearch(
            self.search,
            self.group_request.shape,
            own=self.group_request.pool_name,
            too_many=excess(self._state, self.group_request),
        )

    def _made(self, found: Cleared | None) -> GroupPlan | None:
        if found is None:
            return None
        assignment = Assignment(path="created", placement=found.placement, leaving=found.leaving)
        return GroupPlan(units=found.units, assignment=assignment)

    def _needed(self, units: Sequence[VictimAgent]) -> list[VictimAgent]:
        """The same without those that are not needed: lowest score first they stay."""
        scenario = self._quota_with(*units)
        handing_over = {unit.agent.spec.name for unit in units if self._suiting(unit) is not None}
        trial = _HandingOver(scenario, handing_over)
        kept = minimise(trial, sorted(units, key=order_of, reverse=True), trial.enough)
        return kept[::-1]

    def _suiting(self, unit: VictimAgent) -> Group | None:
        """Its group, if the newcomer may have that."""
        group = self._state.groups.by_id.get(unit.agent.group_id or "")
        if group is None or not lives_alone(group, unit.agent.spec.name):
            return None
        return group if suits(self._state, self.group_request, group) else None

    def _quota_with(self, *units: VictimAgent) -> Scenario:
        scenario = Scenario(self.search.need, self.search.short_quota, None)
        for unit in units:
            scenario.release(unit)
        return scenario

    def _of_my_pool(self, task_class: TaskClass) -> bool:
        return task_class.has_tasks() and task_class.pool_name == self.group_request.pool_name


class _HandingOver:
    """Quota if some agents were gone, and whether one of them leaves a group that fits."""

    def __init__(self, quota: Scenario, handing_over: set[str]) -> None:
        #: The agents whose groups would do; those that are tried gone.
        self._left = handing_over
        self._stay: set[str] = set()
        self._quota = quota

    def release(self, unit: VictimAgent) -> None:
        """See Trial."""
        self._quota.release(unit)
        self._stay.discard(unit.agent.spec.name)

    def take_back(self, unit: VictimAgent) -> None:
        """See Trial."""
        self._quota.take_back(unit)
        self._stay.add(unit.agent.spec.name)

    def enough(self) -> bool:
        """Whether quota suffices, and there is a group."""
        return not self._quota.short_quota and bool(self._left - self._stay)


def _first_of(
    one: GroupPlan | None, other: GroupPlan | None, order: Callable[[GroupPlan], tuple[float, ...]]
) -> GroupPlan | None:
    """The plan that comes first by this order; the first one where it does not tell them apart."""
    if one is None or other is None:
        return one or other
    return other if order(other) < order(one) else one


def _order(plan: GroupPlan) -> tuple[float, ...]:
    """Where the plan's only victim stands in the policy's order, but for its start and its id."""
    return plan.units[0].order[:2]


def _place(plan: GroupPlan) -> tuple[float, ...]:
    top, many, lost, _ = place_of(plan.units, "")
    return (top, many, lost)


def with_groups(search: Search, plan: Plan | None) -> Plan | None:
    """The best plan for a newcomer without a group, ``plan`` being the best that leaves groups alone."""
    groups = search.state.groups.by_id.values()
    if not search.by_node or not groups:
        return plan
    nodes = {node_id for group in groups if not group.reserved for node_id in group.node_ids}
    room_search = RoomSearch(search, GroupShape(bundles=(search.need,)), nodes=nodes)
    found = room_search.one()
    if found is None and (plan is None or len(plan.units) > 1):
        found = room_search.several()
    if found is None or (plan is not None and _rank(plan.units) <= _rank(found.units)):
        return plan
    return Plan(
        units=found.units,
        node_id=found.placement.node_ids[0],
        groups=found.leaving,
    )


def _rank(
    units: tuple[VictimAgent, ...],
) -> tuple[bool, tuple[float, ...] | tuple[float, float, float, str]]:
    """One victim before several; one by the policy's order, several as nodes are compared."""
    if len(units) == 1:
        return (False, units[0].order)
    return (True, place_of(units, "")[:3])
