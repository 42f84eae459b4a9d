"""Sends one request to the supervisor and opens its answer."""

from __future__ import annotations

from typing import Any

from schedulemesh.core.client.connection import Connection
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.answers import AnswerT, decode_answer
from schedulemesh.protocol.requests import AnyRequest, encode_request


def ask(connection: Connection, request: AnyRequest, expected: type[AnswerT]) -> AnswerT | Refused:
    """The answer of the expected kind, or why the request was turned down."""
    return ask_with_handles(connection, request, expected)[0]


def ask_with_handles(
    connection: Connection,
    request: AnyRequest,
    expected: type[AnswerT],
    refs: tuple[list[Any], list[Any]] | None = None,
) -> tuple[AnswerT | Refused, list[Any]]:
    """As ``ask``, with the Ray handles that came beside the answer; ``refs`` are object references that go
    along: whole arguments, and those within others.
    """
    beside = () if refs is None or not any(refs) else (refs,)
    tag = str(type(request).__struct_config__.tag)
    found = connection.call("ask", encode_request(request), *beside, what=tag)
    data, handles = found if isinstance(found, tuple) else (found, [])
    return decode_answer(data, expected), handles
