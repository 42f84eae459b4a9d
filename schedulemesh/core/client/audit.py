"""The call audit: the changes that were requested. HistoryCalls documents it."""

from __future__ import annotations

from schedulemesh.api.audit import MAX_LISTED, AuditRow, ChangeInfo, QueryAudit, read_changes
from schedulemesh.api.calls import check_change
from schedulemesh.core.client.asking import ask
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.results import Result, combined, refused
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.answers import Listed
from schedulemesh.protocol.times import parse_time


class AuditResult(Result, total=False):
    """The answer of ``audit``."""

    #: The newest first.
    changes: list[ChangeInfo]


def audit(connection: Connection, given: dict[str, object]) -> AuditResult:
    """The changes that match."""
    call = _name(given, "call")
    if call is not None:
        check_change(call)
    request = QueryAudit(
        token=_name(given, "token"),
        call=call,
        outcome=_name(given, "outcome"),
        since=parse_time(given["since"], "since"),
    )
    limit = parse_count(given["limit"], "limit", 1, MAX_LISTED)
    rows = read_changes(request, limit, lambda page: _page(connection, page))
    if isinstance(rows, Refused):
        return combined(AuditResult, refused(rows))
    return combined(AuditResult, {"success": True, "changes": rows})


def _page(connection: Connection, request: QueryAudit) -> list[AuditRow] | Refused:
    answer = ask(connection, request, Listed)
    return answer if isinstance(answer, Refused) else answer.rows


def _name(given: dict[str, object], field: str) -> str | None:
    return None if given[field] is None else parse_name(given[field], field)
