"""The tokens that were issued, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from schedulemesh.domain.tokens import TokenSpec
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.token_facts import (
    AuthenticationEnabled,
    TokenIssued,
    TokenRevoked,
)


class Tokens(dict[str, TokenSpec]):
    """Tokens by name; those that have expired stay until they are revoked or issued again."""

    def __init__(self) -> None:
        super().__init__()
        #: The same tokens by the hash of their secret.
        self.by_hash: dict[str, TokenSpec] = {}
        #: Whether calls over Ray need a token.
        self.required = False

    @property
    def updates(self) -> Mapping[type[Fact], Callable[..., None]]:
        """How each fact about tokens changes them."""
        return {
            TokenIssued: lambda fact: self.restore([fact.spec]),
            TokenRevoked: lambda fact: self._remove(fact.name),
            AuthenticationEnabled: self._enable,
        }

    def restore(self, specs: Iterable[TokenSpec]) -> None:
        """Add tokens, each in place of the one of its name."""
        for spec in specs:
            if spec.name in self:
                self._remove(spec.name)
            self[spec.name] = self.by_hash[spec.secret_hash] = spec

    def replace(self, specs: Iterable[TokenSpec]) -> None:
        """Have these tokens in place of all, in this order."""
        specs = list(specs)
        self.clear()
        self.by_hash.clear()
        self.restore(specs)

    def _remove(self, name: str) -> None:
        del self.by_hash[self.pop(name).secret_hash]

    def _enable(self, _fact: AuthenticationEnabled) -> None:
        self.required = True
