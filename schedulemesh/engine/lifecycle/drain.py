"""Drains of nodes and pools: nothing new starts there, and what runs is saved and moved.

Every running agent on the node or in the pool is evicted with its tasks (reason ``drained``, or
``for_window`` where a maintenance window drains the node). Tasks that can be started again join the
queue, unless they themselves say "drop". With a deadline, an agent whose tasks are expected to end in time
is left to finish, and so is an agent without tasks; they are evicted when the time that notice, saving and
cancelling may take is all that is left. Without a deadline everything with tasks is evicted at once, and
agents without tasks stay.

A pool that is being deleted (``pools``) is drained likewise, but what is evicted there does not wait again,
and agents without tasks are evicted, too.

A node that Ray drains, by its own API or after a notice of its cloud, is drained likewise, until Ray removes
it or stops.
"""

from __future__ import annotations

from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.reasons import Change, PreemptionReason, Reason
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.admission.admit import evict_instruction
from schedulemesh.engine.admission.groups import end_group
from schedulemesh.engine.admission.refusals import node_not_found, pool_not_found
from schedulemesh.engine.admission.time_limits import leaving_s
from schedulemesh.engine.messages.drain_facts import DrainEnded, DrainStarted
from schedulemesh.engine.messages.facts import AgentEnding, EvictionStarted, NodeCordoned
from schedulemesh.engine.messages.outcomes import Done, Refused, RequestOutcome
from schedulemesh.engine.messages.stimuli import DrainRequested
from schedulemesh.engine.state.agents import Agent, Running
from schedulemesh.engine.state.drains import keys_on
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Transaction


def change_drain(tx: Transaction, stimulus: DrainRequested) -> RequestOutcome:
    """Start or end the drain of a node or a pool."""
    node_id, pool_name = stimulus.node_id, stimulus.pool_name
    if (refused := _unknown(tx.state, node_id, pool_name)) is not None:
        return refused
    drain = _drain_of(tx.state, node_id, pool_name)
    if not stimulus.drained:
        return _end(tx, drain)
    deadline = None if stimulus.deadline_s is None else tx.now + stimulus.deadline_s
    if drain is not None and drain.deadline == deadline:
        return Done(change=Change.UNCHANGED)
    start_drain(tx, drain, node_id, pool_name, deadline, stimulus.client)
    advance_drains(tx)
    return Done()


def observe_drain(tx: Transaction, report: NodeReport) -> None:
    """Start the drain of a node that Ray drains, or end it where Ray does so no longer."""
    drain = tx.state.drains.nodes.get(report.node_id)
    if not report.draining:
        if drain is not None and not drain.client:
            finish_drain(tx, drain)
        return
    if drain is None or (not drain.client and drain.deadline != report.drain_deadline):
        start_drain(tx, drain, report.node_id, None, report.drain_deadline, "")


def advance_drains(tx: Transaction) -> None:
    """Evict the agents that have to leave by now, and remove groups that nobody uses from drained nodes."""
    for drain in tuple(tx.state.drains):
        for name in agents_of(tx.state, drain):
            agent = tx.state.agents[name]
            if isinstance(agent.phase, Running) and not _may_finish(tx, drain, agent):
                evict_drained(tx, agent, drain.client, for_window=bool(drain.window))
    drained = tx.state.drains.nodes.keys()
    groups = tx.state.groups.by_id.values()
    for group in [g for g in groups if not drained.isdisjoint(g.node_ids)] if drained else ():
        if group.phase is GroupPhase.READY and group.agent is None and group.promised_to is None:
            end_group(tx, group)


def agents_of(state: MeshState, drain: DrainStarted) -> list[str]:
    """The agents that a drain still waits for, by name."""
    if drain.pool_name is not None:
        return sorted(state.agents_of[drain.pool_name])
    return agents_on_node(state, drain.node_id or "")


def agents_on_node(state: MeshState, node_id: str) -> list[str]:
    """The agents that hold something of a node, by name."""
    node = state.cluster.nodes.get(node_id)
    if node is None:
        return []
    names, groups = keys_on(node)
    names |= {state.groups.by_id[group_id].agent or "" for group_id in groups}
    # The claim of a job may have moved away from its runner.
    virtual = (group for group in state.groups.by_id.values() if group.shape.virtual)
    jobs = {group.agent or "": state.agents.get(group.agent or "") for group in virtual}
    names |= {name for name, job in jobs.items() if job is not None and job.node_id == node.node_id}
    return sorted(names & state.agents.keys())


