"""The application: which paths there are, and what checks every request."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schedulemesh.config.http import HttpSettings
from schedulemesh.errors import InvalidRequestError, SchedulerUnavailableError
from schedulemesh.protocol.answers import Details, encode_answer
from schedulemesh.protocol.requests import GetAbout, decode_request
from schedulemesh.server.gateway import Gateway
from schedulemesh.server.guard import Guard, Tokens
from schedulemesh.server.problems import (
    Problem,
    answer_failure,
    answer_problem,
    answer_unknown,
    json_response,
)

API = "/api/v1"
#: The type of requests and answers in the form in which the supervisor takes and gives them.
MSGPACK = "application/msgpack"


def application(gateway: Gateway, tokens: Tokens, settings: HttpSettings) -> Starlette:
    """The HTTP API of the scheduler behind a gateway."""
    calls = _Calls(gateway)
    return Starlette(
        routes=[
            Route("/healthz", calls.healthz, methods=["GET"]),
            Route(f"{API}/status", calls.status, methods=["GET"]),
            Route(f"{API}/requests", calls.request, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, settings=settings, tokens=tokens)],
        exception_handlers={
            Problem: answer_problem,
            HTTPException: answer_unknown,
            SchedulerUnavailableError: _unavailable,
            InvalidRequestError: _invalid,
            Exception: answer_failure,
        },
    )


class _Calls:
    """The endpoints."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def healthz(self, _request: Request) -> Response:
        """Whether this process serves; it says nothing about the supervisor."""
        return json_response({"success": True})

    async def status(self, _request: Request) -> Response:
        """The supervisor: its process, its journal, how much there is."""
        answer = await self._gateway.ask(GetAbout())
        if not isinstance(answer, Details):
            raise TypeError(f"the supervisor answered {answer!r}")
        return json_response({"success": True, **answer.facts})

    async def request(self, request: Request) -> Response:
        """Any request in its packed form, answered in packed form."""
        if request.headers.get("content-type") != MSGPACK:
            raise Problem(415, "media_type_not_supported", f"this call takes {MSGPACK}")
        answer = await self._gateway.ask(decode_request(await request.body()))
        return Response(encode_answer(answer), media_type=MSGPACK)


def _unavailable(request: Request, error: Exception) -> Response:
    problem = Problem(503, "scheduler_unavailable", str(error), {"retry-after": "1"})
    return answer_problem(request, problem)


def _invalid(request: Request, error: Exception) -> Response:
    return answer_problem(request, Problem(400, "invalid_request", str(error)))
