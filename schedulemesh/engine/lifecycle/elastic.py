"""Elastic gangs: a core that runs as one, and extra members that come and go one by one.

Each extra member is an agent with a task of its own, which waits in the queue from the moment that the core
runs. So a gang grows when there is room, extra members are given up before anything else is evicted
(``admission.decide``), and one that was evicted waits again. They end with the core, whose limits in time and
priority are theirs.
"""

from __future__ import annotations

import msgspec

from schedulemesh.domain.agent import AgentSpec, gang_of
from schedulemesh.domain.end_reasons import EndReason, TaskEndReason
from schedulemesh.domain.numbers import MAX_COUNT
from schedulemesh.domain.payloads import SINGLE_PROCESS
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import EndState, TaskSpec
from schedulemesh.engine.admission.pending import ended
from schedulemesh.engine.admission.registration import duplicate_task
from schedulemesh.engine.messages.facts import (
    AgentEnded,
    AgentEnding,
    AgentStarted,
)
from schedulemesh.engine.messages.instructions import StopAgent
from schedulemesh.engine.messages.queue_facts import TaskCancelled, TaskQueued
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.agents import Ending, Running, Waiting
from schedulemesh.engine.transaction import Transaction

#: Seconds after which an extra member that could not start, or was lost, is started again.
_RETRY_S = 30.0


def follow_cores(tx: Transaction) -> None:
    """Queue the extra members that are missing where a core has started or one of them has ended, and end
    those of cores that end.
    """
    for fact in tuple(tx.facts):
        if isinstance(fact, AgentStarted):
            _queue_extras(tx, fact.agent_name, not_before=0.0)
        elif isinstance(fact, AgentEnding | AgentEnded):
            spec = _spec_of(tx, fact.agent_name)
            if spec is not None:
                _end_extras(tx, spec)
            core = gang_of(fact.agent_name) if isinstance(fact, AgentEnded) else None
            if core is not None:
                _queue_extras(tx, core[0], not_before=tx.now + _RETRY_S)


def _spec_of(tx: Transaction, agent_name: str) -> AgentSpec | None:
    """The specification of an agent that ends, or that was lost and is started again or not."""
    state = tx.state
    agent = state.agents.get(agent_name)
    if agent is not None:
        return agent.spec if isinstance(agent.phase, Ending) else None
    waiting = state.queue.by_id.get(state.queue.agent_names.get(agent_name, ""))
    if waiting is not None:
        return waiting.submission.agent
    lost = state.lost.get(agent_name)
    return None if lost is None else lost.spec


def _queue_extras(tx: Transaction, core_name: str, *, not_before: float) -> None:
    """Queue the extra members of this agent that neither run nor wait, if it is a core that runs."""
    state = tx.state
    core = state.agents.get(core_name)
    if core is None or not core.spec.extra_names or not isinstance(core.phase, Running):
        return
    task_id = next(iter(state.running.on_agent(core_name)), None)
    if task_id is None:
        return
    spec, core_task = core.spec, state.running.by_id[task_id]
    task = core_task.spec
    for name in spec.extra_names:
        if duplicate_task(state, name) is not None or _has_run(tx, name, core.phase.started_at):
            continue
        extra = TaskSubmitted(
            agent=msgspec.structs.replace(
                spec,
                name=name,
                resources=spec.bundles[0],
                bundles=(),
                payload=SINGLE_PROCESS,
                alternatives=(),
                alternative=0,
            ),
            task=TaskSpec(
                task_id=name,
                pool_name=task.pool_name,
                priority=task.priority,
                labels=task.labels,
                owner=task.owner,
                on_preempted="requeue",
                max_preemptions=MAX_COUNT,
                extra_of=spec.name,
                run=task.run,
                run_key=task.run_key,
                max_run_s=core_task.max_run_s,
            ),
            may_preempt=False,
            queue=True,
        )
        number = state.queue.next_number
        tx.emit(TaskQueued(submission=extra, at=tx.now, number=number, not_before=not_before))


def _has_run(tx: Transaction, name: str, since: float) -> bool:
    """Whether this extra member has run to its end since its core started."""
    past = tx.state.ended.get(name)
    if past is None or past.at < since:
        return False
    return past.state is EndState.COMPLETED or past.reason == TaskEndReason.RUN_RAISED.value


def _end_extras(tx: Transaction, spec: AgentSpec) -> None:
    for name in spec.extra_names:
        _end_queued(tx, spec.name, name)
        agent = tx.state.agents.get(name)
        if agent is None or isinstance(agent.phase, Ending) or not _is_extra(tx, spec.name, name):
            continue
        if isinstance(agent.phase, Waiting):
            ended(tx, agent, EndReason.DELETED)
            continue
        tx.emit(AgentEnding(agent_name=name, reason=EndReason.DELETED, at=tx.now))
        tx.instruct(StopAgent(agent_name=name, incarnation=agent.incarnation))


def _end_queued(tx: Transaction, core_name: str, name: str) -> None:
    waiting = tx.state.queue.by_id.get(name)
    if waiting is not None and waiting.spec.extra_of == core_name:
        tx.emit(TaskCancelled(task_id=name, at=tx.now, reason=Reason.CANCELLED))


def _is_extra(tx: Transaction, core_name: str, name: str) -> bool:
    running = tx.state.running
    return any(running.by_id[t].spec.extra_of == core_name for t in running.on_agent(name))
