"""Facts about tokens; see ``facts``."""

from __future__ import annotations

from typing import Union

from schedulemesh.domain.tokens import TokenSpec
from schedulemesh.engine.messages.fact import Fact


class TokenIssued(Fact, tag="token_issued", frozen=True, kw_only=True):
    """The token is accepted as it is here; it replaces an earlier one of its name, whose secret is accepted
    no more, unless it is the same.
    """

    spec: TokenSpec


class TokenRevoked(Fact, tag="token_revoked", frozen=True, kw_only=True):
    """The token is accepted no more."""

    name: str
    at: float
    client: str


class AuthenticationEnabled(Fact, tag="authentication_enabled", frozen=True, kw_only=True):
    """Calls over Ray need a token from now on."""

    at: float


AnyTokenFact = Union[TokenIssued, TokenRevoked, AuthenticationEnabled]
