"""The bases of all requests of clients."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.names import parse_name


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


class RequestWithBlobs(Request, frozen=True, kw_only=True):
    """Base of requests with bytes to store."""

    #: By their SHA-256.
    blobs: dict[str, bytes] = {}


class OfTask(Request, frozen=True, kw_only=True):
    """Base of requests about one task."""

    task_id: str

    def __post_init__(self) -> None:
        parse_name(self.task_id, "task_id")
