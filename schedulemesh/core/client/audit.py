"""The call audit: the changes that were requested. HistoryCalls documents it."""

from __future__ import annotations

from typing_extensions import TypedDict

from schedulemesh.core.client.asking import listed
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.results import Result
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count
from schedulemesh.domain.user_data import UserValue
from schedulemesh.protocol.audit_requests import MAX_ROWS, QueryAudit
from schedulemesh.protocol.times import parse_time


class ChangeInfo(TypedDict):
    """A change that was requested."""

    number: int
    #: In seconds since 1970.
    at: float
    #: The name of the request.
    call: str
    #: The name, the role and the owner of the token that came with it; empty: it came without one.
    token: str
    role: str
    owner: str
    #: Where it came from, as the caller said.
    address: str
    #: Its fields, without bytes and secrets.
    request: dict[str, UserValue]
    #: What it was about, before and after; None: it did not exist, or is not one thing.
    before: dict[str, UserValue] | None
    after: dict[str, UserValue] | None
    #: "done", "refused", or "open": it was not answered yet, or the supervisor ended before it was.
    outcome: str
    reason: str
    error: str


class AuditResult(Result, total=False):
    """The answer of ``audit``."""

    #: The newest first.
    changes: list[ChangeInfo]


def audit(connection: Connection, given: dict[str, object]) -> AuditResult:
    """The changes that match."""
    request = QueryAudit(
        token=_name(given, "token"),
        call=_name(given, "call"),
        outcome=_name(given, "outcome"),
        since=parse_time(given["since"], "since"),
        limit=parse_count(given["limit"], "limit", 1, MAX_ROWS),
    )
    return listed(connection, request, "changes", AuditResult)


def _name(given: dict[str, object], field: str) -> str | None:
    return None if given[field] is None else parse_name(given[field], field)
