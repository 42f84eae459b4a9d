"""Builds refusals with their error messages: what was short, by how much, who holds it, what to do next.

The reason codes are in ``schedulemesh.domain.reasons``; their messages are built here and nowhere else.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.messages.outcomes import Holder, Refused
from schedulemesh.engine.placement.bundles import BundlePlacement, NoPlacement, Room
from schedulemesh.engine.placement.group_choice import GroupRequest, NoAssignment
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node

#: The documented beginning of the message if resources are short and no eviction is sufficient.
NO_ROOM = "Insufficient resources and no available preemption candidates"

NO_NODES = "no node is known yet"

#: The number of holders in a refusal, and the number of those that its message names.
HOLDERS, _NAMED = 10, 3


def pool_not_found(state: MeshState, name: str) -> Refused:
    """The refusal for a pool that does not exist."""
    known = ", ".join(sorted(state.ledger.accounts)) or "none yet"
    return Refused(
        reason=Reason.POOL_NOT_FOUND,
        error=f"there is no pool {name!r}; pools are: {known}. Create it with create_pool or ensure_pool",
    )


def no_matching_pool(state: MeshState) -> Refused:
    """No pool matches the selector and has a total quota that holds the task."""
    known = "; ".join(
        f"{name} {account.spec.labels}" for name, account in sorted(state.ledger.accounts.items())
    )
    return Refused(
        reason=Reason.NO_MATCHING_POOL,
        error="no pool that could hold the task matches its pool_selector; pools are: "
        + (known or "none yet"),
    )


def exceeds_pool_capacity(state: MeshState, pool_name: str, need: Resources) -> Refused:
    """The task requests more than the pool's total quota."""
    total = state.ledger.accounts[pool_name].spec.resources
    return Refused(
        reason=Reason.EXCEEDS_POOL_CAPACITY,
        error=f"the task asks for {need}, but pool {pool_name!r} has {total} in total; "
        "ask for less or resize the pool",
        short_quota=need.beyond(total),
    )


def cluster_out_of_resources(state: MeshState, need: Resources) -> Refused:
    """The task does not fit on any node, even on an idle one."""
    nodes = state.cluster.nodes.values()
    biggest = max(
        nodes, key=lambda n: (len(dict(need.within(n.total).items())), n.total.gpu, n.total.cpu)
    )
    short = need.beyond(biggest.total)
    return Refused(
        reason=Reason.CLUSTER_OUT_OF_RESOURCES,
        error=f"no node of the cluster could ever hold {need}; the closest of {len(nodes)} lacks {short}",
        short_node=short,
    )


def preemption_failed(
    state: MeshState,
    pool_name: str,
    need: Resources,
    short_quota: Resources,
    by_node: bool,
    turned_away: dict[Reason, int],
    enough: float | None = None,
) -> Refused:
    """Resources are short, and no eviction is sufficient. ``enough`` is the priority that would be."""
    node = _closest(state, need) if by_node else None
    short_node = NOTHING if node is None else need.beyond(node.free)
    if short_quota:
        names: Iterable[str] = state.agents_of[pool_name]
    else:
        names = () if node is None else _living_on(state, node)
    holders = _holders(state, names)
    said = []
    if short_quota:
        said.append(f"pool {pool_name!r} lacks {short_quota} of the {need} asked for")
        if lent := short_quota.within(state.ledger.accounts[pool_name].lent):
            said.append(f"other pools have {lent} of it as a loan, or it is held for them")
    if by_node:
        said.append(_no_node(node, need, short_node))
    return Refused(
        reason=Reason.PREEMPTION_FAILED,
        error=f"{NO_ROOM}: " + "; ".join([*said, *_who(holders), *_priority(enough, turned_away)]),
        short_quota=short_quota,
        short_node=short_node,
        holders=holders,
        turned_away=turned_away,
        sufficient_priority=enough,
        hint=_way_out(pool_name, short_quota, enough),
    )


