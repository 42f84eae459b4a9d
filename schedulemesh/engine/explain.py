"""Refusals in words: what was short, by how much, and who holds it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.cluster import Node
from schedulemesh.engine.outcomes import Holder, Refused
from schedulemesh.engine.state import MeshState

#: The documents' words for a task that is short and whom no eviction helps.
NO_ROOM = "Insufficient resources and no available preemption candidates"

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
        names = node.standing if node is not None else ()
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
