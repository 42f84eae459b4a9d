"""Filters, sorts and pages the rows of a listing.

Pages are cut by the values of the last row, not by its number, so that rows that come and go between two
requests make no other row appear twice or not at all.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from starlette.datastructures import QueryParams

from schedulemesh.errors import nearest
from schedulemesh.server.problems import Problem

Row = Mapping[str, Any]

DEFAULT_LIMIT, MAX_LIMIT = 100, 1_000
#: Parameters that are not fields.
CONTROLS = ("limit", "cursor", "sort", "label")

_SCALARS = (str, int, float, bool)


class Sorting(NamedTuple):
    """A field to sort by."""

    field: str
    descending: bool


class Page(NamedTuple):
    """A page of a listing."""

    items: list[Row]
    #: How many rows the filters let through.
    total: int
    #: The cursor of the next page; None: this is the last.
    following: str | None


def scalar_fields(row: type) -> dict[str, type]:
    """The fields of a row that hold one value, by which can be filtered and sorted, with its type."""
    found = {name: _scalar(hint) for name, hint in get_type_hints(row).items()}
    return {name: kind for name, kind in found.items() if kind is not None}


def _scalar(hint: object) -> type | None:
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return _scalar(kinds[0]) if len(kinds) == 1 else None
    return next((kind for kind in _SCALARS if hint is kind), None)


def page_of(rows: Sequence[Row], row: type, key: Sequence[str], query: QueryParams) -> Page:
    """The page that a query asks for. ``key``: the fields that distinguish rows, by which they are sorted
    unless the query says otherwise. Raises Problem for a parameter that is not valid.
    """
    fields = scalar_fields(row)
    limit = _limit(query)
    tests = _filters(query, row, fields)
    kept = [found for found in rows if all(test(found) for test in tests)]
    order = _order(query.get("sort", ""), fields, key)
    kept.sort(key=lambda found: _place(found, order))
    first = 0 if "cursor" not in query else _after(kept, order, _read(query["cursor"], order))
    items = kept[first : first + limit]
    more = first + limit < len(kept)
    return Page(items, len(kept), _cursor(items[-1], order) if more and items else None)


def _limit(query: QueryParams) -> int:
    given = query.get("limit", str(DEFAULT_LIMIT))
    # int() raises ValueError for thousands of digits.
    digits = given.isascii() and given.isdigit() and len(given) <= len(str(MAX_LIMIT))
    if not (digits and 1 <= int(given) <= MAX_LIMIT):
        raise _invalid(f"limit must be a whole number from 1 to {MAX_LIMIT}, not {given!r}")
    return int(given)


def _filters(
    query: QueryParams, row: type, fields: Mapping[str, type]
) -> list[Callable[[Row], bool]]:
    """What a row has to fulfil: one of the values given for each field, and each label."""
    controls = [name for name in CONTROLS if name not in fields]
    named = [name for name in dict.fromkeys(query.keys()) if name not in controls]
    labels = query.getlist("label") if "label" in controls else []
    if labels and "labels" not in get_type_hints(row):
        raise _invalid("these rows have no labels")
    tests = [_one_of(name, query.getlist(name), fields) for name in named]
    return tests + [_has_label(label) for label in labels]


def _one_of(name: str, given: Sequence[str], fields: Mapping[str, type]) -> Callable[[Row], bool]:
    if name not in fields:
        known = ", ".join((*fields, *CONTROLS))
        raise _invalid(f"there is no parameter {name!r}{nearest(name, fields)}; there are {known}")
    wanted = [_parsed(name, text, fields[name]) for text in given]
    return lambda row: row.get(name) in wanted


def _has_label(given: str) -> Callable[[Row], bool]:
    key, equals, value = given.partition("=")
    if not key:
        raise _invalid(f"label must be KEY=VALUE or KEY, not {given!r}")
    return lambda row: key in row["labels"] and (not equals or row["labels"][key] == value)


def _parsed(name: str, text: str, kind: type) -> object:
    """The value of a field that a text stands for; empty: None, which also an empty text equals."""
    if kind is str:
        return text
    try:
        if not text:
            return None
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        number = kind(text)
    except (KeyError, ValueError, OverflowError):
        raise _invalid(f"{name} is of type {kind.__name__}, which {text!r} is not") from None
    else:
        return number


def _order(given: str, fields: Mapping[str, type], key: Sequence[str]) -> list[Sorting]:
    """The fields of a sort such as ``-priority,task_id``, then those of the key."""
    order = []
    for part in filter(None, given.split(",")):
        field = part.removeprefix("-")
        if field not in fields:
            known = ", ".join(fields)
            raise _invalid(f"cannot sort by {field!r}{nearest(field, fields)}; there are {known}")
        order.append(Sorting(field, part.startswith("-")))
    named = {sorting.field for sorting in order}
    return order + [Sorting(field, descending=False) for field in key if field not in named]


class _Descending:
    """A value that is sorted from the largest to the smallest."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]  # it is only compared


def _place(row: Row, order: Sequence[Sorting]) -> list[tuple[bool, Any]]:
    """Where a row comes; those without a value come last."""
    return _compared([row.get(sorting.field) for sorting in order], order)


def _compared(values: Sequence[Any], order: Sequence[Sorting]) -> list[tuple[bool, Any]]:
    return [
        (
            value is None,
            "" if value is None else _Descending(value) if sorting.descending else value,
        )
        for value, sorting in zip(values, order, strict=True)
    ]


def _after(rows: Sequence[Row], order: Sequence[Sorting], last: Sequence[Any]) -> int:
    """How many of the sorted rows come no later than the last one of the page before."""
    place = _compared(last, order)
    low, high = 0, len(rows)
    try:
        while low < high:
            middle = (low + high) // 2
            if place < _place(rows[middle], order):
                high = middle
            else:
                low = middle + 1
    except TypeError:
        raise _bad_cursor() from None
    return low


def _cursor(row: Row, order: Sequence[Sorting]) -> str:
    said = [_spelled(order), [row.get(sorting.field) for sorting in order]]
    return base64.urlsafe_b64encode(msgspec.json.encode(said)).decode().rstrip("=")


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
