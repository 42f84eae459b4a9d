"""Who makes a request: the holder of a token; and requests that name nobody else as their author."""

from __future__ import annotations

from hashlib import sha256
from typing import TypeVar

import msgspec

from schedulemesh.domain.names import MAX_CHARS
from schedulemesh.domain.request_ids import bound_id
from schedulemesh.domain.tokens import Role, TokenSpec


class RequestSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request came from, for the record: nothing that is allowed depends on it."""

    #: The address, or the process as it describes itself.
    address: str = ""
    #: The user of the process that asked, as user@host; empty: not known.
    user: str = ""
    #: Whether the system has said who the user is, not only the process itself.
    user_verified: bool = False


#: A request that came from nowhere.
NO_SOURCE = RequestSource()


class TokenCaller(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of a token, as the process that has checked the token tells the supervisor."""

    token: TokenSpec
    #: See RequestSource.
    address: str = ""
    user: str = ""
    user_verified: bool = False

    @property
    def source(self) -> RequestSource:
        """Where its request came from."""
        return RequestSource(address=self.address, user=self.user, user_verified=self.user_verified)

    @property
    def role(self) -> Role:
        """What the caller may do."""
        return self.token.role

    @property
    def client(self) -> str:
        """How the scheduler records who asked."""
        return f"{self.token.name}@{self.address}"[:MAX_CHARS]


#: A request, or a part of one that a client makes.
Made = TypeVar("Made", bound=msgspec.Struct)


def bound(made: Made, caller: TokenCaller) -> Made:
    """What a caller made, with its ids bound to the token: ``client`` becomes ``token/client``, so that
    nobody uses quota that is held for the client of another token, and nobody gets the answer to a request
    of another token by repeating its ``request_id``.
    """
    changes: dict[str, object] = {}
    client, request_id = getattr(made, "client", None), getattr(made, "request_id", None)
    if isinstance(client, str) and client != caller.client:
        changes["client"] = _client(caller.token.name, client)
    if isinstance(request_id, str):
        changes["request_id"] = bound_id(caller.token.name, request_id)
    if isinstance(submission := getattr(made, "submission", None), msgspec.Struct):
        changes["submission"] = bound(submission, caller)
    if submissions := getattr(made, "submissions", None):
        changes["submissions"] = tuple(bound(one, caller) for one in submissions)
    return msgspec.structs.replace(made, **changes) if changes else made


def _client(token: str, client: str) -> str:
    """The name of a token's client: only what comes before its last slash is the token's name."""
    named = f"{token}/{client.replace('/', '|')}"
    return named if len(named) <= MAX_CHARS else _hashed(token, client)


def _hashed(token: str, text: str) -> str:
    return sha256(msgspec.json.encode((token, text))).hexdigest()
