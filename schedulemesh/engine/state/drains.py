"""The drains of nodes and pools that are in progress."""

from __future__ import annotations

from collections.abc import Iterator

from schedulemesh.engine.messages.drain_facts import DrainEnded, DrainStarted
from schedulemesh.engine.state.groups import bundle_of, is_bundle
from schedulemesh.engine.state.nodes import Node


class Drains:
    """The drains in progress, each as the fact that started it."""

    def __init__(self) -> None:
        self.nodes: dict[str, DrainStarted] = {}
        self.pools: dict[str, DrainStarted] = {}
        #: Names of the pools that are deleted when nothing uses them any more.
        self.ending: dict[str, None] = {}

    def __iter__(self) -> Iterator[DrainStarted]:
        yield from self.nodes.values()
        yield from self.pools.values()

    def __len__(self) -> int:
        return len(self.nodes) + len(self.pools)

    def start(self, fact: DrainStarted) -> None:
        """A node or a pool is drained from now on."""
        if fact.node_id is not None:
            self.nodes[fact.node_id] = fact
        if fact.pool_name is not None:
            self.pools[fact.pool_name] = fact
            self.ending.pop(fact.pool_name, None)
            if fact.deletes:
                self.ending[fact.pool_name] = None

    def end(self, fact: DrainEnded) -> None:
        """A node or a pool is not drained any more."""
        self.nodes.pop(fact.node_id or "", None)
        self.forget_pool(fact.pool_name or "")

    def forget_pool(self, pool_name: str) -> None:
        """A pool is not drained any more, or exists no more."""
        self.pools.pop(pool_name, None)
        self.ending.pop(pool_name, None)


def keys_on(node: Node) -> tuple[set[str], set[str]]:
    """The agents that hold resources of the node themselves, and the groups with a bundle there, by id."""
    agents = {key for key in node.allocations if not is_bundle(key)}
    groups = {bundle_of(key)[0] for key in node.allocations if is_bundle(key)}
    return agents, groups