def _unknown(state: MeshState, node_id: str | None, pool_name: str | None) -> Refused | None:
    """The refusal of a node or a pool that does not exist."""
    if pool_name is not None:
        return None if pool_name in state.ledger.accounts else pool_not_found(state, pool_name)
    if node_id in state.cluster.nodes:
        return None
    return node_not_found(state, node_id or "")


def _drain_of(state: MeshState, node_id: str | None, pool_name: str | None) -> DrainStarted | None:
    if pool_name is not None:
        return state.drains.pools.get(pool_name)
    return state.drains.nodes.get(node_id or "")


def start_drain(
    tx: Transaction,
    drain: DrainStarted | None,
    node_id: str | None,
    pool_name: str | None,
    deadline: float | None,
    client: str,
    window: str = "",
) -> None:
    """Drain a node or a pool in place of an earlier drain. ``window``: the maintenance window for which."""
    closes = node_id is not None and not tx.state.cluster.nodes[node_id].cordoned
    tx.emit(
        DrainStarted(
            node_id=node_id,
            pool_name=pool_name,
            at=tx.now,
            deadline=deadline,
            client=client,
            window=window,
            opens=closes if drain is None else drain.opens,
            deletes=drain is not None and drain.deletes,
        )
    )
    if node_id is not None and closes:
        tx.emit(NodeCordoned(node_id=node_id, cordoned=True, at=tx.now))


def _end(tx: Transaction, drain: DrainStarted | None) -> RequestOutcome:
    if drain is None:
        return Done(change=Change.UNCHANGED)
    if not drain.client:
        return Refused(
            reason=Reason.DRAINED_BY_RAY,
            error_text=say("drain_of_ray", node=drain.node_id or ""),
        )
    if drain.window:
        error = say("node_in_window", node=drain.node_id or "", window=drain.window)
        return Refused(reason=Reason.MAINTENANCE_WINDOW, error_text=error)
    finish_drain(tx, drain)
    if drain.node_id is None or drain.opens or drain.node_id not in tx.state.cluster.nodes:
        return Done()
    return Done(warning_texts=(say("stays_cordoned", node=drain.node_id),))


def finish_drain(tx: Transaction, drain: DrainStarted) -> None:
    """End a drain: a node that it has closed opens again."""
    tx.emit(DrainEnded(node_id=drain.node_id, pool_name=drain.pool_name, at=tx.now))
    if drain.pool_name is not None:
        tx.state.queue.reopen(drain.pool_name)
    if drain.node_id is not None and drain.opens:
        tx.emit(NodeCordoned(node_id=drain.node_id, cordoned=False, at=tx.now))


def _may_finish(tx: Transaction, drain: DrainStarted, agent: Agent) -> bool:
    """Whether an agent may stay for now: there is time for its tasks to end, or it has none."""
    running = tx.state.running
    tasks = [running.by_id[task_id] for task_id in running.on_agent(agent.spec.name)]
    if drain.deadline is None:
        return not tasks and not drain.deletes
    leaves_at = drain.deadline - leaving_s(tx.state, agent.spec)
    ends = [leaves_at + 1.0 if task.ends_at is None else task.ends_at for task in tasks]
    return tx.now < leaves_at and max(ends, default=0.0) <= leaves_at


def evict_drained(tx: Transaction, agent: Agent, client: str, *, for_window: bool) -> None:
    """Evict an agent with its tasks because its node or pool is drained, or its node ``for_window``."""
    name, running = agent.spec.name, tx.state.running
    reason = PreemptionReason.WINDOW if for_window else PreemptionReason.DRAINED
    for task_id in running.on_agent(name):
        if running.by_id[task_id].phase is not TaskPhase.RUNNING:
            continue  # it is being evicted already, without its agent
        tx.emit(EvictionStarted(task_id=task_id, at=tx.now, reason=reason, client=client))
    tx.emit(AgentEnding(agent_name=name, reason=EndReason.PREEMPTED, at=tx.now))
    tx.instruct(evict_instruction(tx.state, name))
