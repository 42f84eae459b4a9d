"""The request for the record of changes; see ``requests``."""

from __future__ import annotations

from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count, parse_number
from schedulemesh.protocol.request_base import Request

#: The most rows that one answer has; a further request continues before the lowest ``number``.
MAX_ROWS = 20_000


class QueryAudit(Request, tag="query_audit", frozen=True, kw_only=True):
    """List the changes that were requested, the newest first; None: not filtered."""

    #: The name of the token, and of the request.
    token: str | None = None
    call: str | None = None
    outcome: str | None = None
    #: Those at or after this time, in seconds since 1970.
    since: float | None = None
    #: Those with a lower number, to continue a list.
    before: int | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        for name in ("token", "call", "outcome"):
            if (given := getattr(self, name)) is not None:
                parse_name(given, name)
        if self.since is not None:
            parse_number(self.since, "since", 0.0, 1e11)
        if self.before is not None:
            parse_count(self.before, "before", 0, 10**15)
        parse_count(self.limit, "limit", 1, MAX_ROWS)
