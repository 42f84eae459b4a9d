"""What is short and who holds it: the closest node, the agents there, the largest agents of a pool."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.sentences import Sentence, say
from schedulemesh.engine.messages.outcomes import Holder
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node

#: How many holders are listed, and how many of them a sentence names.
HOLDERS, NAMED = 10, 3
#: Up to this many agents are compared one by one; of more, those of the classes with the largest tasks.
_COMPARED = 2000


def closest_node(state: MeshState, shape: GroupShape) -> Node | None:
    """The open node with the shape's labels that is least short of its single bundle: fewest resource kinds,
    then the smallest amounts, then the first id; None: no such node takes new agents.
    """
    need = shape.bundles[0]
    first: dict[Resources, Node] = {}
    for node in state.cluster.with_labels(shape):
        if node.cordoned:
            continue
        before = first.setdefault(node.free, node)
        if node.node_id < before.node_id:
            first[node.free] = node

    def lack(node: Node) -> tuple[int, int, str]:
        short = dict(need.beyond(node.free).items())
        return (len(short), sum(short.values()), node.node_id)

    return min(first.values(), key=lack, default=None)


def agents_on(state: MeshState, node: Node) -> list[str]:
    """The agents that run on the node, or in a group that has a bundle there."""
    grouped = (g.agent for g in state.groups.by_id.values() if node.node_id in g.node_ids)
    names = {*node.allocations, *(name for name in grouped if name is not None)}
    return [name for name in names if name in state.agents]


def agents_of_pool(state: MeshState, pool_name: str) -> Iterable[str]:
    """The agents that hold quota of a pool: its own, and those of other pools that borrow it. Of very many
    only those that run the tasks with the largest resources.
    """
    names = state.agents_of[pool_name]
    pool_agents = names if len(names) <= _COMPARED else _largest_of(state, pool_name)
    if not state.ledger.accounts[pool_name].lent:
        return pool_agents
    others = (
        name
        for other, account in state.ledger.accounts.items()
        if other != pool_name and account.borrowed
        for name in state.agents_of[other]
    )
    borrowers = (
        name
        for name in islice(others, _COMPARED)
        if any(share.pool_name == pool_name for share in state.agents[name].shares)
    )
    return chain(pool_agents, borrowers)


def _largest_of(state: MeshState, pool_name: str) -> list[str]:
    """Some agents of a pool, those with the largest among them."""
    classes = [c for c in state.running.occupied if c.pool_name == pool_name]
    largest = heapq.nlargest(HOLDERS, classes, key=lambda c: (_size(c.resources), c.count))
    tasks = (
        state.running.by_id[task_id]
        for task_class in largest
        for _, _, task_id in islice(task_class.ordered(0.0), HOLDERS)
    )
    return list(dict.fromkeys(task.agent_name for task in tasks if task.agent_name in state.agents))


def holders_among(state: MeshState, names: Iterable[str]) -> tuple[Holder, ...]:
    """The largest of these agents, largest first."""

    def size(name: str) -> tuple[int, int, int, str]:
        return (*_size(state.agents[name].spec.resources), name)

    return tuple(
        Holder(
            agent_name=name,
            pool_name=state.agents[name].spec.pool_name,
            resources=state.agents[name].spec.resources,
            task_ids=state.running.on_agent(name),
        )
        for name in heapq.nlargest(HOLDERS, names, key=size)
    )


def held_by(holders: Sequence[Holder]) -> list[Sentence]:
    """Part of a message: who holds most of what is short; empty if nobody does."""
    if not holders:
        return []
    named = [_named(holder) for holder in holders[:NAMED]]
    if len(holders) > NAMED:
        named.append(say("others"))
    return [say("held_by", holders=named)]


def _named(holder: Holder) -> Sentence:
    """A holder named by its tasks, because the agent's name may be generated."""
    tasks, amount = holder.task_ids[:NAMED], holder.resources
    if tasks:
        return say("holder_tasks", tasks=tasks, amount=amount)
    return say("holder_agent", agent=holder.agent_name, amount=amount)


def _size(amount: Resources) -> tuple[int, int, int]:
    return (amount.gpu, amount.cpu, amount.memory)
