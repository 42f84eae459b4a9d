"""The nodes of windows that reserve an amount, such as 8 GPUs, for which the scheduler chooses them.

They are chosen when the window is created, and anew for each opening when the one before is over. As few
nodes as possible are taken: the largest first, and as the last one the smallest that is enough; of equal ones
those on which the fewest agents run that would have to leave. A node that is lost, cordoned or drained, or
that another window closes at the same time, is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from schedulemesh.domain.node_labels import selects
from schedulemesh.domain.windows import MaintenanceWindow, Occurrence
from schedulemesh.engine.lifecycle.drain import agents_on_node
from schedulemesh.engine.messages.window_facts import WindowNodesChosen
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.transaction import Transaction


def choose_nodes(tx: Transaction) -> None:
    """Choose nodes for the windows of amounts that have none for their next opening, or have lost some."""
    for window in tx.state.windows.by_name.values():
        if not window.is_amount:
            continue
        occurrence = window.occurrence(tx.now)
        if occurrence is not None:
            _choose(tx, window, occurrence)


def _choose(tx: Transaction, window: MaintenanceWindow, occurrence: Occurrence) -> None:
    present = tx.state.windows.chosen.get(window.name)
    if present is not None and present.start != occurrence.start:
        present = None
    closed = _closed_by_others(tx.state, window, occurrence)
    chosen = [] if present is None else _usable(tx.state, window, present.node_ids, closed)
    lacking = window.lacking(node.total for node in chosen)
    if present is not None and len(chosen) == len(present.node_ids) and not lacking:
        return
    others = tx.state.cluster.nodes.keys() - {node.node_id for node in chosen}
    chosen += _enough(
        tx.state, window, _usable(tx.state, window, others, closed), window.part_of(lacking)
    )
    node_ids = tuple(sorted(node.node_id for node in chosen))
    if present is None or node_ids != present.node_ids:
        tx.emit(
            WindowNodesChosen(
                name=window.name, at=tx.now, start=occurrence.start, node_ids=node_ids
            )
        )


def _closed_by_others(
    state: MeshState, window: MaintenanceWindow, occurrence: Occurrence
) -> frozenset[str]:
    """The nodes of other windows that are open during an opening."""
    others = (
        other
        for other in state.windows.by_name.values()
        if other.name != window.name and other.overlaps(occurrence)
    )
    return frozenset[str]().union(*map(state.windows.node_ids, others))


def _usable(
    state: MeshState, window: MaintenanceWindow, node_ids: Iterable[str], closed: frozenset[str]
) -> list[Node]:
    """Those of these nodes that have the window's labels and something of what it reserves, and that nobody
    has closed for longer than a window lasts.
    """
    nodes = map(state.cluster.nodes.get, sorted(node_ids))
    return [
        node
        for node in nodes
        if node is not None
        and node.node_id not in closed
        and window.part_of(node.total)
        and selects(window.node_labels, node.labels)
        and not _is_closed(state, node)
    ]


def _is_closed(state: MeshState, node: Node) -> bool:
    """Whether a node is cordoned or drained, and not just for a window, after which it opens again."""
    drain = state.drains.nodes.get(node.node_id)
    if drain is not None:
        return not (drain.window and drain.opens)
    return node.cordoned and node.node_id not in state.cluster.set_aside


def _enough(
    state: MeshState, window: MaintenanceWindow, nodes: list[Node], lacking: int
) -> Iterator[Node]:
    """The nodes to choose of these until nothing is lacking, or all of them."""

    def size(node: Node) -> int:
        return window.part_of(node.total)

    in_order = sorted(nodes, key=lambda node: (-size(node), _leaving(state, window, node)))
    while lacking > 0 and in_order:
        last = [node for node in in_order if size(node) >= lacking]
        # Of equally small ones the first in the order is taken.
        node = min(last, key=size) if last else in_order[0]
        in_order.remove(node)
        lacking -= size(node)
        yield node


def _leaving(state: MeshState, window: MaintenanceWindow, node: Node) -> int:
    """How many agents on a node would have to leave it for a window."""
    agents = (state.agents[name] for name in agents_on_node(state, node.node_id))
    return sum(not may_stay(state, window, agent) for agent in agents)


def may_stay(state: MeshState, window: MaintenanceWindow, agent: Agent) -> bool:
    """Whether a window reserves its nodes for this agent, or for one of its tasks."""
    pool_name, running = agent.spec.pool_name, state.running
    tasks = [running.by_id[task_id].spec for task_id in running.on_agent(agent.spec.name)]
    if not tasks:
        return window.admits(pool_name, agent.charged_owner, agent.spec.labels)
    return any(window.admits(pool_name, task.owner, task.labels) for task in tasks)
