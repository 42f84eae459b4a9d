"""Who makes a request: the holder of a token."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.tokens import Role, TokenSpec


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of a token, as the process that has checked the token tells the supervisor."""

    token: TokenSpec
    #: The address that the request came from.
    address: str = ""

    @property
    def role(self) -> Role:
        """What the caller may do."""
        return self.token.role

    @property
    def client(self) -> str:
        """How the scheduler records who asked."""
        return f"{self.token.name}@{self.address}"[:253]
