"""The bases of all requests of clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from schedulemesh.domain.names import parse_name
from schedulemesh.domain.request_ids import new_request_id
from schedulemesh.errors import InvalidRequestError

#: The most names that one request lists. Clients split what is longer; the supervisor serves others between
#: two requests, and between the portions of one.
MAX_NAMES = 1_000
#: Names, whose number is checked before they are read.
Names = Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_NAMES)]


def check_number(names: Sequence[str], what: str, most: int = MAX_NAMES) -> None:
    """Raise InvalidRequestError for more names than one request may have."""
    if len(names) > most:
        raise InvalidRequestError(
            f"{what} has {len(names):,} names; one request has up to {most:,}, so make several"
        )


class Request(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="request",
    gc=False,
):
    """Base of all requests. Creating one raises InvalidRequestError if a value is out of range."""


class Change(Request, frozen=True, kw_only=True):
    """Base of requests that change something: a repetition with the same id, as after a lost answer, changes
    nothing more.
    """

    request_id: str = msgspec.field(default_factory=new_request_id)


class RequestWithBlobs(Request, frozen=True, kw_only=True):
    """Base of requests with bytes to store."""

    #: By their SHA-256.
    blobs: dict[str, bytes] = {}


class ChangeWithBlobs(RequestWithBlobs, frozen=True, kw_only=True):
    """Base of those of them that change something."""

    request_id: str = msgspec.field(default_factory=new_request_id)


class OfTask(Request, frozen=True, kw_only=True):
    """Base of requests about one task."""

    task_id: str

    def __post_init__(self) -> None:
        parse_name(self.task_id, "task_id")
