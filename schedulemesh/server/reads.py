"""The calls that read, as they are declared with the calls: which request each makes, and its answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from schedulemesh.api.audit import PAGED_AUDIT, ListAuditPage
from schedulemesh.api.call import Call
from schedulemesh.api.calls import CALLS
from schedulemesh.api.cluster import GetAbout
from schedulemesh.api.pages import ListPage, PageQuery
from schedulemesh.api.routes import Route
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.reasons import Reason
from schedulemesh.server import schemas

#: A field in the path of a route.
IN_PATH = re.compile(r"\{(\w+)\}")


class ListingEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A call that lists rows; see ``schedulemesh.api.routes.ListRoute``."""

    path: str
    summary: str
    row: Any
    key: tuple[str, ...]
    missing: Reason | None
    paged: str
    request: Call

    def page_request(self, page: PageQuery) -> Call:
        """The request for one page of it, where it is ``paged``."""
        if self.paged == PAGED_AUDIT:
            return ListAuditPage(page=page)
        return ListPage(listing=self.paged, page=page)


class Single(msgspec.Struct, frozen=True, kw_only=True):
    """A call that reads one object."""

    path: str
    summary: str
    #: The type of the answer; None: an object whose fields the Python reference lists.
    answer: Any
    request: Callable[[Mapping[str, str]], Call]


def path_of(route: Route) -> str:
    """The path as the server matches it: names may contain slashes."""
    return IN_PATH.sub(r"{\1:name}", route.path)


def _single(call: type[Call], route: Route) -> Single:
    names = IN_PATH.findall(route.path)
    return Single(
        path=path_of(route),
        summary=route.summary,
        answer=schemas.SchedulerStatus if call is GetAbout else None,
        request=lambda path: call(**{name: parse_name(path[name], name) for name in names}),
    )


LISTINGS = tuple(
    ListingEndpoint(
        path=listing.path,
        summary=listing.summary or call.first_sentence().removesuffix("."),
        row=listing.row,
        key=listing.key,
        missing=listing.missing,
        paged=listing.paged,
        request=call(**listing.fixed),
    )
    for call in CALLS
    for listing in call.listings
)
#: Paths that another one begins with come first.
SINGLES = tuple(
    sorted(
        (_single(call, route) for call in CALLS for route in call.routes if route.method == "GET"),
        key=lambda single: single.path.endswith(":name}"),
    )
)
