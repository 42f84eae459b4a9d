"""Requests about tokens; see ``requests``. Only hashes of secrets are sent."""

from __future__ import annotations

from typing import Union

from schedulemesh.domain.names import parse_key, parse_name
from schedulemesh.domain.tokens import TokenSpec, check_token, parse_lifetime
from schedulemesh.protocol.request_base import Request


class CreateToken(Request, tag="create_token", frozen=True, kw_only=True):
    """Issue a token; refused where one of its name is valid."""

    spec: TokenSpec
    #: Seconds after which it expires; None: it does not.
    lifetime_s: float | None = None
    #: Who asks.
    client: str
    request_id: str

    def __post_init__(self) -> None:
        check_token(self.spec)
        parse_lifetime(self.lifetime_s)
        parse_name(self.client, "the client's name")
        parse_name(self.request_id, "request_id")


class RotateToken(Request, tag="rotate_token", frozen=True, kw_only=True):
    """Give a token another secret; the former one is accepted no more."""

    name: str
    secret_hash: str
    #: Seconds after which it expires; None: it does not.
    lifetime_s: float | None = None
    client: str
    request_id: str

    def __post_init__(self) -> None:
        parse_name(self.name, "the token's name")
        parse_key(self.secret_hash, "the hash of the token's secret")
        parse_lifetime(self.lifetime_s)
        parse_name(self.client, "the client's name")
        parse_name(self.request_id, "request_id")


class RevokeToken(Request, tag="revoke_token", frozen=True, kw_only=True):
    """Accept a token no more."""

    name: str
    client: str

    def __post_init__(self) -> None:
        parse_name(self.name, "the token's name")
        parse_name(self.client, "the client's name")


class ListTokens(Request, tag="list_tokens", frozen=True, kw_only=True):
    """List the tokens, without anything of their secrets."""


class GetTokenHashes(Request, tag="get_token_hashes", frozen=True, kw_only=True):
    """Get the valid tokens with the hashes of their secrets, for the process that checks them."""


AnyTokenChange = Union[CreateToken, RotateToken, RevokeToken]
AnyTokenQuery = Union[ListTokens, GetTokenHashes]
