"""The record of changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypedDict, cast

import msgspec

from schedulemesh.api.call import Call
from schedulemesh.api.pages import PageQuery, check_page
from schedulemesh.api.routes import ListRoute
from schedulemesh.api.rows import NameOf, OneOf
from schedulemesh.api.values import Checked, Name, Time, whole_number
from schedulemesh.domain.audit import DONE, OPEN, REFUSED
from schedulemesh.domain.tokens import Role
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError, nearest, shown

#: The most rows that one answer has; a further request continues before the lowest ``number``.
MAX_ROWS = 500
#: The most that one call of a client lists, which makes as many requests as that takes; and of which a page
#: is chosen, the newest ones.
MAX_LISTED = 100_000
#: The name of the listing of which the supervisor makes one page only; see ``ListAuditPage``.
PAGED_AUDIT = "audit"


def _check_outcome(value: Any, what: str) -> None:
    allowed = (DONE, REFUSED, OPEN)
    if value not in allowed:
        raise InvalidRequestError(
            f"{what} is {shown(value)}{nearest(str(value), allowed)}; allowed are {', '.join(allowed)}"
        )


#: The number of a change.
Cursor = Annotated[int, whole_number(0, 10**15)]


class ChangeInfo(TypedDict):
    """A change that was requested."""

    number: int
    #: In seconds since 1970.
    at: float
    #: The name of the request.
    call: str
    #: The name, the role and the owner of the token that came with it; empty: it came without one.
    token: str
    role: Annotated[str, OneOf.codes(Role)]
    owner: Annotated[str, NameOf.OWNER]
    #: Who requested it, for people: the token's name; or the user and host where it came without one, or with
    #: the token ``local``, which every process of the user has that started the scheduler.
    who: str
    #: Whether a token or the system of the machine says so, not only the process that asked.
    who_verified: bool
    #: Where it came from, as the caller said.
    address: str
    #: The user of the process that asked, as user@host; empty: not known.
    user: str
    #: Its fields, without bytes and secrets.
    request: dict[str, Any]
    #: What it was about, before and after; None: it did not exist, or is not one thing.
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    #: "done", "refused", or "open": it was not answered yet, or the supervisor ended before it was.
    outcome: Annotated[str, OneOf(DONE, REFUSED, OPEN)]
    reason: str
    error: str


class QueryAudit(Call, tag="query_audit", frozen=True, kw_only=True):
    """List the changes that were requested, the newest first; None: not filtered."""

    listings: ClassVar = (
        ListRoute(
            path="/audit",
            summary="List the changes that were requested: by whom, from where, before and after",
            row=ChangeInfo,
            key=("number",),
            paged=PAGED_AUDIT,
        ),
    )

    least_role: ClassVar[Role] = Role.OPERATOR

    #: The name of the token, and of the call.
    token: Name | None = None
    call: Name | None = None
    outcome: Annotated[str, Checked(_check_outcome)] | None = None
    #: Those at or after this time, in seconds since 1970.
    since: Time | None = None
    #: Those with a lower number, to continue a list, and those with a higher number.
    before: Cursor | None = None
    after: Cursor = 0
    limit: Annotated[int, whole_number(1, MAX_ROWS)] = 100


class ListAuditPage(Call, tag="list_audit_page", frozen=True, kw_only=True):
    """List one page of the changes that were requested; see ``ListPage``, which viewers may make."""

    least_role: ClassVar[Role] = Role.OPERATOR

    page: PageQuery

    def __post_init__(self) -> None:
        super().__post_init__()
        check_page(self.page)


def read_changes(
    request: QueryAudit, limit: int, ask: Callable[[QueryAudit], list[dict[str, Any]] | Refused]
) -> list[ChangeInfo] | Refused:
    """The newest ``limit`` changes that a request is about, the newest first, read in pages; or the refusal
    of one of them.
    """
    rows: list[ChangeInfo] = []
    while len(rows) < limit:
        size = min(MAX_ROWS, limit - len(rows))
        page = ask(msgspec.structs.replace(request, limit=size))
        if isinstance(page, Refused):
            return page
        rows += cast("list[ChangeInfo]", page)
        if len(page) < size:
            break
        request = msgspec.structs.replace(request, before=page[-1]["number"])
    return rows
