"""Moves the claim of a job to the nodes where Ray has placed its work, and ends jobs that hold more."""

from __future__ import annotations

from schedulemesh.domain.end_reasons import EndReason, TaskEndReason
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.node_labels import NodeLabels, selects
from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.placement import OnNode
from schedulemesh.domain.resources import NOTHING, Resources, sum_of
from schedulemesh.domain.task import EndState
from schedulemesh.engine.lifecycle.agents import current, end_agent
from schedulemesh.engine.messages.facts import NodeSeen, TaskEnded
from schedulemesh.engine.messages.job_facts import JobClaimMoved
from schedulemesh.engine.messages.job_stimuli import JobBeyondClaim, JobWorkObserved
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.engine.state.job_updates import claimed_by_node
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.transaction import Transaction


def follow_work(tx: Transaction, stimulus: JobWorkObserved) -> None:
    """Have the claim stand where the work of the job is. Its size does not change, and a node to which it
    moves must have the labels that the job asks for, and room for it, apart from what was counted there as
    external usage: the work itself.

    What contradicts the present state, because that has changed meanwhile, is not done; it is observed again.
    """
    state = tx.state
    agent = current(state, stimulus.agent_name, stimulus.incarnation)
    if agent is None or not _may_move(state, agent):
        return
    before, after = claimed_by_node(state.groups, state.cluster, agent), dict(stimulus.claims)
    if after == before or sum_of(after.values()) != agent.spec.resources:
        return
    gained = {
        n: more for n, amount in after.items() if (more := amount.beyond(before.get(n, NOTHING)))
    }
    node_labels = agent.spec.node_labels
    if not all(
        _has_room(state.cluster.nodes.get(node_id), more, node_labels)
        for node_id, more in gained.items()
    ):
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


def is_over(state: MeshState, agent: Agent, since: float, now: float) -> bool:
    """Whether a job that has held more than it claims since then is to be ended now."""
    if not isinstance(agent.spec.payload, JobPayload):
        return False
    over_claim = agent.spec.payload.over_claim or state.policy.over_claim
    return over_claim == "end" and now - since >= state.policy.over_claim_s


def end_beyond_claim(tx: Transaction, stimulus: JobBeyondClaim) -> None:
    """End a job that has held more than it claims for too long, where that is what is to happen. One that is
    being evicted ends anyway.
    """
    state = tx.state
    agent = current(state, stimulus.agent_name, stimulus.incarnation)
    if agent is None or not isinstance(agent.phase, Running):
        return
    tasks = [state.running.by_id[task_id] for task_id in state.running.on_agent(agent.spec.name)]
    evicted = any(isinstance(task.phase, Preempting) for task in tasks)
    if evicted or not is_over(state, agent, stimulus.since, tx.now):
        return
    for task in tasks:
        tx.emit(
            TaskEnded(
                task_id=task.spec.task_id,
                at=tx.now,
                state=EndState.FAILED,
                reason=TaskEndReason.OVER_CLAIM,
                error=f"the job held {stimulus.beyond} more in Ray than the {agent.spec.resources} that it "
                f"claims, for {tx.now - stimulus.since:.0f} s; submit it again with what it needs",
            )
        )
    end_agent(tx, agent, EndReason.OVER_CLAIM)


def _may_move(state: MeshState, agent: Agent) -> bool:
    """Whether the claim is that of a job that runs, and is promised to nobody."""
    if not isinstance(agent.spec.payload, JobPayload) or not isinstance(agent.phase, Running):
        return False
    group = state.groups.by_id.get(agent.group_id or "")
    if group is None:
        return isinstance(agent.place, OnNode) or bool(agent.spec.payload.adopts)
    promised = group.promised_to is not None or group.leaves_for is not None
    return group.shape.virtual and group.phase is GroupPhase.READY and not promised


def _has_room(node: Node | None, more: Resources, node_labels: NodeLabels) -> bool:
    if node is None or not selects(node_labels, node.labels):
        return False
    return more.fits(node.free + more.within(node.external_usage))


def _count_as_own(tx: Transaction, node: Node, more: Resources) -> None:
    """What the claim covers from now on was external usage until now."""
    external = node.external_usage - more.within(node.external_usage)
    if external != node.external_usage:
        report = NodeReport(
            node_id=node.node_id, total=node.total, labels=node.labels, external_usage=external
        )
        tx.emit(NodeSeen(report=report, at=tx.now))
