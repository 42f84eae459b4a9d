"""Explains tasks that have an agent: where they run and since when, or what their start or end waits for."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from typing_extensions import assert_never

from schedulemesh.domain.numbers import span_text
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.admission.ends import estimate_of
from schedulemesh.engine.explanation.estimate import described
from schedulemesh.engine.explanation.evictions import (
    RUN_LONGER,
    evictor,
    last_eviction,
    reached,
)
from schedulemesh.engine.lifecycle.time_limits import idle_limit
from schedulemesh.engine.messages.explanation import EvictionSummary, Explanation
from schedulemesh.engine.preemption.savable import returns_when_evicted
from schedulemesh.engine.state.agents import Agent, Ending, Waiting, kind_of
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask

#: How many tasks, groups or nodes a sentence names.
_NAMED = 3


def explain_present(state: MeshState, task: RunningTask, now: float) -> Explanation:
    """The explanation of a task that has been admitted or registered and has not ended."""
    agent = state.agents.get(task.agent_name)
    explained = Explanation(
        task=task.spec,
        kind=kind_of(state.agents, task.agent_name),
        state=task.phase.value,
        agent_name=task.agent_name,
        node_ids=_node_ids(state, agent),
        since=task.started_at,
        saved_at=task.saved_at,
        preemptions=task.attempts.preemptions,
        failures=task.attempts.failures,
        run_limit_s=task.max_run_s,
        idle_limit_s=idle_limit(state, task),
        eviction=last_eviction(state, task.spec.task_id),
        alternative=0 if agent is None else agent.spec.taken,
    )
    phase = task.phase
    estimate = estimate_of(state, task, now)
    if estimate is not None:
        expected = described(task.spec.task_id, estimate)
        explained = msgspec.structs.replace(explained, expected_duration=expected)
    if isinstance(phase, Preempting):
        if explained.eviction is not None:
            explained = msgspec.structs.replace(explained, since=explained.eviction.at)
        return _preempting(state, task, phase, explained)
    match phase:
        case TaskPhase.RUNNING:
            idle_since = state.running.idle.get(task.agent_name)
            return msgspec.structs.replace(
                explained,
                ends_at=task.ends_at,
                end_measured=task.measured_end is not None,
                idle_since=task.idle_since if idle_since is None else idle_since,
                limit_at=task.limit_at,
                idle_ends_at=task.idle_ends_at,
                detail=_runs(task, explained.node_ids, now)
                + _idle(idle_since, now)
                + _pool_ends(state, agent, now),
            )
        case TaskPhase.STARTING:
            return _starting(state, agent, explained, now)
        case TaskPhase.ENDING:
            detail = f"its agent {task.agent_name!r} is being terminated"
            if agent is not None and isinstance(agent.phase, Ending):
                detail += f": {agent.phase.reason}"
            return msgspec.structs.replace(explained, detail=detail)
    assert_never(phase)


def _runs(task: RunningTask, node_ids: tuple[str, ...], now: float) -> str:
    """Where it runs and for how long, in one sentence."""
    where = f" on {_named('node', node_ids)}" if node_ids else ""
    sentence = f"it runs{where} in agent {task.agent_name!r} for {span_text(now - task.started_at)}"
    if task.ends_at is None:
        return sentence
    remaining_s = task.remaining(now)
    if task.measured_end is not None:
        return f"{sentence}; by the progress that it reports {span_text(remaining_s)} are left"
    if not remaining_s:
        return f"{sentence}, longer than the {span_text(task.ends_at - task.started_at)} estimated"
    return f"{sentence}; {span_text(remaining_s)} of its estimated duration are left"


def _idle(since: float | None, now: float) -> str:
    """That it comes first among victims because its GPUs are idle, as the end of a sentence."""
    if since is None:
        return ""
    return f"; its GPUs have been idle for {span_text(now - since)}, so it is preferred as a victim"


def _pool_ends(state: MeshState, agent: Agent | None, now: float) -> str:
    """That its pool is ending, as the end of a sentence."""
    drain = None if agent is None else state.drains.pools.get(agent.spec.pool_name)
    if drain is None or not drain.deletes:
        return ""
    when = "" if drain.deadline is None else f" within {span_text(max(0.0, drain.deadline - now))}"
    return f"; its pool is ending, so it is evicted{when} unless it ends before, and does not wait again"


def _starting(
    state: MeshState, agent: Agent | None, explained: Explanation, now: float
) -> Explanation:
    """It waits for victims or groups, or its process is being started."""
    if agent is None or not isinstance(agent.phase, Waiting):
        detail = f"the process of its agent {explained.agent_name!r} is being started"
        if explained.since is not None:
            detail += f", since {span_text(now - explained.since)}"
        return msgspec.structs.replace(explained, detail=detail)
    own_victims, others = _awaited(state, agent.spec.name, sorted(agent.phase.for_agents))
    victims = (*own_victims, *(task_id for task_id, _ in others))
    groups = sorted(agent.phase.for_groups)
    waits = []
    if own_victims:
        waits.append(f"{_named('task', own_victims)} to be evicted")
    if others:
        waits.append(_named("task", [f"{task_id}, {why}" for task_id, why in others], "; "))
    if groups:
        waits.append(f"{_named('placement group', groups)} to be created or removed")
    return msgspec.structs.replace(
        explained,
        waits_for=(*victims, *groups),
        detail="it starts as soon as its resources are free: it waits for "
        + " and for ".join(waits),
    )


def _awaited(
    state: MeshState, incoming: str, names: Iterable[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Of these agents the tasks that are evicted for an incoming agent, and those that end anyway, each with
    why. An agent without tasks stands for itself.
    """
    victims: list[str] = []
    others: list[tuple[str, str]] = []
    for name in names:
        ending = state.agents[name].phase
        tasks = state.running.on_agent(name) or (name,)
        if isinstance(ending, Ending) and ending.leaves_for == incoming:
            victims += tasks
        else:
            others += [(task_id, _why_it_leaves(state, task_id)) for task_id in tasks]
    return victims, others


