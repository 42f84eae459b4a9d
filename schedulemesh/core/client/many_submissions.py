"""Submits many tasks in few messages. TaskSubmissions documents the call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_type_hints

import msgspec
from ray.actor import ActorHandle

from schedulemesh.api.tasks import MAX_BUNDLES_TOGETHER, MAX_SUBMISSIONS, SubmitMany
from schedulemesh.client.asking import ask_with_handles
from schedulemesh.client.listings import (
    SubmitManyResult,
)
from schedulemesh.client.results import SubmitResult, combined, submitted
from schedulemesh.client.task_fields import SubmitFields
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.deadline import WAITS
from schedulemesh.core.client.task_request import PreparedSubmission, task_submission
from schedulemesh.domain.containers import as_elements, as_items
from schedulemesh.domain.names import as_text
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError, nearest, shown
from schedulemesh.protocol.answers import Responses
from schedulemesh.protocol.public import refused
from schedulemesh.protocol.requests import MAX_BYTES

#: What one of the submissions of ``submit_many`` may say.
_FIELDS = frozenset({"task_id", "pool_name", "actor_class", *get_type_hints(SubmitFields)})


def submit_many(connection: Connection, specs: object) -> SubmitManyResult:
    """Submit many tasks, in as many messages as that takes."""
    submissions = [
        _submission(connection, spec, number)
        for number, spec in enumerate(as_elements(specs, "specs", "a list of submissions"))
    ]
    if not submissions:
        return {"success": True, "results": [], "refused": 0}
    results_so_far: list[SubmitResult] = []
    for part in _parts(submissions):
        answers = _submit_part(connection, part)
        if isinstance(answers, Refused):
            if not results_so_far:
                return combined(SubmitManyResult, refused(answers))
            refusal = combined(SubmitResult, refused(answers))
            return _together(results_so_far + [refusal] * (len(submissions) - len(results_so_far)))
        results_so_far += answers
    return _together(results_so_far)


def _parts(submissions: Sequence[PreparedSubmission]) -> Iterator[list[PreparedSubmission]]:
    """The submissions of each message: as many as it may have in number, in bundles and in bytes."""
    part: list[PreparedSubmission] = []
    size = bundles = 0
    for one in submissions:
        bytes_of_one = len(msgspec.msgpack.encode(one.submission))
        bundles_of_one = len(one.submission.agent.bundles)
        if part and (
            len(part) == MAX_SUBMISSIONS
            or bundles + bundles_of_one > MAX_BUNDLES_TOGETHER
            or size + bytes_of_one > MAX_BYTES // 2
        ):
            yield part
            part, size, bundles = [], 0, 0
        part.append(one)
        size += bytes_of_one
        bundles += bundles_of_one
    yield part


def _submit_part(
    connection: Connection, part: Sequence[PreparedSubmission]
) -> list[SubmitResult] | Refused:
    """The results of one message."""
    request = SubmitMany(
        submissions=tuple(one.submission for one in part),
        references=tuple((len(one.refs[0]), len(one.refs[1])) for one in part),
        blobs={key: data for one in part for key, data in one.request.blobs.items()},
    )
    refs = [ref for one in part for ref in one.refs[0]], [r for one in part for r in one.refs[1]]
    what = WAITS if any(one.submission.until_runs for one in part) else None
    answer, handles = ask_with_handles(connection, request, Responses, refs, what)
    return answer if isinstance(answer, Refused) else _answers(part, answer, handles)


def _submission(connection: Connection, spec: object, number: int) -> PreparedSubmission:
    """One of many submissions. Raises InvalidRequestError naming its position."""
    where = f"specs[{number}]"
    fields: dict[str, object] = {}
    for key, value in as_items(spec, where, "a dict of the arguments of a submission"):
        name = as_text(key)
        if name == "pool":
            name = "pool_name"
        if name in fields:
            raise InvalidRequestError(
                f"{where} has pool and pool_name, which mean the same; give one of them"
            )
        if name is None or name not in _FIELDS:
            near = nearest(name or "", _FIELDS)
            raise InvalidRequestError(
                f"{where} has {shown(key)}{near}; it takes {', '.join(sorted(_FIELDS))}"
            )
        fields[name] = value
    if fields.get("dry_run"):
        raise InvalidRequestError(f"{where} has dry_run, which only a submission by itself takes")
    try:
        return task_submission(connection.caller, fields)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{where}: {error}") from error


def _answers(
    submissions: Sequence[PreparedSubmission], answer: Responses, handles: Sequence[ActorHandle]
) -> list[SubmitResult]:
    """The results in the order of the submissions."""
    answers: list[SubmitResult] = []
    first = 0
    for one, response, count in zip(submissions, answer.responses, answer.handles, strict=True):
        own_handles = handles[first : first + count]
        first += count
        named = not one.submission.default_resources
        answers.append(submitted(response, own_handles, dry_run=False, named_resources=named))
    return answers


def _together(all_results: list[SubmitResult]) -> SubmitManyResult:
    """The results of all submissions as one."""
    refused = [number for number, result in enumerate(all_results) if not result["success"]]
    if not refused:
        return {"success": True, "results": all_results, "refused": 0}
    example = all_results[refused[0]]
    error = f"{len(refused)} of {len(all_results)} submissions were refused; the first is specs[{refused[0]}]"
    return {
        "success": False,
        "error": f"{error}: {example['error']}",
        "reason": example["reason"],
        "results": all_results,
        "refused": len(refused),
    }
