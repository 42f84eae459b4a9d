"""Types of fields of calls whose values check themselves, at every edge by the same code."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from schedulemesh.domain.labels import Labels as PlainLabels
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.names import parse_key, parse_name
from schedulemesh.domain.numbers import (
    LATEST_S,
    MAX_COUNT,
    parse_count,
    parse_number,
    parse_priority,
    parse_timeout,
)
from schedulemesh.domain.resources import Resources, check_resources
from schedulemesh.errors import InvalidRequestError

#: The most names that one call lists. Clients split what is longer; the supervisor serves others between
#: two calls, and between the portions of one.
MAX_NAMES = 1_000


class Checked:
    """How the values of a type are checked. ``name``: what messages call them; None: as the field."""

    def __init__(self, check: Callable[[Any, str], object], name: str | None = None) -> None:
        self._check = check
        self._name = name

    def __call__(self, value: object, field: str) -> None:
        """Raise InvalidRequestError for a value that is out of range."""
        self._check(value, self._name or field)


def check_number(names: Sequence[str], what: str, most: int = MAX_NAMES) -> None:
    """Raise InvalidRequestError for more names than one call may have."""
    if len(names) > most:
        raise InvalidRequestError(
            f"{what} has {len(names):,} names; one request has up to {most:,}, so make several"
        )


def _check_names(names: Sequence[str], what: str) -> None:
    check_number(names, what)
    for name in names:
        parse_name(name, f"each of {what}")


def _check_seconds(value: object, what: str) -> None:
    parse_timeout(value, what.removesuffix("_s"))


def _check_since_1970(value: object, what: str) -> None:
    parse_number(value, f"{what} (in seconds since 1970)", 0.0, LATEST_S)


Name = Annotated[str, Checked(parse_name)]
TaskId = Annotated[str, Checked(parse_name, "task_id")]
AgentName = Annotated[str, Checked(parse_name, "the agent's name")]
PoolName = Annotated[str, Checked(parse_name, "the pool's name")]
CohortName = Annotated[str, Checked(parse_name, "the cohort's name")]
NodeId = Annotated[str, Checked(parse_name, "node_id")]
TokenName = Annotated[str, Checked(parse_name, "the token's name")]
#: Characters of this machine's name that clients are recorded under.
_HOST_CHARS = 200
#: Who asks, as host:pid.
ClientName = Annotated[str, Checked(parse_name, "the client's name")]
RequestId = Annotated[str, Checked(parse_name, "request_id")]
#: The SHA-256 of stored bytes, in hex.
Key = Annotated[str, Checked(parse_key)]
#: Names, whose number is checked before they are read.
Names = Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_NAMES), Checked(_check_names)]

Priority = Annotated[float, Checked(parse_priority)]
#: Seconds of a time limit, above 0; messages leave out the ``_s`` of the field, as callers do.
Seconds = Annotated[float, Checked(_check_seconds)]
#: Seconds since 1970.
Time = Annotated[float, Checked(_check_since_1970)]
Labels = Annotated[PlainLabels, Checked(parse_labels)]
CheckedResources = Annotated[Resources, Checked(check_resources)]


def whole_number(least: int, most: int) -> Checked:
    """The check of a whole number in this range."""
    return Checked(lambda number, what: parse_count(number, what, least, most))


#: How many are listed; a position in a list.
Count = Annotated[int, whole_number(0, MAX_COUNT)]


def client_name() -> str:
    """The name of this process, host:pid, under which the scheduler records who asks."""
    return f"{socket.gethostname()[:_HOST_CHARS]}:{os.getpid()}"