def _why_it_leaves(state: MeshState, task_id: str) -> str:
    """Why a task ends for which nobody has to be evicted any more, as the end of a sentence."""
    task = state.running.by_id.get(task_id)
    if task is None or not isinstance(task.phase, Preempting):
        return "which is being stopped"
    return f"which is being evicted{_for(last_eviction(state, task_id))}"


def _preempting(
    state: MeshState, task: RunningTask, phase: Preempting, explained: Explanation
) -> Explanation:
    """By whom, by which rule, and what happens to it afterwards."""
    agent = state.agents.get(task.agent_name)
    returns = agent is not None and returns_when_evicted(state, task, agent)
    if task.reached_limit:
        return _limited(task, explained, returns=returns)
    after = "joins the queue again" if returns else "is not run again by itself"
    saved = f"; its state was not saved: {phase.save_error}" if phase.save_error else ""
    return msgspec.structs.replace(
        explained,
        reason=phase.reason.value,
        error=f"it is being evicted{_for(explained.eviction)}{saved}; after that it {after}",
        hint=(
            ""
            if returns
            else "submit it with on_preempted='requeue' to have it run again by itself"
        ),
    )


def _limited(task: RunningTask, explained: Explanation, *, returns: bool) -> Explanation:
    """It has reached a limit in time, and is saved before its end."""
    after = "then it joins the queue again" if returns else "then it ends"
    return msgspec.structs.replace(
        explained,
        reason=str(task.evicted_by),
        error=f"{reached(task.evicted_by, task.max_run_s)}; it is being saved, {after}",
        hint="" if returns or task.evicted_by is PreemptionReason.IDLE_LIMIT else RUN_LONGER,
    )


def _for(eviction: EvictionSummary | None) -> str:
    """For whom and by which rule, as part of a sentence."""
    if eviction is None:
        return ""
    by = evictor(eviction)
    score = "" if eviction.score is None else f", score {eviction.score:.4g}"
    idle = "" if eviction.idle_since is None else ", first among victims as its GPUs were idle"
    return f" for {by} ({eviction.rule}{score}{idle})" if by else f" by request ({eviction.rule})"


def _node_ids(state: MeshState, agent: Agent | None) -> tuple[str, ...]:
    """The nodes of an agent; of a gang those of its members."""
    if agent is None:
        return ()
    group = state.groups.by_id.get(agent.group_id or "")
    if group is not None and isinstance(agent.spec.payload, GangPayload):
        return tuple(dict.fromkeys(group.node_ids))
    return () if agent.node_id is None else (agent.node_id,)


def _named(kind: str, names: Iterable[str], separator: str = ", ") -> str:
    """The first of these names with their kind: ``tasks a, b and 3 more``."""
    listed = list(names)
    shown = separator.join(listed[:_NAMED])
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return f"{kind}{'s' if len(listed) > 1 else ''} {shown}{more}"