def insufficient_quota(refused: Refused, pool_name: str) -> Refused:
    """The same refusal for a request that may not evict, if the pool's own quota is short."""
    said = [
        f"pool {pool_name!r} lacks {refused.short_quota}, and nobody is evicted for this request",
        *_who(refused.holders),
    ]
    return Refused(
        reason=Reason.INSUFFICIENT_QUOTA,
        error="; ".join(said),
        short_quota=refused.short_quota,
        short_node=refused.short_node,
        holders=refused.holders,
        hint=f"Ask for less, resize pool {pool_name!r}, or submit it so that it may evict others",
    )


def by_default(refused: Refused, pool_name: str, need: Resources) -> Refused:
    """The same refusal for a task that requested no resources."""
    return msgspec.structs.replace(
        refused,
        hint=f"It named no resources, so it asks for what pool {pool_name!r} gives by default: {need}. "
        "Name its resources",
    )


def _no_node(node: Node | None, need: Resources, short: Resources) -> str:
    """Why the request fits on no node now."""
    if node is None:
        return "no node takes new agents"
    lack = f"lacks {short}" if short else "has no GPU device with enough left"
    others = (
        f"; work outside ScheduleMesh holds {node.external_usage} there"
        if node.external_usage
        else ""
    )
    return f"no node has room for {need}; the closest, {node.node_id}, {lack}{others}"


def _who(holders: Sequence[Holder]) -> list[str]:
    """Part of a message: who holds most of what is short; empty if nobody does."""
    if not holders:
        return []
    named = [f"{_tasks_of(holder)} ({holder.resources})" for holder in holders[:_NAMED]]
    if len(holders) > _NAMED:
        named.append("others")
    return ["held by " + ", ".join(named)]


def _tasks_of(holder: Holder) -> str:
    """A holder named by its tasks, because the agent's name may be generated."""
    return " and ".join(holder.task_ids[:_NAMED]) or f"agent {holder.agent_name}"


def _priority(enough: float | None, turned_away: Mapping[Reason, int]) -> list[str]:
    """Part of a message: the sufficient priority, or the rules that exclude the running tasks."""
    if enough is not None:
        return [f"priority {enough:.12g} would be enough"]
    return [
        f"{count} running task{'' if count == 1 else 's'} cannot be evicted: {rule}"
        for rule, count in turned_away.items()
    ][:_NAMED]


def _way_out(pool_name: str, short_quota: Resources, enough: float | None) -> str:
    ways = [] if enough is None else [f"submit it with priority {enough:.12g} or more"]
    ways.append("ask for less")
    ways.append(f"resize pool {pool_name!r}" if short_quota else "add a node")
    found = ", ".join([*ways, "or wait until a holder ends"])
    return found[0].upper() + found[1:]


def no_pg_pool(pool_name: str) -> Refused:
    """The pool has no placement groups."""
    return Refused(
        reason=Reason.NO_PG_POOL,
        error=f"pool {pool_name!r} keeps no placement groups; ensure it with "
        "pg_pool_config={'enable': True, ...}, or submit without asking for a group or several bundles",
    )


def conflicting_options(pool_name: str) -> Refused:
    """The user's Ray options and the placement group both decide where the agent runs."""
    return Refused(
        reason=Reason.CONFLICTING_OPTIONS,
        error=f"in pool {pool_name!r} agents run in placement groups; leave out "
        "scheduling_strategy, label_selector, fallback_strategy and accelerator_type",
    )


def group_out_of_resources(state: MeshState, shape: GroupShape) -> Refused:
    """The group does not fit on the cluster, even on an idle one."""
    placement = Room(state.cluster, total=True).place(shape)
    short = NOTHING if isinstance(placement, BundlePlacement) else placement.short
    return Refused(
        reason=Reason.CLUSTER_OUT_OF_RESOURCES,
        error=f"the cluster could never hold the placement group {shape}: "
        + _why(shape, placement),
        short_node=short,
    )


