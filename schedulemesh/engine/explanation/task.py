"""Explains a task in whatever state it is: the entry of this package."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import chain, islice

import msgspec

from schedulemesh.domain.links import links_of
from schedulemesh.domain.priorities import own_class_of
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.explanation.past import explain_past
from schedulemesh.engine.explanation.present import explain_present
from schedulemesh.engine.explanation.queued import explain_queued
from schedulemesh.engine.messages.explanation import Explanation
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.state.arrays import TaskArray
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Transaction

#: How many ids are looked at to find those that begin like an unknown one.
_LOOKED_AT = 50_000
#: How many of them, and how many others, are compared letter by letter, which costs much more.
_COMPARED = 100
#: How many near ids a refusal names.
_NAMED = 3


def explain(
    state: MeshState, strategies: Strategies, task_id: str, now: float
) -> Explanation | Refused:
    """What is known of a task ``now``; a refusal that names near ids where nothing is. Changes nothing."""
    explanation = _explanation(state, strategies, task_id, now)
    if isinstance(explanation, Refused):
        return explanation
    own_class = own_class_of(explanation.task.priority, state.policy.priority_classes)
    if own_class:
        explanation = msgspec.structs.replace(explanation, own_class=own_class)
    if not state.policy.links:
        return explanation
    agent_name, nodes = explanation.agent_name, explanation.node_ids
    links = links_of(state.policy.links, explanation.task, agent_name, nodes[0] if nodes else None)
    return msgspec.structs.replace(explanation, links=links)


def _explanation(
    state: MeshState, strategies: Strategies, task_id: str, now: float
) -> Explanation | Refused:
    queued = state.queue.by_id.get(task_id)
    if queued is not None:
        return explain_queued(Transaction(state, now, strategies), queued)
    running = state.running.by_id.get(task_id)
    if running is not None:
        return explain_present(state, running, now)
    array = _of_array(state, strategies, task_id, now)
    if array is not None:
        return array
    past = explain_past(state, task_id)
    return _unknown(state, task_id) if past is None else past


def _of_array(
    state: MeshState, strategies: Strategies, task_id: str, now: float
) -> Explanation | None:
    """The explanation of an array without an entry in the queue, or of a member that is no task yet or no
    more; None: it is neither.
    """
    array = state.arrays.alive(task_id)
    if array is not None:
        return _with_members(array, array.spec, "running" if array.running else "queued")
    member = state.arrays.member_of(task_id)
    if member is None:
        return None
    array, index = member
    spec = array.member(index)
    end = array.end_of(index)
    if end is not None and task_id not in state.ended:
        return _with_members(array, spec, end.value)
    if index not in array.remaining:
        return None
    waiting = state.queue.by_id[array.array_id]
    explanation = explain_queued(Transaction(state, now, strategies), waiting)
    return msgspec.structs.replace(explanation, task=spec)


def _with_members(array: TaskArray, spec: TaskSpec, state: str) -> Explanation:
    """The explanation of an array, or of one of its members, that says what its members do."""
    return Explanation(
        task=spec,
        kind=array.kind,
        state=state,
        detail_text=say("array_members", array=array.array_id, members=array.described()),
        agent_name=array.agent_name,
    )


def _unknown(state: MeshState, task_id: str) -> Refused:
    near = _near(
        task_id,
        chain(state.past.ended, islice(state.queue.by_id, _LOOKED_AT // 2), state.running.by_id),
    )
    return Refused(
        reason=Reason.TASK_NOT_FOUND,
        error_text=say(
            "no_such_task",
            task=task_id,
            near=say("near_ids", ids=[*map(repr, near)]) if near else "",
        ),
        hint_text=say("no_such_task_hint"),
    )


def _near(task_id: str, task_ids: Iterable[str]) -> list[str]:
    """The known ids nearest to this one, nearest first: of those that begin alike, and of the first ones."""
    looked_at = list(islice(task_ids, _LOOKED_AT))
    start = task_id[: max(1, len(task_id) - 2)]
    alike = islice((other for other in looked_at if other.startswith(start)), _COMPARED)
    compared = dict.fromkeys([*alike, *looked_at[:_COMPARED]])
    return get_close_matches(task_id, compared, n=_NAMED, cutoff=0.6)
