"""Answers of the supervisor as plain data for JSON; a refusal becomes a Problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from schedulemesh.config.groups import public_groups
from schedulemesh.domain.language import Language
from schedulemesh.domain.sentences import say
from schedulemesh.engine.messages.outcomes import (
    Accepted,
    AgentEvicted,
    Evicted,
    Queued,
    Refused,
    RequestOutcome,
    TasksCancelled,
)
from schedulemesh.protocol import public
from schedulemesh.protocol.answers import (
    AnyAnswer,
    Details,
    Evaluated,
    Explained,
    Listed,
    Malformed,
    PoolResponse,
    QueueListed,
    Refusal,
    Response,
    SavedBytes,
)
from schedulemesh.server.listings import Row
from schedulemesh.server.problems import Problem, in_language, status_of


def rows_of(answer: AnyAnswer) -> Sequence[Row]:
    """The rows of a listing. Raises Problem for a refusal."""
    if isinstance(answer, Listed):
        return answer.rows
    if isinstance(answer, QueueListed):
        return [row.public() for row in answer.rows]
    raise unexpected(answer)


def plain(answer: AnyAnswer, language: Language = "en") -> dict[str, Any]:
    """What a single answer says; sentences about a task are in a language. Raises Problem for a refusal."""
    match answer:
        case Details():
            return {"success": True, **answer.facts}
        case Explained():
            return in_language(public.explained(answer.explanation), language)
        case Evaluated():
            return dict(public.evaluated(answer.evaluation))
        case PoolResponse():
            return _pool(answer)
        case Response():
            return _response(answer)
        case SavedBytes():
            return {"success": True, "state_saved": answer.state is not None}
        case Listed() | QueueListed():
            return {"success": True, "items": rows_of(answer)}
        case _:
            raise unexpected(answer)


def refuse(refused: Refused) -> Problem:
    """A refusal as a Problem."""
    reason = refused.reason.value
    problem = Problem(status_of(reason), reason, refused.error)
    problem.body = dict(public.refused(refused))
    return problem


def _response(answer: Response) -> dict[str, Any]:
    outcome = answer.outcome
    if isinstance(outcome, AgentEvicted):
        evicted = [
            {"task_id": e.task_id, "reason": e.reason.value, "state_saved": e.state_saved}
            for e in answer.evicted
        ]
        return {"success": True, "agent_name": outcome.agent_name, "preempted": evicted}
    if isinstance(outcome, Evicted):
        return {"success": not outcome.runs_on, **_plain_fields(outcome)}
    if isinstance(outcome, TasksCancelled):
        return _cancelled(outcome)
    if isinstance(outcome, (Accepted, Queued)):
        return _submitted(outcome)
    return _done(outcome)


def _submitted(outcome: Accepted | Queued) -> dict[str, Any]:
    """The answer to a submission."""
    answer = {
        "success": True,
        "task_id": outcome.task_id,
        "agent_name": outcome.agent_name,
        "pool_name": outcome.pool_name,
    }
    if isinstance(outcome, Queued):
        state = "queued" if outcome.position else "starting"
        return {**answer, "state": state, "position": outcome.position}
    preempted = [candidate.task_id for candidate in outcome.preempted]
    return {**answer, "state": "running", "node_id": outcome.node_id, "preempted": preempted}


def _done(outcome: RequestOutcome) -> dict[str, Any]:
    if isinstance(outcome, Refused):
        raise refuse(outcome)
    return dict(public.result_of(outcome))


def _cancelled(outcome: TasksCancelled) -> dict[str, Any]:
    """The answer where several tasks were to be cancelled, of which some may have been refused."""
    refused = {task_id: public.refused(why) for task_id, why in outcome.refused.items()}
    if not refused:
        return {"success": True, "already_ended": list(outcome.already_ended), "refused": {}}
    first = next(iter(outcome.refused.values()))
    error = say("tasks_not_cancelled", count=len(refused), why=first.error_text)
    raise Problem(
        status_of(first.reason.value),
        first.reason.value,
        error,
        refused=refused,
    )


def _pool(answer: PoolResponse) -> dict[str, Any]:
    body = _done(answer.outcome)
    if answer.spec is not None:
        groups = public_groups(answer.spec.groups)
        body["pool"] = {**public.pool_definition(answer.spec), "pg_pool_config": groups}
    if answer.groups is not None:
        body["placement_groups"] = answer.groups
    return body


def _plain_fields(outcome: Evicted) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(outcome)
    fields.pop("type", None)
    fields.pop("state_key", None)
    return fields


def unexpected(answer: AnyAnswer) -> Exception:
    """The error for an answer that has no data."""
    if isinstance(answer, Refusal):
        return refuse(answer.refused)
    if isinstance(answer, Malformed):
        return Problem(400, "invalid_request", answer.error)
    return TypeError(f"the supervisor answered with {type(answer).__name__}")
