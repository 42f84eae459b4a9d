"""Moves the claim of a job to the nodes where Ray has placed its work."""

from __future__ import annotations

from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.placement import OnNode
from schedulemesh.domain.resources import NOTHING, Resources, sum_of
from schedulemesh.engine.lifecycle.agents import current
from schedulemesh.engine.messages.facts import NodeSeen
from schedulemesh.engine.messages.job_facts import JobClaimMoved
from schedulemesh.engine.messages.job_stimuli import JobWorkObserved
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.engine.state.job_updates import claimed_by_node
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.transaction import Transaction


def follow_work(tx: Transaction, stimulus: JobWorkObserved) -> None:
    """Have the claim stand where the work of the job is. Its size does not change, and a node to which it
    moves must have room for it, apart from what was counted there as external usage: the work itself.

    What contradicts the present state, because that has changed meanwhile, is not done; it is observed again.
    """
    state = tx.state
    agent = current(state, stimulus.agent_name, stimulus.incarnation)
    if agent is None or not _may_move(state, agent):
        return
    before, after = claimed_by_node(state.groups, state.cluster, agent), dict(stimulus.claims)
    if after == before or sum_of(after.values()) != agent.spec.resources:
        return
    gained = {n: more for n, mine in after.items() if (more := mine.beyond(before.get(n, NOTHING)))}
    if not all(_has_room(state.cluster.nodes.get(n), more) for n, more in gained.items()):
        return
    number = state.groups.next_number
    tx.emit(
        JobClaimMoved(
            agent_name=agent.spec.name,
            group_id=agent.group_id or f"{agent.spec.pool_name}-pg-{number}",
            parts=tuple(sorted(after.items())),
            at=tx.now,
        )
    )
    for node_id, more in gained.items():
        _count_as_own(tx, state.cluster.nodes[node_id], more)


def _may_move(state: MeshState, agent: Agent) -> bool:
    """Whether the claim is that of a job that runs, and is promised to nobody."""
    if agent.spec.job is None or not isinstance(agent.phase, Running):
        return False
    group = state.groups.by_id.get(agent.group_id or "")
    if group is None:
        return isinstance(agent.place, OnNode)
    promised = group.promised_to is not None or group.leaves_for is not None
    return group.shape.virtual and group.phase is GroupPhase.READY and not promised


def _has_room(node: Node | None, more: Resources) -> bool:
    return node is not None and more.fits(node.free + more.within(node.external_usage))


def _count_as_own(tx: Transaction, node: Node, more: Resources) -> None:
    """What the claim covers from now on was external usage until now."""
    external = node.external_usage - more.within(node.external_usage)
    if external != node.external_usage:
        report = NodeReport(
            node_id=node.node_id, total=node.total, labels=node.labels, external_usage=external
        )
        tx.emit(NodeSeen(report=report))
