"""Facts about tokens; see ``facts``."""

from __future__ import annotations

from schedulemesh.domain.tokens import TokenSpec
from schedulemesh.engine.messages.fact import Fact


class TokenIssued(Fact, tag="token_issued", frozen=True, kw_only=True):
    """The token is accepted; it replaces an earlier one of its name, whose secret is accepted no more."""

    spec: TokenSpec


class TokenRevoked(Fact, tag="token_revoked", frozen=True, kw_only=True):
    """The token is accepted no more."""

    name: str
    at: float
    client: str
