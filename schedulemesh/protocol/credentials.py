"""What proves who makes a call: the secret of a token, or the key of one of the scheduler's own processes."""

from __future__ import annotations

import hashlib
import hmac
import secrets

import msgspec

from schedulemesh.errors import InvalidRequestError

#: The process that serves the HTTP API.
HTTP = "http"
#: The supervisor, at its socket.
SOCKET = "socket"

#: The environment variable with the token of clients.
ENVIRONMENT_VARIABLE = "SCHEDULEMESH_TOKEN"
#: The header with the user and the host of a client of the HTTP API, which nothing proves.
CLIENT_USER_HEADER = "schedulemesh-user"

#: Characters of a secret. A shorter one could be guessed.
_LEAST, _MOST = 16, 512
#: Characters of an id of Ray; those of nodes have 56.
_MOST_OF_ID = 64
#: Characters of a user and its host.
_MOST_OF_USER = 128


class Credential(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """What a client sends with every call: its token, and where it runs, which nothing proves."""

    #: The secret of a token; empty: the client has none.
    token: str = ""
    #: Of Ray, in hex.
    job_id: str = ""
    node_id: str = ""
    pid: int = 0
    #: Of the machine, as user@host.
    user: str = ""

    @property
    def address(self) -> str:
        """Where the call comes from, as it is recorded."""
        if not self.pid:
            return ""
        process = f"ray job {_id(self.job_id)}, node {_id(self.node_id)}, pid {self.pid}"
        user = user_at_host(self.user)
        return f"{user}, {process}" if user else process

    def __repr__(self) -> str:
        return f"Credential({self.address})"


def without_token(options: str) -> str:
    """Ray options as JSON, as they are shown and recorded: without the token among the variables of their
    environment.
    """
    if ENVIRONMENT_VARIABLE not in options:
        return options
    try:
        decoded = msgspec.json.decode(options)
        variables = (decoded.get("runtime_env") or {}).get("env_vars") or {}
        if ENVIRONMENT_VARIABLE in variables:
            variables[ENVIRONMENT_VARIABLE] = "***"
    except (msgspec.DecodeError, RecursionError, AttributeError, TypeError):
        # No options of ours, so it is not known where the token is.
        return "***"
    return msgspec.json.encode(decoded).decode()


def _id(text: str) -> str:
    """An id as it is recorded: what is none neither fills the journal nor begins a line of the log."""
    return "".join(filter(str.isalnum, text[:_MOST_OF_ID]))


def user_at_host(user: str) -> str:
    """A user and its host as they are recorded: short, on one line, without what separates them there."""
    allowed = (c for c in user[:_MOST_OF_USER] if c.isalnum() or c in "@._-+")
    return "".join(allowed)


def new_secret() -> str:
    """The secret of a new token: 256 random bits."""
    return f"sm_{secrets.token_urlsafe(32)}"


def new_process_secret() -> bytes:
    """What the keys of a scheduler's own processes are derived from."""
    return secrets.token_bytes(32)


def hash_of(secret: str) -> str:
    """The hash under which a secret is recorded. A secret is too random to be guessed from it."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def parse_secret(secret: object, what: str) -> str:
    """The secret of a token, as it was given. Raises InvalidRequestError, which does not show it."""
    if not isinstance(secret, str) or not _LEAST <= len(secret) <= _MOST or not _printable(secret):
        raise InvalidRequestError(
            f"{what} is no token: one has {_LEAST} to {_MOST} ASCII characters without spaces, as "
            "`schedulemesh tokens create` prints it"
        )
    return secret


def _printable(text: str) -> bool:
    return all("!" <= character <= "~" for character in text)


def process_key(secret: bytes, *of: object) -> bytes:
    """The key of one of the scheduler's own processes, derived from the supervisor's secret."""
    return hmac.digest(secret, msgspec.msgpack.encode(of), "sha256")


def server_proof(key: str, url: str, nonce: str) -> str:
    """What the process of the HTTP API answers to a nonce, so that a client on the same machine sends its
    token to nobody else. ``key``: from the scheduler's file. ``url``: where the process itself listens, so
    that the answer is of no use to a process that listens elsewhere and passes the nonce on.
    """
    return hmac.new(key.encode(), msgspec.json.encode((url, nonce)), "sha256").hexdigest()


def is_nonce(text: str) -> bool:
    """Whether this is a nonce, as ``new_nonce`` makes it."""
    return len(text) == 64 and all(character in "0123456789abcdef" for character in text)


def new_nonce() -> str:
    """A nonce for ``server_proof``: 256 random bits in hex."""
    return secrets.token_hex(32)


def same(key: object, expected: bytes) -> bool:
    """Whether a key is the expected one; how long this takes says nothing of how much of it is right."""
    return type(key) is bytes and hmac.compare_digest(key, expected)
