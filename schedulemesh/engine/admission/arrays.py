"""Arrays: what can be one, which members a request means, and how a member becomes a task.

A request names a whole array by its id, or members by their indices behind it: ``train[3-7,9]``.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.domain.arrays import Indices, array_form, member_id, members_named, parse_indices
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import Sentence, say
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.queue_facts import ArrayMembersCancelled, ArrayMembersSplit
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.arrays import TaskArray
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.transaction import Transaction
from schedulemesh.errors import InvalidRequestError

#: How many members one request makes tasks of their own, each of which is an entry in the queue.
MAX_SPLIT = 1_000


class SelectedMembers(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The members of an array that a request means."""

    array: TaskArray
    #: Their indices; None: it means the array with all of its members.
    indices: Indices | None = None

    def waiting(self) -> list[str]:
        """The ids of those that are tasks and wait."""
        return self._ids(self.array.waiting)

    def running(self) -> list[str]:
        """The ids of those that have an agent."""
        return self._ids(self.array.running)

    def remaining(self) -> Indices:
        """Those that are no tasks yet."""
        remaining = self.array.remaining
        return remaining.copy() if self.indices is None else remaining.within(self.indices)

    def _ids(self, indices: dict[int, None]) -> list[str]:
        meant = indices if self.indices is None else (i for i in indices if i in self.indices)
        return [member_id(self.array.array_id, index) for index in sorted(meant)]


def selected(state: MeshState, task_id: str) -> SelectedMembers | Refused | None:
    """The members that a request with this id means, of an array that has not ended. None: it means a task
    that waits or runs, or nothing of an array. A refusal: the array has no such members.
    """
    one = state.arrays.alive(task_id)
    if one is not None:
        return SelectedMembers(array=one)
    if task_id in state.queue.by_id or task_id in state.running.by_id:
        return None
    named = members_named(task_id)
    one = None if named is None else state.arrays.alive(named[0])
    if named is None or one is None:
        return None
    try:
        indices = parse_indices(named[1])
    except InvalidRequestError as error:
        return Refused(reason=Reason.INVALID_ARRAY, error_text=str(error))
    missing = indices.without(array_form(one.spec.array).indices())
    if not missing:
        return SelectedMembers(array=one, indices=indices)
    return Refused(
        reason=Reason.INVALID_ARRAY,
        error_text=say("no_member", array=named[0], index=missing.first, indices=one.spec.array),
    )


def split(tx: Transaction, selection: SelectedMembers) -> Refused | None:
    """Make tasks of the selected members that are none yet; a refusal where these are too many."""
    indices = selection.remaining()
    if len(indices) > MAX_SPLIT:
        return Refused(
            reason=Reason.INVALID_ARRAY,
            error_text=say(
                "too_many_members",
                count=len(indices),
                array=selection.array.array_id,
                most=MAX_SPLIT,
            ),
        )
    if indices:
        array_id = selection.array.array_id
        tx.emit(ArrayMembersSplit(array_id=array_id, indices=tuple(indices), at=tx.now))
    return None


def next_member(tx: Transaction, entry: QueuedTask) -> QueuedTask:
    """Make a task of the next member of an array, which is to start."""
    one = tx.state.arrays.by_id[entry.task_id]
    index = one.remaining.first
    tx.emit(ArrayMembersSplit(array_id=entry.task_id, indices=(index,), at=tx.now))
    return tx.state.queue.by_id[member_id(entry.task_id, index)]


def cancel_remaining(
    tx: Transaction, selection: SelectedMembers, reason: Reason, error: str = ""
) -> bool:
    """Have the selected members that are no tasks yet never start; whether there were any."""
    indices = selection.remaining()
    if indices:
        tx.emit(
            ArrayMembersCancelled(
                array_id=selection.array.array_id,
                indices="" if selection.indices is None else indices.written(),
                at=tx.now,
                reason=reason,
                error=error,
            )
        )
    return bool(indices)


def array_limit(state: MeshState, task: TaskSpec) -> Refused | None:
    """The refusal of a member of an array of which as many members have an agent as may at once."""
    if not state.arrays.is_full(task):
        return None
    one = state.arrays.by_id[task.array_id or task.task_id]
    return Refused(
        reason=Reason.ARRAY_LIMIT,
        error_text=say(
            "array_is_full", running=one.with_agent, array=one.array_id, most=one.most or 0
        ),
        hint_text=say("array_is_full_hint"),
    )


def refused_as_array(state: MeshState, stimulus: TaskSubmitted) -> Refused | None:
    """The refusal of what cannot be an array, or of an id that belongs to the members of one."""
    task, agent = stimulus.task, stimulus.agent
    if task is None:
        return None
    if not task.array and not state.arrays.by_id:
        return None
    refused = member_taken(state, task.task_id) or _taken_agent(state, agent.name)
    if refused or not task.array:
        return refused
    why = _not_an_array(stimulus)
    if why is not None:
        error = say("no_array", task=task.task_id, why=why)
        return Refused(reason=Reason.INVALID_ARRAY, error_text=error)
    other = _like_a_member(task.task_id, (*state.running.by_id, *state.queue.by_id))
    if other is not None:
        return Refused(
            reason=Reason.DUPLICATE_TASK,
            error_text=say("like_a_member", other=other, task=task.task_id),
        )
    other = _like_a_member(agent.name, (*state.agents, *state.queue.agent_names))
    if other is None:
        return None
    return Refused(
        reason=Reason.DUPLICATE_AGENT,
        error_text=say("agent_like_a_member", other=other, task=task.task_id),
    )


def _like_a_member(name: str, names: Iterable[str]) -> str | None:
    """One of these names that a member of an array of this name would have; None: there is none."""
    begin = f"{name}["
    return next((one for one in names if one.startswith(begin) and members_named(one)), None)


def _not_an_array(stimulus: TaskSubmitted) -> Sentence | None:
    """Why a submission cannot be an array; None: it can."""
    task, agent = stimulus.task, stimulus.agent
    if task is None or not task.run:
        return say("array_does_not_run")
    if agent.extra_names:
        return say("array_is_elastic")
    if not agent.restartable or agent.references:
        return say("array_has_references")
    if agent.payload.adopts:
        return say("array_adopts")
    if stimulus.until_runs:
        return say("array_is_awaited")
    if not stimulus.queue:
        return say("array_needs_queue")
    return None


def member_taken(state: MeshState, task_id: str) -> Refused | None:
    """The refusal of an id that an array has, or a member of one that has not ended."""
    named = members_named(task_id)
    owner = task_id if state.arrays.alive(task_id) else "" if named is None else named[0]
    if not owner or state.arrays.alive(owner) is None:
        return None
    error = say("array_exists", task=task_id)
    if owner != task_id:
        error = say("member_exists", task=task_id, array=owner)
    return Refused(reason=Reason.DUPLICATE_TASK, error_text=error)


def _taken_agent(state: MeshState, agent_name: str) -> Refused | None:
    """The refusal of an agent's name that a member of an array has, or may get."""
    named = members_named(agent_name)
    if named is None:
        return None
    for one in state.arrays.by_id.values():
        if one.agent_name == named[0] and one.ended_at is None:
            return Refused(
                reason=Reason.DUPLICATE_AGENT,
                error_text=say("agent_of_array", agent=agent_name, array=one.array_id),
            )
    return None
