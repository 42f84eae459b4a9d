"""The request for the record of changes; see ``requests``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count, parse_number
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.request_base import Request

#: The most rows that one answer has; a further request continues before the lowest ``number``.
MAX_ROWS = 500
#: The most that one call of a client lists, which makes as many requests as that takes.
MAX_LISTED = 100_000

AuditRow = dict[str, Any]


class QueryAudit(Request, tag="query_audit", frozen=True, kw_only=True):
    """List the changes that were requested, the newest first; None: not filtered."""

    #: The name of the token, and of the request.
    token: str | None = None
    call: str | None = None
    outcome: str | None = None
    #: Those at or after this time, in seconds since 1970.
    since: float | None = None
    #: Those with a lower number, to continue a list, and those with a higher number.
    before: int | None = None
    after: int = 0
    limit: int = 100

    def __post_init__(self) -> None:
        for name in ("token", "call", "outcome"):
            if (given := getattr(self, name)) is not None:
                parse_name(given, name)
        if self.since is not None:
            parse_number(self.since, "since", 0.0, 1e11)
        if self.before is not None:
            parse_count(self.before, "before", 0, 10**15)
        parse_count(self.after, "after", 0, 10**15)
        parse_count(self.limit, "limit", 1, MAX_ROWS)


def read_changes(
    request: QueryAudit, limit: int, ask: Callable[[QueryAudit], list[AuditRow] | Refused]
) -> list[AuditRow] | Refused:
    """The newest ``limit`` changes that a request is about, the newest first, read in pages; or the refusal
    of one of them.
    """
    rows: list[AuditRow] = []
    while len(rows) < limit:
        size = min(MAX_ROWS, limit - len(rows))
        page = ask(msgspec.structs.replace(request, limit=size))
        if isinstance(page, Refused):
            return page
        rows += page
        if len(page) < size:
            break
        request = msgspec.structs.replace(request, before=page[-1]["number"])
    return rows
