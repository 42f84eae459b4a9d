"""Whether external work that waits in Ray would get the room that an eviction frees.

Ray gives free room to an actor that already waits for it before one that is created later, and decides by
chance between two that wait. A placement group that is to be created loses to both. So an eviction frees room
for an incoming task only where nothing waits that would fit there, or where its room is handed over: an agent
with GPUs runs in a placement group of its own (``runtime/groups/rooms.py``), and an incoming agent that asks
for the same gets this group as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from schedulemesh.domain.demand import ExternalDemand
from schedulemesh.domain.resources import NOTHING, Resources, sum_of
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.placement.scenario import Removal
from schedulemesh.engine.preemption.search import EvictionPlan
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import held_by


class Contest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why the room that a plan frees would not be the incoming task's."""

    node_id: str
    #: What would get it before; empty: external work got it after an eviction for this task before.
    rivals: tuple[ExternalDemand, ...] = ()


def contest_of(state: MeshState, request: Request, plan: EvictionPlan) -> Contest | None:
    """Who would get the room that these evictions free; None: the incoming task."""
    demands, placement = state.external_demands, plan.placement
    if not demands or placement is None or not (plan.victims or plan.leaving):
        return None
    task = request.stimulus.task
    needs = _needs(request, placement.node_ids)
    for node_id in needs:
        if task is not None and task.task_id in demands.lost.get(node_id, ()):
            return Contest(node_id=node_id)
    if state.policy.evict_despite_external_demand or _is_handed_over(state, request, plan):
        return None
    for node_id, need in needs.items():
        rivals = _rivals(state, node_id, need, _freed(state, plan, node_id))
        if rivals:
            return Contest(node_id=node_id, rivals=rivals)
    return None


def uncontested(state: MeshState, request: Request) -> Callable[[Agent], bool]:
    """Which agents may be victims so that the incoming task surely gets their room."""
    task = request.stimulus.task
    lost = {} if task is None else state.external_demands.lost
    closed = {n for n, tasks in lost.items() if task is not None and task.task_id in tasks}
    may_lose = state.policy.evict_despite_external_demand

    def keep(agent: Agent) -> bool:
        if agent.node_id in closed:
            return False
        return may_lose or (request.by_node and hands_over(agent, request.need))

    return keep


def hands_over(agent: Agent, need: Resources) -> bool:
    """Whether an agent that is evicted leaves its room to an incoming one with this need as it is."""
    has_room = isinstance(agent.phase, Running) and bool(agent.phase.room)
    return has_room and agent.spec.resources == need


def _is_handed_over(state: MeshState, request: Request, plan: EvictionPlan) -> bool:
    if not request.by_node or len(plan.victims) != 1:
        return False
    return hands_over(state.agents[plan.victims[0].name], request.need)


def _needs(request: Request, node_ids: tuple[str, ...]) -> dict[str, Resources]:
    """What the incoming task takes on each node."""
    group_request = request.group_request
    bundles = (request.need,) if group_request is None else group_request.shape.bundles
    needs: dict[str, Resources] = {}
    for node_id, bundle in zip(node_ids, bundles, strict=True):
        needs[node_id] = needs.get(node_id, NOTHING) + bundle
    return needs


def _freed(state: MeshState, plan: EvictionPlan, node_id: str) -> Resources:
    """What becomes free on a node."""
    freed: list[Removal] = [*plan.victims, *plan.leaving]
    node = state.cluster.nodes[node_id]
    keys = {key for victim in freed for at, key in victim.allocations if at == node_id}
    for group in plan.removed:
        keys |= {group.key(i) for i, at in enumerate(group.node_ids) if at == node_id}
    allocations = (node.allocations[key] for key in sorted(keys & node.allocations.keys()))
    claimed = (amount for item in plan.leaving for at, amount in item.claimed if at == node_id)
    return sum_of(map(held_by, allocations)) - sum_of(claimed)


def _rivals(
    state: MeshState, node_id: str, need: Resources, freed: Resources
) -> tuple[ExternalDemand, ...]:
    """What would be placed on the node before the incoming task, if too little is left for it then."""
    remaining = state.cluster.nodes[node_id].free + freed
    rivals = []
    for each in state.external_demands.waiting:
        if each.amount.fits(remaining):
            remaining = remaining - each.amount
            rivals.append(each)
    return () if need.fits(remaining) else tuple(rivals)
