"""Requests about arrays: how one stands, and its members."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from schedulemesh.api.arrays import ArrayInfo, GetArray, MemberRow
from schedulemesh.domain.arrays import Indices, array_form, member_id
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import did_you_mean, say
from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.arrays import TaskArray
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.protocol.answers import Details, Refusal, details
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.services.running import Service


class ArrayService(Service):
    """Describes arrays."""

    @handler
    async def array(self, request: GetArray) -> Details | Refusal:
        """How an array stands, and a page of its members."""
        answer = await self._reactor.read(lambda: _described(self._reactor.state, request))
        return Refusal(refused=answer) if isinstance(answer, Refused) else details(answer)


def _described(state: MeshState, request: GetArray) -> ArrayInfo | Refused:
    one = state.arrays.by_id.get(request.task_id)
    if one is None:
        near = did_you_mean(request.task_id, state.arrays.by_id)
        return Refused(
            reason=Reason.TASK_NOT_FOUND,
            error_text=say("no_array_on_record", array=request.task_id, near=near),
        )
    begin = 0 if request.after is None else request.after + 1
    indices = [*islice(_indices(one, request.state, begin), request.limit + 1)]
    more = len(indices) > request.limit
    indices = indices[: request.limit]
    answer = _summary(state, one)
    answer["members"] = [_row(state, one, index) for index in indices]
    answer["next"] = indices[-1] if more and indices else None
    return answer


def _summary(state: MeshState, one: TaskArray) -> ArrayInfo:
    """How an array stands, without its members."""
    past = state.ended.get(one.array_id)
    not_completed = Indices()
    for end, indices in one.ended.items():
        for first, last in () if end is EndState.COMPLETED else indices.ranges():
            not_completed.add_range(first, last)
    running = "running" if one.running else "queued"
    return {
        "task_id": one.array_id,
        "pool_name": one.spec.pool_name,
        "owner": one.spec.owner,
        "kind": one.kind,
        "array": one.spec.array,
        "most": one.most,
        "count": one.size,
        "queued": len(one.remaining) + len(one.waiting),
        "running": len(one.running),
        "completed": len(one.ended[EndState.COMPLETED]),
        "failed": len(one.ended[EndState.FAILED]),
        "cancelled": len(one.ended[EndState.CANCELLED]),
        "lost": len(one.ended[EndState.LOST]),
        "not_completed": not_completed.written(),
        "state": running if past is None or one.ended_at is None else past.state.value,
        "ended_at": one.ended_at,
    }


def _indices(one: TaskArray, state: str | None, begin: int) -> Iterator[int]:
    """The indices of the members in a state (None: of all) from one on, ascending."""
    if state is None:
        return _from(array_form(one.spec.array).indices(), begin)
    if state == "queued":
        waiting = (index for index in sorted(one.waiting) if index >= begin)
        return merge(_from(one.remaining, begin), waiting)
    if state == "running":
        return (index for index in sorted(one.running) if index >= begin)
    return _from(one.ended[EndState(state)], begin)


def _from(indices: Indices, begin: int) -> Iterator[int]:
    for first, last in indices.ranges():
        yield from range(max(first, begin), last + 1)


def _row(state: MeshState, one: TaskArray, index: int) -> MemberRow:
    """A member; of one that is no task, or is on record no more, what the array knows."""
    task_id = member_id(one.array_id, index)
    row: MemberRow = {"array_index": index, "task_id": task_id}
    running = state.running.by_id.get(task_id)
    if running is not None:
        agent = state.agents.get(running.agent_name)
        row |= {
            "state": running.phase.value,
            "agent_name": running.agent_name,
            "node_id": None if agent is None else agent.node_id,
            "started_at": running.started_at,
        }
        attempts = running.attempts
    elif (waiting := state.queue.by_id.get(task_id)) is not None:
        row["state"], attempts = "queued", waiting.attempts
    elif (past := state.ended.get(task_id)) is not None:
        row |= {
            "state": past.state.value,
            "ended_at": past.at,
            "reason": past.reason,
            "error": str(past.error),
        }
        attempts = past.attempts
    else:
        end = one.end_of(index)
        row["state"] = "queued" if end is None else end.value
        return row
    row |= {"preemptions": attempts.preemptions, "failures": attempts.failures}
    return row