def group_unplaceable(
    state: MeshState,
    group_request: GroupRequest,
    assignment: NoAssignment,
    turned_away: dict[Reason, int],
    enough: float | None = None,
) -> Refused:
    """No group is free, none can be created, and no eviction is sufficient."""
    table, pool_name = state.groups, group_request.pool_name
    said = [f"pool {pool_name!r} has no free placement group for {group_request.shape}"]
    if group_request.reserved is None and group_request.spec.reserved:
        said.append("its reserved ones are not for this task")
    if not group_request.spec.dynamic:
        said.append("it makes no dynamic ones")
    elif assignment.limit:
        have = table.dynamic_count(pool_name)
        said.append(f"{have} of at most {group_request.spec.max_dynamic} dynamic ones are there")
    if assignment.no_placement is not None:
        said.append("a new one has no room: " + _why(group_request.shape, assignment.no_placement))
    said.append("and no running task may be evicted for it")
    names = [
        g.agent for g in map(table.by_id.get, table.of_pool.get(pool_name, ())) if g and g.agent
    ]
    holders = _holders(state, (name for name in names if name in state.agents))
    return Refused(
        reason=Reason.GROUP_UNPLACEABLE,
        error="; ".join([*said, *_who(holders), *_priority(enough, turned_away)]),
        short_node=NOTHING if assignment.no_placement is None else assignment.no_placement.short,
        holders=holders,
        turned_away=turned_away,
        sufficient_priority=enough,
    )


def unplaced(state: MeshState, pool_name: str) -> list[tuple[GroupShape, str]]:
    """The reserved groups of a pool that do not exist, each with the reason."""
    account = state.ledger.accounts.get(pool_name)
    if account is None or account.spec.groups is None:
        return []
    failed = state.groups.counts[pool_name].error
    found = []
    for shape, lacking in state.groups.lacking(pool_name).items():
        placement = Room(state.cluster).place(shape)
        why = (
            failed if failed and isinstance(placement, BundlePlacement) else _why(shape, placement)
        )
        found += [(shape, why)] * lacking
    return found


def _why(shape: GroupShape, placement: BundlePlacement | NoPlacement) -> str:
    if isinstance(placement, BundlePlacement):
        return "it is being made"
    need = shape.bundles[placement.bundle]
    which = f"bundle {placement.bundle} ({need})" if len(shape.bundles) > 1 else str(need)
    if placement.node_id is None:
        return f"{which}: {placement.reason or NO_NODES}"
    lack = f"the closest node, {placement.node_id}, lacks {placement.short}"
    if not placement.short:
        lack = f"the closest node, {placement.node_id}, has no whole GPU left for it"
    return f"{which}: {lack}" + (f"; {placement.reason}" if placement.reason else "")


def _living_on(state: MeshState, node: Node) -> list[str]:
    """The agents that run on the node, or in a group that has a bundle there."""
    grouped = (g.agent for g in state.groups.by_id.values() if node.node_id in g.node_ids)
    names = {*node.allocations, *(name for name in grouped if name is not None)}
    return [name for name in names if name in state.agents]


def _closest(state: MeshState, need: Resources) -> Node | None:
    """The node that is least short of the need: fewest resource kinds, then the smallest amounts."""

    def lack(node: Node) -> tuple[int, int, str]:
        short = dict(need.beyond(node.free).items())
        return (len(short), sum(short.values()), node.node_id)

    return min(state.cluster.open_nodes(), key=lack, default=None)


def _holders(state: MeshState, names: Iterable[str]) -> tuple[Holder, ...]:
    def size(name: str) -> tuple[int, int, int, str]:
        held = state.agents[name].spec.resources
        return (held.gpu, held.cpu, held.memory, name)

    biggest = heapq.nlargest(HOLDERS, names, key=size)
    return tuple(
        Holder(
            agent_name=name,
            pool_name=state.agents[name].spec.pool_name,
            resources=state.agents[name].spec.resources,
            task_ids=state.running.on_agent(name),
        )
        for name in biggest
    )
