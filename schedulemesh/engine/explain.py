"""Refusals in words: what was short, by how much, and who holds it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.cluster import Node
from schedulemesh.engine.homes import NoHome, Wish
from schedulemesh.engine.outcomes import Holder, Refused
from schedulemesh.engine.placing import NoSpot, Room, Spot
from schedulemesh.engine.state import MeshState

#: The documents' words for a task that is short and whom no eviction helps.
NO_ROOM = "Insufficient resources and no available preemption candidates"

NO_NODES = "no node is known yet"

#: Holders named in a refusal.
HOLDERS = 10


def pool_not_found(state: MeshState, name: str) -> Refused:
    """No pool has this name."""
    known = ", ".join(sorted(state.ledger.accounts)) or "none yet"
    return Refused(
        reason="pool_not_found",
        error=f"there is no pool {name!r}; pools are: {known}. Create it with create_pool or ensure_pool",
    )


def no_matching_pool(state: MeshState) -> Refused:
    """No pool's labels match the selector and can ever hold the task."""
    known = "; ".join(
        f"{name} {account.spec.labels}" for name, account in sorted(state.ledger.accounts.items())
    )
    return Refused(
        reason="no_matching_pool",
        error="no pool that could hold the task matches its pool_selector; pools are: "
        + (known or "none yet"),
    )


def exceeds_pool_capacity(state: MeshState, pool_name: str, need: Resources) -> Refused:
    """The task asks for more than the pool's whole quota."""
    total = state.ledger.accounts[pool_name].spec.resources
    return Refused(
        reason="exceeds_pool_capacity",
        error=f"the task asks for {need}, but pool {pool_name!r} has {total} in total; "
        "ask for less or resize the pool",
        short_quota=need.beyond(total),
    )


def cluster_out_of_resources(state: MeshState, need: Resources) -> Refused:
    """No node, wholly free, would have room."""
    nodes = state.cluster.nodes.values()
    biggest = max(
        nodes, key=lambda n: (len(dict(need.within(n.total).items())), n.total.gpu, n.total.cpu)
    )
    short = need.beyond(biggest.total)
    return Refused(
        reason="cluster_out_of_resources",
        error=f"no node of the cluster could ever hold {need}; the closest of {len(nodes)} lacks {short}",
        short_node=short,
    )


def preemption_failed(
    state: MeshState,
    pool_name: str,
    need: Resources,
    short_quota: Resources,
    by_node: bool,
    turned_away: dict[str, int],
) -> Refused:
    """Short of resources, and no victim will do."""
    node = _closest(state, need) if by_node else None
    short_node = NOTHING if node is None else need.beyond(node.free)
    if short_quota:
        names: Iterable[str] = state.agents_of[pool_name]
    else:
        names = () if node is None else _living_on(state, node)
    return Refused(
        reason="preemption_failed",
        error=NO_ROOM,
        short_quota=short_quota,
        short_node=short_node,
        holders=_holders(state, names),
        turned_away=turned_away,
    )


def insufficient_quota(refused: Refused, pool_name: str) -> Refused:
    """The same refusal, where nobody might have been evicted and the pool's own quota is short."""
    return Refused(
        reason="insufficient_quota",
        error=f"pool {pool_name!r} lacks {refused.short_quota}, and nobody is evicted for this request",
        short_quota=refused.short_quota,
        short_node=refused.short_node,
        holders=refused.holders,
    )


def no_pg_pool(pool_name: str) -> Refused:
    """The pool keeps no placement groups."""
    return Refused(
        reason="no_pg_pool",
        error=f"pool {pool_name!r} keeps no placement groups; ensure it with "
        "pg_pool_config={'enable': True, ...}, or submit without asking for a group or several bundles",
    )


def conflicting_options(pool_name: str) -> Refused:
    """The user's Ray options place the agent, and so does its group."""
    return Refused(
        reason="conflicting_options",
        error=f"in pool {pool_name!r} agents live where their placement groups are; leave out "
        "scheduling_strategy, label_selector, fallback_strategy and accelerator_type",
    )


def group_out_of_resources(state: MeshState, shape: GroupShape) -> Refused:
    """The nodes, wholly free, would have no room for the group."""
    spot = Room(state.cluster, total=True).place(shape)
    short = NOTHING if isinstance(spot, Spot) else spot.short
    return Refused(
        reason="cluster_out_of_resources",
        error=f"the cluster could never hold the placement group {shape}: " + _why(shape, spot),
        short_node=short,
    )


def group_unplaceable(
    state: MeshState, wish: Wish, home: NoHome, turned_away: dict[str, int]
) -> Refused:
    """No group is free, none can be made, and no victim will do."""
    book, pool_name = state.groups, wish.pool_name
    said = [f"pool {pool_name!r} has no free placement group for {wish.shape}"]
    if wish.reserved is None and wish.spec.reserved:
        said.append("its reserved ones are not for this task")
    if not wish.spec.dynamic:
        said.append("it makes no dynamic ones")
    elif home.limit:
        have = book.dynamic_count(pool_name)
        said.append(f"{have} of at most {wish.spec.max_dynamic} dynamic ones are there")
    if home.no_spot is not None:
        said.append("a new one has no room: " + _why(wish.shape, home.no_spot))
    names = [g.agent for g in map(book.by_id.get, book.of_pool.get(pool_name, ())) if g and g.agent]
    return Refused(
        reason="group_unplaceable",
        error="; ".join(said) + "; and no running task may be evicted for it",
        short_node=NOTHING if home.no_spot is None else home.no_spot.short,
        holders=_holders(state, (name for name in names if name in state.agents)),
        turned_away=turned_away,
    )


def unplaced(state: MeshState, pool_name: str) -> list[tuple[GroupShape, str]]:
    """The reserved groups that a pool wants and that are not there, each with the reason."""
    account = state.ledger.accounts.get(pool_name)
    if account is None or account.spec.groups is None:
        return []
    failed = state.groups.counts[pool_name].error
    found = []
    for shape, lacking in state.groups.lacking(pool_name).items():
        spot = Room(state.cluster).place(shape)
        why = failed if failed and isinstance(spot, Spot) else _why(shape, spot)
        found += [(shape, why)] * lacking
    return found


def _why(shape: GroupShape, spot: Spot | NoSpot) -> str:
    if isinstance(spot, Spot):
        return "it is being made"
    need = shape.bundles[spot.bundle]
    which = f"bundle {spot.bundle} ({need})" if len(shape.bundles) > 1 else str(need)
    if spot.node_id is None:
        return f"{which}: {spot.reason or NO_NODES}"
    lack = f"the closest node, {spot.node_id}, lacks {spot.short}"
    if not spot.short:
        lack = f"the closest node, {spot.node_id}, has no whole GPU left for it"
    return f"{which}: {lack}" + (f"; {spot.reason}" if spot.reason else "")


def _living_on(state: MeshState, node: Node) -> list[str]:
    """Agents that stand on the node, or live in a group that has a bundle there."""
    grouped = (g.agent for g in state.groups.by_id.values() if node.node_id in g.node_ids)
    names = {*node.standing, *(name for name in grouped if name is not None)}
    return [name for name in names if name in state.agents]


def _closest(state: MeshState, need: Resources) -> Node | None:
    """The node that lacks least of the need: fewest kinds, then least of them."""

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
