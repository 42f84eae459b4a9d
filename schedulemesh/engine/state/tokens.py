"""The tokens that were issued, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from schedulemesh.domain.tokens import TokenSpec
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.token_facts import TokenIssued, TokenRevoked


class Tokens(dict[str, TokenSpec]):
    """Tokens by name; those that have expired stay until they are revoked or issued again."""

    @property
    def updates(self) -> Mapping[type[Fact], Callable[..., None]]:
        """How each fact about tokens changes them."""
        return {TokenIssued: self._issued, TokenRevoked: self._revoked}

    def _issued(self, fact: TokenIssued) -> None:
        self[fact.spec.name] = fact.spec

    def _revoked(self, fact: TokenRevoked) -> None:
        del self[fact.name]
