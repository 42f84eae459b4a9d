"""Tokens in a declaration: their role, limits and expiry; never their secrets.

The secret of a token that is created is written to a file that only its owner may read. That happens before
the token is issued: a token whose secret was lost would be of no use to anybody.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from schedulemesh.api.tokens import (
    ChangeToken,
    CreateToken,
    GetTokenHashes,
    ListTokens,
    RevokeToken,
)
from schedulemesh.api.values import client_name
from schedulemesh.cli.changes import noted_result
from schedulemesh.cli.command import note
from schedulemesh.cli.exits import RefusedError
from schedulemesh.cli.gateway import Gateway
from schedulemesh.cli.language import phrase
from schedulemesh.config.discovery import found as found_file
from schedulemesh.config.discovery import write_private
from schedulemesh.config.http import home_folder
from schedulemesh.domain.containers import as_elements, as_items
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import LATEST_S, parse_count, parse_number, parse_priority
from schedulemesh.domain.sentences import Text, say
from schedulemesh.domain.tokens import LOCAL, TokenSpec, parse_role
from schedulemesh.engine.lifecycle.tokens import LIMITS
from schedulemesh.errors import InvalidRequestError, NotAllowedError, shown
from schedulemesh.protocol.answers import Details, Listed, Response
from schedulemesh.protocol.credentials import ENVIRONMENT_VARIABLE, hash_of, new_secret

#: The fields of a token beside its name.
FIELDS = ("role", *LIMITS, "expires_at")

Fields = Mapping[str, Any]


def normal(fields: Fields) -> dict[str, Any]:
    """The fields of a token in plain data, with its expiry as text. Raises InvalidRequestError."""
    return {name: _PARSERS[name](value) for name, value in fields.items()}


def current(gateway: Gateway) -> dict[str, Fields]:
    """The tokens of a scheduler that were issued by somebody: without the one that it makes for its own
    machine.
    """
    rows = gateway.ask(ListTokens(), Listed).rows
    return {
        row["name"]: normal({f: row[f] for f in FIELDS}) for row in rows if row["name"] != LOCAL
    }


def own_hash(gateway: Gateway) -> str | None:
    """The hash of the secret with which this command calls the scheduler; None: it has none."""
    file = found_file(home_folder(os.environ), gateway.namespace, gateway.name)
    secret = os.environ.get(ENVIRONMENT_VARIABLE) or ("" if file is None else file.token)
    return hash_of(secret) if secret else None


@dataclass(frozen=True, kw_only=True)
class TokenPlan:
    """How the tokens of a scheduler become those that are declared."""

    #: With the secret of each.
    created: Sequence[tuple[CreateToken, str]]
    changed: Sequence[ChangeToken]
    unchanged: Sequence[str]
    revoked: Sequence[str]

    @classmethod
    def of(
        cls, gateway: Gateway, declared: Mapping[str, Fields], *, prune: bool, own_hash: str | None
    ) -> TokenPlan:
        """The changes that are needed. ``prune``: tokens that are not declared are revoked, except for the
        one with which this command calls (``own_hash``: its hash).
        """
        existing = current(gateway)
        different = {
            name: {f: value for f, value in declared[name].items() if present.get(f) != value}
            for name, present in existing.items()
            if name in declared
        }
        left_out = [name for name in existing if name not in declared] if prune else []
        return cls(
            created=[_created(n, fields) for n, fields in declared.items() if n not in existing],
            changed=[
                ChangeToken(name=name, client=client_name(), **_typed(fields))
                for name, fields in different.items()
                if fields
            ],
            unchanged=[name for name, fields in different.items() if not fields],
            revoked=[name for name in left_out if name != _name_of(gateway, own_hash)],
        )

    def folder_for(self, folder: str | None) -> Path | None:
        """The folder for secrets. Raises InvalidRequestError where one is needed and none is given."""
        if folder is None and self.created:
            names = ", ".join(repr(request.spec.name) for request, _ in self.created)
            raise InvalidRequestError(
                f"the file declares tokens that do not exist: {names}; give --secrets FOLDER, where their "
                "secrets are written, or issue them with `schedulemesh tokens create`"
            )
        return None if folder is None else Path(folder)

    def carry_out(self, gateway: Gateway, folder: Path | None) -> Iterator[tuple[str, Text]]:
        """Each token, and what became of it. Raises RefusedError at the first that is refused."""
        for request, secret in self.created:
            if folder is not None:
                yield request.spec.name, _issue(gateway, request, secret, folder)
        for change in self.changed:
            yield change.name, noted_result(gateway.ask(change, Response))
        for name in self.unchanged:
            yield name, say("result_code", code="unchanged")
        for name in self.revoked:
            gateway.ask(RevokeToken(name=name, client=client_name()), Response)
            yield name, say("result_code", code="revoked")


def _created(name: str, fields: Fields) -> tuple[CreateToken, str]:
    if "role" not in fields:
        raise InvalidRequestError(f"token {name!r} does not exist, so it needs a role")
    secret = new_secret()
    spec = TokenSpec(name=name, secret_hash=hash_of(secret), **_typed(fields))
    return CreateToken(spec=spec, client=client_name(), request_id=uuid.uuid4().hex), secret


def _issue(gateway: Gateway, request: CreateToken, secret: str, folder: Path) -> Text:
    name = request.spec.name
    try:
        path = write_private(folder, name, ".token", f"{secret}\n".encode())
    except OSError as error:
        raise InvalidRequestError(
            f"the secret of token {name!r} cannot be written: {error}"
        ) from None
    try:
        result = noted_result(gateway.ask(request, Response))
    except (RefusedError, NotAllowedError):
        # After any other error the token may have been issued, and is of use only with this file.
        path.unlink(missing_ok=True)
        raise
    note(phrase("remark_secret_in", name=name, path=str(path)))
    return result


def _name_of(gateway: Gateway, hashed: str | None) -> str | None:
    """The name of the token whose secret has this hash; None: there is none."""
    tokens = gateway.ask(GetTokenHashes(), Details).facts["tokens"]
    return next((token["name"] for token in tokens if token["secret_hash"] == hashed), None)


def _typed(fields: Fields) -> dict[str, Any]:
    """Fields as requests have them."""
    typed = dict(fields)
    if "role" in typed:
        typed["role"] = parse_role(typed["role"])
    if "pools" in typed:
        typed["pools"] = tuple(typed["pools"])
    if typed.get("evict_pools") is not None:
        typed["evict_pools"] = tuple(typed["evict_pools"])
    if "label_values" in typed:
        typed["label_values"] = {k: tuple(v) for k, v in typed["label_values"].items()}
    if "expires_at" in typed:
        typed["expires_at"] = _expiry(typed["expires_at"])
    return typed


def _pools(pools: object) -> list[str]:
    if pools is None:
        return []
    if not isinstance(pools, list):
        raise InvalidRequestError(f"pools must be a list of names, not {shown(pools)}")
    return [parse_name(name, "the pool's name") for name in pools]


def _label_values(value: object) -> dict[str, list[str]]:
    expected = "a mapping of keys to lists of values"
    label_values: dict[str, list[str]] = {}
    for key, values in as_items({} if value is None else value, "label_values", expected):
        name = parse_name(key, "each key of label_values")
        what = f"label_values[{name!r}]"
        label_values[name] = [
            parse_name(value, f"each of {what}") for value in as_elements(values, what, "a list")
        ]
    return label_values


def _expiry(expires_at: object) -> float | None:
    """Seconds since 1970 of a time in a file, which is in UTC unless it has an offset; None: never. Raises
    InvalidRequestError.
    """
    if expires_at is None:
        return None
    if isinstance(expires_at, (int, float)):
        return parse_number(expires_at, "expires_at", 0.0, LATEST_S)
    try:
        text = expires_at.isoformat() if isinstance(expires_at, date) else str(expires_at)
        at = datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)
        seconds = (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
        return parse_number(seconds, "expires_at", 0.0, LATEST_S)
    except (ValueError, OverflowError):
        raise InvalidRequestError(
            f"expires_at is {shown(expires_at)}; allowed are seconds since 1970, a date and time such as "
            "2027-01-31T12:00:00Z, and null for never"
        ) from None


def _text(seconds: float | None) -> str | None:
    """A time to the second, as it is in a file."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


_PARSERS: Mapping[str, Callable[[object], object]] = {
    "role": lambda value: parse_role(value).value,
    "pools": _pools,
    "max_priority": lambda value: None if value is None else parse_priority(value, "max_priority"),
    "evict_pools": lambda value: None if value is None else _pools(value),
    "label_values": _label_values,
    "least_max_preemptions": lambda value: (
        None if value is None else parse_count(value, "least_max_preemptions")
    ),
    "owner": lambda value: "" if value in (None, "") else parse_name(value, "owner"),
    "expires_at": lambda value: _text(_expiry(value)),
}
