"""Errors as HTTP answers: a status, and the same fields as a refusal has in Python."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from schedulemesh.domain.language import Language, preferred_language
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import Sentence, Text
from schedulemesh.domain.tokens import Role, needs_role
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.wording import in_requests, reworded, translated

logger = logging.getLogger(__name__)

encode_json = msgspec.json.Encoder().encode

#: Those of every answer in JSON.
_JSON_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-type", b"application/json"),
]

_NOT_FOUND = {
    Reason.POOL_NOT_FOUND,
    Reason.NO_MATCHING_POOL,
    Reason.COHORT_NOT_FOUND,
    Reason.NODE_NOT_FOUND,
    Reason.WINDOW_NOT_FOUND,
    Reason.AGENT_NOT_FOUND,
    Reason.TASK_NOT_FOUND,
    Reason.STATE_NOT_FOUND,
    Reason.RESULT_EXPIRED,
    Reason.TOKEN_NOT_FOUND,
}
#: The codes of refusals that are not conflicts with what exists (409).
_STATUS: Mapping[str, int] = {
    **dict.fromkeys(_NOT_FOUND, 404),
    Reason.NOT_ALLOWED: 403,
    Reason.COMMANDS_OFF: 403,
    Reason.TOO_MANY_COMMANDS: 429,
    Reason.TOKEN_NOT_ACCEPTED: 401,
    Reason.INTERNAL_ERROR: 500,
    Reason.JOURNAL_UNAVAILABLE: 503,
    Reason.WAIT_TIMEOUT: 504,
}


#: Characters of an error. It may repeat what the client sent, and is read and reworded as a whole.
_MOST = 4_000


class Problem(Exception):
    """A request that is answered with an error, which is cut off where it is very long."""

    def __init__(
        self,
        status: int,
        reason: str,
        error: Text,
        headers: Mapping[str, str] | None = None,
        **more: object,
    ) -> None:
        if isinstance(error, Sentence):
            more["sentences"] = {"error": msgspec.to_builtins(error)}
        english = str(error)
        english = english if len(english) <= _MOST else f"{english[:_MOST]}..."
        super().__init__(english)
        self.status = status
        self.body: dict[str, object] = {
            "success": False,
            "error": english,
            "reason": reason,
            **more,
        }
        self.headers = dict(headers or {})


def unavailable(error: Exception) -> Problem:
    """The supervisor does not answer."""
    return Problem(503, "scheduler_unavailable", str(error), {"retry-after": "1"})


def beyond_role(caller: TokenCaller, least: Role) -> Problem:
    """What was asked for needs another role than that of the caller."""
    error = needs_role(caller.token.name, caller.role, least)
    return Problem(403, Reason.NOT_ALLOWED.value, error)


def status_of(reason: str) -> int:
    """The HTTP status of a refusal with this code."""
    return _STATUS.get(reason, 409)


def json_response(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Plain data as JSON. Nothing of it may be stored by browsers and proxies."""
    response = Response(encode_json(content), status, headers)
    response.raw_headers += _JSON_HEADERS
    return response


def language_of(request: Request) -> Language:
    """The language in which a client wants sentences."""
    return preferred_language(request.headers.get("accept-language", ""))


def answer_problem(request: Request, problem: Exception) -> Response:
    """The answer to a request that ended in a Problem, in the language of the request."""
    if not isinstance(problem, Problem):
        raise problem
    return json_response(
        in_language(problem.body, language_of(request)), problem.status, problem.headers
    )


def in_language(answer: Mapping[str, Any], language: Language) -> dict[str, Any]:
    """An answer whose sentences are in a language, and in the words of the HTTP API."""
    spoken = answer if language == "en" else translated(answer, language)
    return dict(reworded(spoken, in_requests))


def answer_unknown(request: Request, error: Exception) -> Response:
    """The answer where Starlette found no route, or no such method."""
    status = getattr(error, "status_code", 404)
    reason = {404: "not_found", 405: "method_not_allowed"}.get(status, "bad_request")
    what = f"{request.method} {request.url.path}"
    message = f"{what}: {getattr(error, 'detail', error)}; GET /api/v1/openapi.json lists the calls"
    problem = Problem(status, reason, message, getattr(error, "headers", None))
    return answer_problem(request, problem)


def answer_failure(request: Request, error: Exception) -> Response:
    """The answer where this process failed; its log says how."""
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return json_response(
        {
            "success": False,
            "error": "the HTTP server failed at this request; its log says where",
            "reason": Reason.INTERNAL_ERROR.value,
        },
        500,
    )
