"""The ways to make a call over HTTP, as they are declared with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from schedulemesh.api.tables import Table
from schedulemesh.domain.reasons import Reason


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A way to make a call over HTTP; the fields that are neither in the path nor fixed are its body."""

    method: str
    #: Below the prefix of the API, with fields of the call in braces.
    path: str
    summary: str
    #: Fields that the method and the path stand for, with their values.
    fixed: Mapping[str, object]
    #: The names that fields have in the body, by those in the call, where they differ.
    renamed: Mapping[str, str]


class ListRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A list of rows over HTTP, filtered, sorted and in pages."""

    path: str
    #: The type of a row.
    row: Any
    #: The fields that distinguish rows, by which they are sorted unless the caller says otherwise.
    key: tuple[str, ...]
    #: Empty: the first sentence of what the call says of itself.
    summary: str = ""
    #: The code of the error where a row is asked for that does not exist; None: single rows are not offered.
    missing: Reason | None = None
    #: The name under which the supervisor makes the rows of one page only; empty: it makes all rows.
    paged: str = ""
    #: Fields that the path stands for, with their values.
    fixed: Mapping[str, Any] = msgspec.field(default_factory=dict)
    #: The command that prints it; None: there is none, or it has a function of its own in ``cli``.
    table: Table | None = None


def get(path: str, summary: str) -> Route:
    """A GET of one object; the fields of the call are in the path."""
    return Route(method="GET", path=path, summary=summary, fixed={}, renamed={})


def put(
    path: str, summary: str, renamed: Mapping[str, str] | None = None, **fixed: object
) -> Route:
    """A PUT: afterwards it is so, however often it is made. ``fixed``: see ``Route``."""
    return Route(method="PUT", path=path, summary=summary, fixed=fixed, renamed=renamed or {})


def post(
    path: str, summary: str, renamed: Mapping[str, str] | None = None, **fixed: object
) -> Route:
    """A POST."""
    return Route(method="POST", path=path, summary=summary, fixed=fixed, renamed=renamed or {})


def patch(path: str, summary: str) -> Route:
    """A PATCH: what the body leaves out stays as it is."""
    return Route(method="PATCH", path=path, summary=summary, fixed={}, renamed={})


def delete(path: str, summary: str, **fixed: object) -> Route:
    """A DELETE."""
    return Route(method="DELETE", path=path, summary=summary, fixed=fixed, renamed={})
