"""Sends one call to the supervisor and returns its answer, or the public dict made from it."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, Union, cast

from msgspec.structs import replace

from schedulemesh.api.call import Call
from schedulemesh.api.results import Result
from schedulemesh.api.values import MAX_NAMES
from schedulemesh.client.results import ResultT, combined
from schedulemesh.domain.reasons import SHORTAGES
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.answers import AnswerT, Details, Listed, Response, decode_answer
from schedulemesh.protocol.public import refused, result_of
from schedulemesh.protocol.requests import encode_request

logger = logging.getLogger(__name__)

CallT = TypeVar("CallT", bound=Call)
#: Object references that are sent beside a call: those that are whole arguments, and those nested in other
#: values.
References = tuple[list[Any], list[Any]]
#: What the supervisor answers: bytes, with the Ray handles that belong to them where there are any.
RawAnswer = Union[bytes, tuple[bytes, list[Any]]]


class SchedulerConnection(Protocol):
    """The way of a scheduler object to its supervisor; threads may share it."""

    @property
    def name(self) -> str:
        """The scheduler's name."""

    def call(self, method: str, data: bytes, references: References, /, *, what: str) -> RawAnswer:
        """The answer of the supervisor's ``method`` to an encoded call. ``what``: the name that decides how
        long the answer may take.

        Raises SchedulerUnavailableError where the supervisor is gone or silent, and InvalidRequestError for
        references that the connection cannot send, and once it has been left.
        """

    def leave(self) -> None:
        """Use the scheduler no more, and let it run."""

    def described(self) -> str:
        """What ``repr`` shows of a scheduler object; nothing is asked of the supervisor."""

    def description(self) -> dict[str, object]:
        """The same by name, with the state of the connection."""


def ask(
    connection: SchedulerConnection, request: Call, expected: type[AnswerT]
) -> AnswerT | Refused:
    """The answer of the expected type, or the refusal.

    Raises InvalidRequestError where the supervisor finds the request malformed, and
    SchedulerUnavailableError where it does not answer.
    """
    return ask_with_handles(connection, request, expected)[0]


def ask_with_handles(
    connection: SchedulerConnection,
    request: Call,
    expected: type[AnswerT],
    references: References | None = None,
    what: str | None = None,
) -> tuple[AnswerT | Refused, list[Any]]:
    """As ``ask``, with the Ray handles that were sent beside the answer.

    ``what``: the name that decides how long the answer may take; None: the request's.
    """
    tag = str(type(request).__struct_config__.tag)
    beside = ([], []) if references is None else references
    answer = connection.call("ask", encode_request(request), beside, what=what or tag)
    data, handles = answer if isinstance(answer, tuple) else (answer, [])
    with no_garbage_collection():
        return decode_answer(data, expected), handles


def respond(connection: SchedulerConnection, request: Call) -> Response:
    """The response to a request that ends in an outcome; a refusal is an outcome like any other."""
    answer = ask(connection, request, Response)
    return Response(outcome=answer) if isinstance(answer, Refused) else answer


def done(connection: SchedulerConnection, request: Call) -> Result:
    """The public result of a request whose outcome says nothing more than that it was carried out."""
    return result_of(respond(connection, request).outcome)


def details(
    connection: SchedulerConnection, request: Call, result: Callable[..., ResultT]
) -> ResultT:
    """The public result of a request that is answered with plain data by name."""
    answer = ask(connection, request, Details)
    if isinstance(answer, Refused):
        return combined(result, refused(answer))
    return combined(result, {"success": True}, answer.facts)


def listed(
    connection: SchedulerConnection, request: Call, key: str, result: Callable[..., ResultT]
) -> ResultT:
    """The public result of a request that is answered with rows, which stand under ``key``."""
    return listed_all(connection, [request], key, result)


def listed_all(
    connection: SchedulerConnection,
    requests: Iterable[Call],
    key: str,
    result: Callable[..., ResultT],
) -> ResultT:
    """As ``listed``, with the rows of several requests."""
    rows: list[Mapping[str, object]] = []
    for request in requests:
        answer = ask(connection, request, Listed)
        if isinstance(answer, Refused):
            return combined(result, refused(answer))
        rows += answer.rows
    return combined(result, {"success": True, key: rows})


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Within, no cyclic garbage is looked for: where very many values are made, Python looks through all of
    the process again and again meanwhile, which takes longer than making them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def with_ids(request: CallT, field: str, ids: Sequence[str] | None) -> list[CallT]:
    """A request that lists what has these ids (None: everything), as several where they are many."""
    if ids is None:
        return [request]
    return [
        replace(request, **{field: tuple(ids[first : first + MAX_NAMES])})
        for first in range(0, max(1, len(ids)), MAX_NAMES)
    ]


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
