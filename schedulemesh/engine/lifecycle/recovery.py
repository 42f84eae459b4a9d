"""Reconciliation after a recovery: compares the state with the agents and groups that exist."""

from __future__ import annotations

import msgspec

from schedulemesh.engine.admission.admit import evict_instruction, start_instruction
from schedulemesh.engine.admission.groups import is_placed
from schedulemesh.engine.lifecycle.agents import current, order_runs, process_gone, runs_of
from schedulemesh.engine.lifecycle.group_reports import reconcile_groups
from schedulemesh.engine.lifecycle.impossible import cancel_impossible
from schedulemesh.engine.messages.instructions import EvictTask, StopAgent
from schedulemesh.engine.messages.stimuli import RecoveryObserved
from schedulemesh.engine.state.agents import Agent, Ending, Running, Starting
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.transaction import Transaction


def reconcile(tx: Transaction, stimulus: RecoveryObserved) -> None:
    """Finish or undo what a former supervisor left half done.

    Agents that ran and are gone give their quota back; those that live are ordered again to run their tasks.
    Ends and evictions go on; starts are taken over
    where the actor is alive, and started again where it is not. Agents that wait for victims keep waiting.
    """
    living, tx.hosts = stimulus.living, stimulus.hosts
    # Agents that this step admits again are not among them: their start is requested already.
    agents_before = [(name, agent.incarnation) for name, agent in tx.state.agents.items()]
    for name, agent in list(tx.state.agents.items()):
        alive = (name, agent.incarnation) in living
        if isinstance(agent.phase, Ending):
            _end_on(tx, agent, alive=alive)
        elif isinstance(agent.phase, Running) and not alive:
            process_gone(tx, agent, stimulus.deaths.get(name))
        elif isinstance(agent.phase, Running):
            order_runs(tx, agent)
    reconcile_groups(tx, stimulus.groups)
    for name, incarnation in agents_before:
        starting = current(tx.state, name, incarnation)
        if starting is not None:
            _start_on(tx, starting, alive=(name, incarnation) in living)
    for task_id, task in tx.state.running.by_id.items():
        agent_of = tx.state.agents.get(task.agent_name)
        alone = agent_of is None or not isinstance(agent_of.phase, Ending)
        if alone and isinstance(task.phase, Preempting):
            runs = () if agent_of is None else runs_of(agent_of, task)
            tx.instruct(EvictTask(task_id=task_id, runs=runs))
    cancel_impossible(tx, restarted=True)


def _start_on(tx: Transaction, agent: Agent, *, alive: bool) -> None:
    """Adopt the actor of a starting agent if it is alive, or start it again."""
    if not isinstance(agent.phase, Starting):
        return
    if agent.group_id is not None and not is_placed(tx.state, agent.group_id):
        process_gone(tx, agent)
    else:
        tx.instruct(start_instruction(tx.state, agent.spec.name, adopt=alive))


def _end_on(tx: Transaction, agent: Agent, *, alive: bool) -> None:
    """Continue an eviction or a stop; an agent that is dead already is removed. A run that has ended while
    there was no supervisor is not evicted.
    """
    name = agent.spec.name
    tasks = [tx.state.running.by_id[t] for t in tx.state.running.on_agent(name)]
    evicted = [task for task in tasks if isinstance(task.phase, Preempting)]
    # The payload of a task can be kept without its process.
    unsaved = any(task.state_key is None for task in evicted)
    if not alive and not unsaved:
        process_gone(tx, agent)
        return
    if evicted:
        runs = runs_of(agent, *evicted) if alive else ()
        order = evict_instruction(tx.state, name)
        tx.instruct(msgspec.structs.replace(order, runs=runs))
    else:
        tx.instruct(StopAgent(agent_name=name, incarnation=agent.incarnation))
