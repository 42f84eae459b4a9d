"""The calls that read what belongs to one task, which a submitter may read of its own tasks only."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from schedulemesh.api.arrays import MAX_MEMBERS_LISTED, MEMBER_STATES, ArrayInfo, GetArray
from schedulemesh.api.call import Call
from schedulemesh.api.exec_sessions import ReadExec
from schedulemesh.api.leases import WatchLease
from schedulemesh.api.logs import MAX_PIECE, STREAMS, ReadTaskLog
from schedulemesh.api.tasks import LONGEST_WAIT_S
from schedulemesh.domain.placement import PART_JOINT
from schedulemesh.domain.task import ENDED_STATES
from schedulemesh.protocol.answers import AnyAnswer, Details, ExecOutput, LeaseView, TaskLog
from schedulemesh.server import parameters as p
from schedulemesh.server import schemas
from schedulemesh.server.answers import unexpected
from schedulemesh.server.parameters import QueryParameter

Json = dict[str, Any]

#: Bytes of the longest character in UTF-8, of which every part has one.
_CHARACTER = 4


class TaskRead(msgspec.Struct, frozen=True, kw_only=True):
    """A call that reads something of the task whose id is in its path."""

    path: str
    summary: str
    #: The type of the answer.
    answer: Any
    parameters: tuple[QueryParameter, ...]
    #: The class of the request, which decides who may make it.
    asks: type[Call]
    request: Callable[[str, Mapping[str, Any]], Call]
    #: The answer, from that of the supervisor. Raises Problem for a refusal.
    facts_of: Callable[[AnyAnswer], Json]


def _log_request(task_id: str, parameters: Mapping[str, Any]) -> ReadTaskLog:
    return ReadTaskLog(
        task_id=task_id,
        attempt=parameters["attempt"],
        rank=parameters.get("rank", 0),
        stream=parameters.get("stream"),
        begin=parameters["offset"],
        limit=parameters["limit"],
    )


def _log_part(answer: AnyAnswer) -> Json:
    if not isinstance(answer, TaskLog):
        raise unexpected(answer)
    text, length = _text(answer.data, ended=answer.state in ENDED_STATES)
    return {
        "state": answer.state,
        "stream": answer.stream,
        "attempt": answer.attempt,
        "offset": answer.begin,
        "text": text,
        "next": answer.begin + length,
        "end": answer.end,
    }


def _text(data: bytes, *, ended: bool) -> tuple[str, int]:
    """The text of a part, and how many bytes it stands for: a character that is cut off at the end is left to
    the next part, unless there is nothing else and the job has ended, so that the rest will not be written.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    if not text and ended:
        return decoder.decode(b"", final=True), len(data)
    return text, len(data) - len(decoder.getstate()[0])


def _exec_request(task_id: str, parameters: Mapping[str, Any]) -> ReadExec:
    return ReadExec(
        task_id=task_id,
        session_id=parameters["session"] or "",
        after=parameters["after"],
        wait_s=parameters["wait"],
    )


def _exec_part(answer: AnyAnswer) -> Json:
    if not isinstance(answer, ExecOutput):
        raise unexpected(answer)
    pieces = [
        {"stream": STREAMS[stream - 1], "text": data.decode("utf-8", "replace")}
        for stream, data in answer.pieces
    ]
    return {
        "pieces": pieces,
        "next": answer.next,
        "ended": answer.ended,
        "exit_code": answer.exit_code,
        "error": answer.error,
    }


def _lease(task_id: str, parameters: Mapping[str, Any]) -> WatchLease:
    return WatchLease(
        task_id=task_id,
        known=parameters["known"] or "",
        notified=parameters["notified"],
        wait_s=parameters["wait"],
    )


def _lease_state(answer: AnyAnswer) -> Json:
    if not isinstance(answer, LeaseView):
        raise unexpected(answer)
    return {
        "state": answer.state,
        "pool_name": answer.pool_name,
        "placement_groups": _groups(answer),
        "grace_s": answer.grace_s,
        "end_reason": answer.reason,
        "end_error": answer.error,
    }


def _groups(lease: LeaseView) -> list[Json]:
    """The placement groups that it has now, in the order in which they were asked for."""
    if not lease.ray_id or lease.shape is None:
        return []
    parts = zip(lease.ray_id.split(PART_JOINT), lease.shape.each_part, strict=True)
    return [
        {
            "id": ray_id,
            "bundles": [bundle.public() for bundle in part.bundles],
            "strategy": part.strategy,
        }
        for ray_id, part in parts
    ]


def _array(answer: AnyAnswer) -> Json:
    if not isinstance(answer, Details):
        raise unexpected(answer)
    return dict(answer.facts)


_LOG_PARAMETERS = (
    p.count("attempt", "Of this attempt; else of the last one.", least=1),
    p.count("offset", "The position of the first byte.", default=0),
    p.count("limit", "The most bytes.", MAX_PIECE, least=_CHARACTER, default=MAX_PIECE),
)
TASK_READS = (
    TaskRead(
        path="/tasks/{task_id:name}/log",
        summary="Read what an attempt of a task has written, from a position",
        answer=schemas.TaskLogPart,
        parameters=(
            *_LOG_PARAMETERS,
            p.count("rank", "Of this member of a gang.", default=0),
            p.optional_choice("stream", "Else stdout; of a job both.", STREAMS),
        ),
        asks=ReadTaskLog,
        request=_log_request,
        facts_of=_log_part,
    ),
    TaskRead(
        path="/jobs/{task_id:name}/log",
        summary="Read what the driver of a job has written, from a position",
        answer=schemas.TaskLogPart,
        parameters=_LOG_PARAMETERS,
        asks=ReadTaskLog,
        request=_log_request,
        facts_of=_log_part,
    ),
    TaskRead(
        path="/tasks/{task_id:name}/exec",
        summary="Read what a command inside a task or a lease has written since, and how it ended",
        answer=schemas.CommandPart,
        parameters=(
            p.name("session", "The command: the `session_id` with which it was started."),
            p.count(
                "after", "How many pieces were received, `next` of the answer before.", default=0
            ),
            p.count("wait", "The most seconds to wait.", int(LONGEST_WAIT_S), default=0),
        ),
        asks=ReadExec,
        request=_exec_request,
        facts_of=_exec_part,
    ),
    TaskRead(
        path="/arrays/{task_id:name}",
        summary="Read how an array stands, and a page of its members",
        answer=ArrayInfo,
        parameters=(
            p.optional_choice("state", "Only members in this state.", MEMBER_STATES),
            p.count(
                "after", "Only members with a higher index: of the next page, `next` of this one."
            ),
            p.count("limit", "The most members.", MAX_MEMBERS_LISTED, default=100),
        ),
        asks=GetArray,
        request=lambda task_id, parameters: GetArray(task_id=task_id, **parameters),
        facts_of=_array,
    ),
    TaskRead(
        path="/leases/{task_id:name}",
        summary="Read how a lease stands, and its placement groups",
        answer=schemas.LeaseState,
        parameters=(
            p.name("known", "The state that the caller knows: the answer waits for another one."),
            p.flag("notified", "Whether the caller knows that it is being evicted."),
            p.count("wait", "The most seconds to wait.", int(LONGEST_WAIT_S), default=0),
        ),
        asks=WatchLease,
        request=_lease,
        facts_of=_lease_state,
    ),
)
