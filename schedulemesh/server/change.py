"""A call that changes something: its method and path, and the request that it makes of what a caller gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from schedulemesh.api.call import Call
from schedulemesh.domain.names import parse_name
from schedulemesh.protocol.job_command import JobCommand, Sent
from schedulemesh.protocol.submissions import RunnerCode
from schedulemesh.server import bodies, schemas


class ReceivedChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller gave."""

    path: Mapping[str, str]
    #: Of the type that the call declares.
    body: Any
    #: Who asks, as the scheduler records it.
    client: str
    #: The owner of tasks for which none is given.
    owner: str
    #: Packs the runner of a job; see Gateway.
    packed_runner: Callable[[JobCommand, Sent], RunnerCode]
    #: The hash of a secret that is made for this request, if it issues a token.
    secret_hash: str
    #: The header Idempotency-Key, or a new one.
    request_id: str

    def name(self, key: str) -> str:
        """A name in the path. Raises InvalidRequestError."""
        return parse_name(self.path[key], key)


class ChangeRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A call that changes something, or that needs a body."""

    method: str
    path: str
    summary: str
    body: Any = bodies.Nothing
    #: The type of the answer; None: an object whose fields the Python reference lists.
    answer: Any = schemas.ChangeDone
    #: The class of the request, which decides who may make it.
    asks: type[Call]
    #: Whether the answer has the secret of the token that it issues, as ``token``.
    reveals: bool = False
    #: Whether body and answer may also be in the packed form, in which archives take no more than their size.
    packed: bool = False
    request: Callable[[ReceivedChange], Call]
