"""The call audit: the changes that were requested. HistoryCalls documents it."""

from __future__ import annotations

from schedulemesh.core.client.asking import listed
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.results import Result
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count
from schedulemesh.protocol.audit_requests import MAX_ROWS, QueryAudit
from schedulemesh.protocol.rows import ChangeInfo
from schedulemesh.protocol.times import parse_time


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
