"""Settings of authentication: whether calls over Ray need a token, and what the supervisor begins with."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.names import as_text
from schedulemesh.errors import InvalidRequestError, shown

#: The value of the argument ``auth`` with which every call needs a token.
AUTH = "token"


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor is created with. Its two secrets are in no listing, and neither is shown."""

    #: Whether calls over Ray need a token from the beginning.
    required: bool = False
    #: The SHA-256 of the secret of the operator's token that is recorded first; empty: none is.
    first_token_hash: str = ""
    #: Of the supervisor: what the keys of the scheduler's own processes are derived from (empty: it chooses);
    #: of another process: its own key.
    process_key: bytes = b""

    def __repr__(self) -> str:
        return f"AuthSettings(required={self.required!r})"


def parse_auth(value: object) -> bool:
    """Parse the argument ``auth``: whether calls over Ray need a token. Raises InvalidRequestError."""
    if value is None:
        return False
    if as_text(value) != AUTH:
        raise InvalidRequestError(
            f'auth is {shown(value)}; allowed are "{AUTH}" (every call needs a token) and None'
        )
    return True
