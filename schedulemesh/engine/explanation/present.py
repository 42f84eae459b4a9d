"""Explains tasks that have an agent: where they run and since when, or what their start or end waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

import msgspec
from typing_extensions import assert_never

from schedulemesh.domain.eviction_causes import cause_of
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.sentences import Sentence, Text, say
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.admission.ends import estimate_of
from schedulemesh.engine.admission.time_limits import leaving_s
from schedulemesh.engine.explanation.estimate import described
from schedulemesh.engine.explanation.evictions import (
    RUN_LONGER,
    evictor,
    last_eviction,
    last_saved,
    reached,
    score_of,
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
#: How one of a kind is named, and how several are.
_KINDS = {
    "task": ("named_task", "named_tasks"),
    "node": ("named_node", "named_nodes"),
    "group": ("named_group", "named_groups"),
}


def explain_present(state: MeshState, task: RunningTask, now: float) -> Explanation:
    """The explanation of a task that has been admitted or registered and has not ended."""
    agent = state.agents.get(task.agent_name)
    eviction = last_eviction(state, task.spec.task_id)
    explained = Explanation(
        task=task.spec,
        kind=kind_of(state.agents, task.agent_name),
        state=task.phase.value,
        agent_name=task.agent_name,
        node_ids=_node_ids(state, agent),
        since=task.started_at,
        saved_at=last_saved(task.saved_at, eviction),
        preemptions=task.attempts.preemptions,
        failures=task.attempts.failures,
        run_limit_s=task.max_run_s,
        idle_limit_s=idle_limit(state, task),
        eviction=eviction,
        alternative=0 if agent is None else agent.spec.taken,
        flavor="" if agent is None else agent.spec.taken_flavor,
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
                detail_text=_runs(state, task, agent, explained.node_ids, now),
            )
        case TaskPhase.STARTING:
            return _starting(state, agent, explained, now)
        case TaskPhase.ENDING:
            why: Text = ""
            if agent is not None and isinstance(agent.phase, Ending):
                why = say("colon", what=agent.phase.reason)
            detail = say("agent_terminated", agent=task.agent_name, why=why)
            return msgspec.structs.replace(explained, detail_text=detail)
    assert_never(phase)


def _runs(
    state: MeshState, task: RunningTask, agent: Agent | None, node_ids: tuple[str, ...], now: float
) -> Sentence:
    """Where it runs and for how long, whether its GPUs are idle, and whether its pool is ending."""
    return say(
        "runs",
        where=say("on_nodes", nodes=_named("node", node_ids)) if node_ids else "",
        agent=task.agent_name,
        ran=now - task.started_at,
        rest=_rest(task, now),
        idle=_idle(state.running.idle.get(task.agent_name), now),
        ends=_pool_ends(state, agent, now) or _window_ends(state, task, agent, now),
    )


def _rest(task: RunningTask, now: float) -> Text:
    """How long it still runs, as the end of a sentence; empty: not known."""
    if task.ends_at is None:
        return ""
    remaining_s = task.remaining(now)
    if task.measured_end is not None:
        return say("remaining_measured", remaining=remaining_s)
    if not remaining_s:
        return say("longer_than_estimated", estimated=task.ends_at - task.started_at)
    return say("remaining_estimated", remaining=remaining_s)


def _idle(since: float | None, now: float) -> Text:
    """That it comes first among victims because its GPUs are idle, as the end of a sentence."""
    return "" if since is None else say("idle_preferred", idle=now - since)


def _pool_ends(state: MeshState, agent: Agent | None, now: float) -> Text:
    """That its pool is ending, as the end of a sentence."""
    drain = None if agent is None else state.drains.pools.get(agent.spec.pool_name)
    if drain is None or not drain.deletes:
        return ""
    if drain.deadline is None:
        return say("pool_ends")
    return say("pool_ends_within", time=max(0.0, drain.deadline - now))


def _window_ends(state: MeshState, task: RunningTask, agent: Agent | None, now: float) -> Text:
    """That it is evicted for a maintenance window, unless it is over before, as the end of a sentence."""
    if agent is None or not state.windows.by_name:
        return ""
    openings = [
        (occurrence.start, node_id, window.name)
        for node_id in _node_ids(state, agent)
        for occurrence, window in state.windows.of_node(node_id, now)
        if not window.admits(agent.spec.pool_name, task.spec.owner, task.spec.labels)
    ]
    start, node_id, name = min(openings, default=(inf, "", ""))
    leaves_at = start - leaving_s(state, agent.spec)
    ends = [end for end in (task.ends_at, task.limit_at) if end is not None]
    if leaves_at == inf or min(ends, default=inf) <= leaves_at:
        return ""
    node = _named("node", (node_id,))
    return say("window_ends_it", window=name, node=node, wait=max(0.0, leaves_at - now))


def _starting(
    state: MeshState, agent: Agent | None, explained: Explanation, now: float
) -> Explanation:
    """It waits for victims or groups, or its process is being started."""
    if agent is None or not isinstance(agent.phase, Waiting):
        since = "" if explained.since is None else say("since", time=now - explained.since)
        detail = say("process_starts", agent=explained.agent_name, since=since)
        return msgspec.structs.replace(explained, detail_text=detail)
    own_victims, others = _awaited(state, agent.spec.name, sorted(agent.phase.for_agents))
    victims = (*own_victims, *(task_id for task_id, _ in others))
    groups = sorted(agent.phase.for_groups)
    waits = []
    if own_victims:
        waits.append(say("to_be_evicted", tasks=_named("task", own_victims)))
    if others:
        leaving = [say("leaving_task", task=task_id, why=why) for task_id, why in others]
        waits.append(_named("task", leaving, "clauses"))
    if groups:
        waits.append(say("groups_to_change", groups=_named("group", groups)))
    return msgspec.structs.replace(
        explained,
        waits_for=(*victims, *groups),
        detail_text=say("starts_when_free", waits=waits),
    )


def _awaited(
    state: MeshState, incoming: str, names: Iterable[str]
) -> tuple[list[str], list[tuple[str, Sentence]]]:
    """Of these agents the tasks that are evicted for an incoming agent, and those that end anyway, each with
    why. An agent without tasks stands for itself.
    """
    victims: list[str] = []
    others: list[tuple[str, Sentence]] = []
    for name in names:
        ending = state.agents[name].phase
        tasks = state.running.on_agent(name) or (name,)
        if isinstance(ending, Ending) and ending.leaves_for == incoming:
            victims += tasks
        else:
            others += [(task_id, _why_it_leaves(state, task_id)) for task_id in tasks]
    return victims, others


def _why_it_leaves(state: MeshState, task_id: str) -> Sentence:
    """Why a task ends for which nobody has to be evicted any more, as the end of a sentence."""
    task = state.running.by_id.get(task_id)
    if task is None or not isinstance(task.phase, Preempting):
        return say("which_is_stopped")
    return say("which_is_evicted", evictor=_for(last_eviction(state, task_id)))


def _preempting(
    state: MeshState, task: RunningTask, phase: Preempting, explained: Explanation
) -> Explanation:
    """By whom, by which rule, and what happens to it afterwards."""
    agent = state.agents.get(task.agent_name)
    returns = agent is not None and returns_when_evicted(state, task, agent)
    if task.reached_limit:
        return _limited(task, explained, returns=returns)
    saved = say("and_not_saved", error=phase.save_error) if phase.save_error else ""
    after = say("joins_queue_again" if returns else "not_run_again")
    return msgspec.structs.replace(
        explained,
        reason=phase.reason.value,
        error_text=say("is_evicted", evictor=_for(explained.eviction), saved=saved, after=after),
        hint_text="" if returns else say("requeue_hint"),
    )


def _limited(task: RunningTask, explained: Explanation, *, returns: bool) -> Explanation:
    """It has reached a limit in time, and is saved before its end."""
    after = say("then_it_queues" if returns else "then_it_ends")
    limit = reached(task.evicted_by, task.max_run_s)
    return msgspec.structs.replace(
        explained,
        reason=str(task.evicted_by),
        error_text=say("is_saved_then", limit=limit, after=after),
        hint_text="" if returns or task.evicted_by is PreemptionReason.IDLE_LIMIT else RUN_LONGER,
    )


def _for(eviction: EvictionSummary | None) -> Text:
    """For whom and by which rule, as part of a sentence."""
    if eviction is None:
        return ""
    by = evictor(eviction)
    if not by:
        return say("by_cause", cause=cause_of(eviction.rule), rule=eviction.rule)
    idle = "" if eviction.idle_since is None else say("idle_victim")
    score = score_of(eviction)
    return say("for_evictor", evictor=by, rule=eviction.rule, score=score, idle=idle)


def _node_ids(state: MeshState, agent: Agent | None) -> tuple[str, ...]:
    """The nodes of an agent; of a gang those of its members."""
    if agent is None:
        return ()
    group = state.groups.by_id.get(agent.group_id or "")
    if group is not None and isinstance(agent.spec.payload, GangPayload):
        return tuple(dict.fromkeys(group.node_ids))
    return () if agent.node_id is None else (agent.node_id,)


def _named(kind: str, names: Sequence[str | Sentence], form: str = "names") -> Sentence:
    """The first of these names with their kind: ``tasks a, b and 3 more``. ``form``: how they are listed."""
    count = len(names)
    listed = say(form, names=names[:_NAMED])
    if count > _NAMED:
        listed = say("names_and_more", names=listed, more=count - _NAMED)
    one, several = _KINDS[kind]
    return say(one if count == 1 else several, names=listed)
