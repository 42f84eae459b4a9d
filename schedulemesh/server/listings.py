"""Filters, sorts and pages the rows of a listing: the parameters of a query, and cursors; see ``pages``."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

import msgspec
from starlette.datastructures import QueryParams

from schedulemesh.api.pages import MAX_LIMIT, MAX_SORTED, PageQuery, Scalar, Selection
from schedulemesh.api.rows import parse_scalar, parse_word, scalar_fields
from schedulemesh.errors import InvalidRequestError, nearest
from schedulemesh.protocol.portions import PortionTurns
from schedulemesh.server.problems import Problem

Row = Mapping[str, Any]

DEFAULT_LIMIT = 100
#: Parameters that are not fields.
CONTROLS = ("limit", "cursor", "sort", "label")
#: Those that have one value.
_SINGLE = ("limit", "cursor", "sort")


class Sorting(NamedTuple):
    """A field to sort by."""

    field: str
    descending: bool


class ListingPage(NamedTuple):
    """A page of a listing."""

    items: list[Row]
    #: How many rows the filters let through.
    total: int
    #: The cursor of the next page; None: this is the last.
    following: str | None


async def page_of(
    rows: Sequence[Row],
    row: type,
    key: Sequence[str],
    query: QueryParams,
    turns: PortionTurns,
) -> ListingPage:
    """The page that a query asks for. ``key``: the fields that distinguish rows, by which they are sorted
    unless the query says otherwise. Rows are looked at in portions. Raises Problem for a parameter that is
    not valid.
    """
    page = page_query(row, key, query)
    selection = Selection[Row](page, lambda item, field: item.get(field))
    try:
        await turns.each(rows, selection.add)
    except InvalidRequestError as error:
        raise _invalid(str(error)) from None
    selected = selection.selected()
    return page_answer(selected.items, selected.total, page, more=selected.more)


def page_query(row: type, key: Sequence[str], query: QueryParams) -> PageQuery:
    """What a query asks for; see ``page_of``. Raises Problem."""
    fields = scalar_fields(row)
    _check_repeated(query)
    limit = _limit(query)
    named, labels = _filters(query, row, fields)
    order = _order(query.get("sort", ""), fields, key)
    after = _read(query["cursor"], order) if "cursor" in query else None
    return PageQuery(
        fields=named,
        labels=labels,
        order=tuple((sorting.field, sorting.descending) for sorting in order),
        after=None if after is None else tuple(after),
        limit=limit,
    )


def page_answer(items: Sequence[Row], total: int, page: PageQuery, *, more: bool) -> ListingPage:
    """The page with these rows."""
    order = [Sorting(field, descending) for field, descending in page.order]
    return ListingPage(list(items), total, _cursor(items[-1], order) if more and items else None)


def _check_repeated(query: QueryParams) -> None:
    """Raise Problem where a query gives several values of what has one."""
    for name in _SINGLE:
        count = len(query.getlist(name))
        if count > 1:
            raise _invalid(f"{name} is given {count} times; give it once")


def _limit(query: QueryParams) -> int:
    text = query.get("limit", str(DEFAULT_LIMIT))
    # int() raises ValueError for thousands of digits.
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_LIMIT))
    if not (digits and 1 <= int(text) <= MAX_LIMIT):
        raise _invalid(f"limit must be a whole number from 1 to {MAX_LIMIT}, not {text!r}")
    return int(text)


def _filters(
    query: QueryParams, row: type, fields: Mapping[str, type]
) -> tuple[tuple[tuple[str, tuple[Scalar, ...]], ...], tuple[tuple[str, str | None], ...]]:
    """What a row has to fulfil: one of the values given for each field, and each label."""
    controls = [name for name in CONTROLS if name not in fields]
    named = [name for name in dict.fromkeys(query.keys()) if name not in controls]
    labels = query.getlist("label") if "label" in controls else []
    if labels and "labels" not in get_type_hints(row):
        raise _invalid("these rows have no labels")
    return (
        tuple((name, _values(row, name, query.getlist(name), fields)) for name in named),
        tuple(_label(label) for label in labels),
    )


def _values(
    row: type, name: str, texts: Sequence[str], fields: Mapping[str, type]
) -> tuple[Scalar, ...]:
    if name not in fields:
        allowed = ", ".join((*fields, *CONTROLS))
        raise _invalid(
            f"there is no parameter {name!r}{nearest(name, fields)}; there are {allowed}"
        )
    try:
        words = [parse_word(row, name, text, name) for text in texts]
        return tuple(parse_scalar(word, fields[name], name) for word in words)
    except InvalidRequestError as error:
        raise _invalid(str(error)) from None


def _label(text: str) -> tuple[str, str | None]:
    key, equals, value = text.partition("=")
    if not key:
        raise _invalid(f"label must be KEY=VALUE or KEY, not {text!r}")
    return key, value if equals else None


def _order(sort: str, fields: Mapping[str, type], key: Sequence[str]) -> list[Sorting]:
    """The fields of a sort such as ``-priority,task_id``, then those of the key."""
    order, named = [], set[str]()
    for part in filter(None, sort.split(",")):
        field = part.removeprefix("-")
        if field not in fields:
            allowed = ", ".join(fields)
            raise _invalid(f"cannot sort by {field!r}{nearest(field, fields)}; there are {allowed}")
        if field not in named:
            order.append(Sorting(field, part.startswith("-")))
            named.add(field)
    if len(order) > MAX_SORTED:
        raise _invalid(f"sort names up to {MAX_SORTED} fields, not {len(order)}")
    return order + [Sorting(field, descending=False) for field in key if field not in named]


def _cursor(row: Row, order: Sequence[Sorting]) -> str:
    content = [_spelled(order), [row.get(sorting.field) for sorting in order]]
    return base64.urlsafe_b64encode(msgspec.json.encode(content)).decode().rstrip("=")


def _read(cursor: str, order: Sequence[Sorting]) -> list[Any]:
    """The values in a cursor. Raises Problem where it is none, or one of another sort."""
    try:
        data = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
        spelled, values = msgspec.json.decode(
            data, type=tuple[str, list[str | float | bool | None]]
        )
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        raise _bad_cursor() from None
    if spelled != _spelled(order) or len(values) != len(order):
        raise _invalid("the cursor is one of another sort; leave it out to begin anew")
    return values


def _spelled(order: Sequence[Sorting]) -> str:
    return ",".join(f"{'-' if sorting.descending else ''}{sorting.field}" for sorting in order)


def _bad_cursor() -> Problem:
    return _invalid("the cursor is not one that this listing returned as `next`")


def _invalid(error: str) -> Problem:
    return Problem(400, "invalid_request", error)
