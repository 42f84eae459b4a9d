"""Sends one typed request to the supervisor and returns its answer, or the public dict made from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import cast

from ray import ObjectRef
from ray.actor import ActorHandle

from schedulemesh.api.call import Call
from schedulemesh.core.client import results
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.results import ResultT, combined
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.answers import AnswerT, Details, Listed, Response, decode_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.decision_log import SHORTAGES
from schedulemesh.runtime.references import NO_REFS

logger = logging.getLogger(__name__)


def ask(connection: Connection, request: Call, expected: type[AnswerT]) -> AnswerT | Refused:
    """The answer of the expected type, or the refusal.

    Raises InvalidRequestError where the supervisor finds the request malformed, and
    SchedulerUnavailableError where it does not answer.
    """
    return ask_with_handles(connection, request, expected)[0]


def ask_with_handles(
    connection: Connection,
    request: Call,
    expected: type[AnswerT],
    refs: tuple[list[ObjectRef], list[ObjectRef]] | None = None,
    what: str | None = None,
) -> tuple[AnswerT | Refused, list[ActorHandle]]:
    """As ``ask``, with the Ray handles that were sent beside the answer.

    ``refs``: object references that are sent beside the request: those that are whole arguments, and those
    nested in other values. ``what``: the name that decides how long the answer may take; None: the request's.
    """
    tag = str(type(request).__struct_config__.tag)
    beside = NO_REFS if refs is None else refs
    answer = connection.call("ask", encode_request(request), beside, what=what or tag)
    data, handles = answer if isinstance(answer, tuple) else (answer, [])
    return decode_answer(data, expected), handles


def respond(connection: Connection, request: Call) -> Response:
    """The response to a request that ends in an outcome; a refusal is an outcome like any other."""
    answer = ask(connection, request, Response)
    return Response(outcome=answer) if isinstance(answer, Refused) else answer


def logged(call: str, result: ResultT) -> ResultT:
    """The result of a call whose answer many callers do not read, after its refusal and its warnings were
    logged in their process. The scheduler itself logs refusals because of a shortage.
    """
    answer = cast("Mapping[str, object]", result)
    if not answer["success"] and answer["reason"] not in SHORTAGES:
        logger.warning("%s was refused: %s (%s)", call, answer["error"], answer["reason"])
    for warning in cast("list[str]", answer.get("warnings", [])):
        logger.warning("%s: %s", call, warning)
    return result


def details(connection: Connection, request: Call, result: Callable[..., ResultT]) -> ResultT:
    """The public result of a request that is answered with plain data by name."""
    answer = ask(connection, request, Details)
    if isinstance(answer, Refused):
        return combined(result, results.refused(answer))
    return combined(result, {"success": True}, answer.facts)


def listed(
    connection: Connection, request: Call, key: str, result: Callable[..., ResultT]
) -> ResultT:
    """The public result of a request that is answered with rows, which stand under ``key``."""
    answer = ask(connection, request, Listed)
    if isinstance(answer, Refused):
        return combined(result, results.refused(answer))
    return combined(result, {"success": True, key: answer.rows})
