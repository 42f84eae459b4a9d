"""Pages of listings: which rows, in which order, after which one; cut where the rows are made.

Pages are cut by the values of the last row, not by its number, so that rows that come and go between two
requests make no other row appear twice or not at all.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec

from schedulemesh.api.call import Call
from schedulemesh.api.values import MAX_NAMES
from schedulemesh.errors import InvalidRequestError

#: The most rows of a page.
MAX_LIMIT = 1_000
#: The most fields that a caller names to sort by, and to choose rows by; and the most of an order, which has
#: those after them that distinguish rows.
MAX_SORTED, MAX_FILTERED = 4, 100
MAX_ORDER = MAX_SORTED + 4
#: The listings of which the supervisor makes the rows of one page only.
PAGED = ("tasks", "queue", "agents", "jobs", "preemptions", "saved_states")

Scalar = str | float | bool | None
_SCALARS = (str, float, int, bool, type(None))
Item = TypeVar("Item")
#: What items are sorted by.
SortKey = tuple[Any, ...]
#: The value of a field of an item.
Get = Callable[[Item, str], Any]

_Few = msgspec.Meta(max_length=MAX_NAMES)


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which page of a listing."""

    #: One of these values for each field.
    fields: Annotated[
        tuple[tuple[str, Annotated[tuple[Scalar, ...], _Few]], ...],
        msgspec.Meta(max_length=MAX_FILTERED),
    ] = ()
    #: Each of these labels, with this value; None: with any.
    labels: Annotated[tuple[tuple[str, str | None], ...], _Few] = ()
    #: The fields to sort by, and whether from the largest to the smallest.
    order: Annotated[tuple[tuple[str, bool], ...], msgspec.Meta(max_length=MAX_ORDER)]
    #: The values of ``order`` of the last row of the page before; None: it is the first page.
    after: Annotated[tuple[Scalar, ...], _Few] | None = None
    limit: int = 100

    def values_of(self, field: str) -> frozenset[Scalar] | None:
        """The values of which a field has to have one; None: it may have any."""
        return _values_by_field(self.fields).get(field)

    def is_filtered_by_others_than(self, *fields: str) -> bool:
        """Whether rows have to have labels, or certain values in other fields than these."""
        return bool(self.labels) or any(field not in fields for field, _ in self.fields)


class ListPage(Call, tag="list_page", frozen=True, kw_only=True):
    """List one page of the tasks, of those that wait in the queue, or of another of ``PAGED``."""

    #: One of ``PAGED``.
    listing: str
    page: PageQuery

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.listing not in PAGED:
            raise InvalidRequestError(
                f"listing is {self.listing!r}; allowed are {', '.join(PAGED)}"
            )
        check_page(self.page)


def check_page(page: PageQuery) -> None:
    """Raise InvalidRequestError for what cannot be a page."""
    if (values := sum(len(of_field) for _, of_field in page.fields)) > MAX_NAMES:
        raise InvalidRequestError(
            f"a page is chosen by up to {MAX_NAMES:,} values of all fields together, not {values:,}"
        )
    if not 1 <= page.limit <= MAX_LIMIT:
        raise InvalidRequestError(f"a page has 1 to {MAX_LIMIT:,} rows, not {page.limit}")
    if page.after is not None and len(page.after) != len(page.order):
        raise InvalidRequestError("the cursor is one of another sort")


class Selected(NamedTuple):
    """The items of a page."""

    items: list[Any]
    #: How many the filters let through.
    total: int
    #: Whether others follow.
    more: bool


class Selection(Generic[Item]):
    """Chooses the items of a page from all, which come in portions. The work for each item grows with the
    logarithm of the page's length only, so that none of it is left for the end.

    Raises InvalidRequestError where the values of the cursor are of another kind than those of the items.
    """

    def __init__(self, query: PageQuery, get: Get[Item]) -> None:
        self._query, self._get = query, get
        #: The values of which one is let through, by field.
        self._values = _values_by_field(query.fields)
        self._after = None if query.after is None else _sort_key(query.after, query.order)
        #: The first items of those that come after the cursor, with their keys and in their order: those of
        #: the page, and one that shows whether others follow.
        self._first: list[tuple[SortKey, Item]] = []
        self._total = 0

    def add(self, items: Iterable[Item]) -> None:
        """Look at a portion."""
        try:
            for item in items:
                if self._passes(item):
                    self._total += 1
                    self._place(item)
        except TypeError:
            raise foreign_cursor() from None

    def selected(self) -> Selected:
        """The items of the page, once all were looked at."""
        items = [item for _, item in self._first]
        limit = self._query.limit
        return Selected(items[:limit], self._total, len(items) > limit)

    def _place(self, item: Item) -> None:
        """Put an item where it comes among the first, unless it comes after all of them."""
        order, get, first = self._query.order, self._get, self._first
        key = _sort_key([get(item, field) for field, _ in order], order)
        if self._after is not None and not self._after < key:
            return
        if len(first) <= self._query.limit:
            insort(first, (key, item), key=itemgetter(0))
        elif key < first[-1][0]:
            first.pop()
            insort(first, (key, item), key=itemgetter(0))

    def _passes(self, item: Item) -> bool:
        get = self._get
        for field, values in self._values.items():
            value = get(item, field)
            if not isinstance(value, _SCALARS) or value not in values:
                return False
        if not self._query.labels:
            return True
        labels: Mapping[str, str] = get(item, "labels")
        return all(
            key in labels and value in (None, labels[key]) for key, value in self._query.labels
        )


def foreign_cursor() -> InvalidRequestError:
    """The error for a cursor whose values no row of the listing can have."""
    return InvalidRequestError("the cursor is not one that this listing returned as `next`")


def _values_by_field(
    fields: Iterable[tuple[str, tuple[Scalar, ...]]],
) -> dict[str, frozenset[Scalar]]:
    """The values that a field may have, where it is named several times those of each."""
    values: dict[str, frozenset[Scalar]] = {}
    for field, of_field in fields:
        values[field] = values.get(field, frozenset(of_field)).intersection(of_field)
    return values


class _Descending:
    """A text that is sorted from the last to the first."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, _Descending):
            return NotImplemented  # a number, where a cursor has a text: not comparable
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]  # it is only compared


def _sort_key(values: Sequence[Any], order: Sequence[tuple[str, bool]]) -> SortKey:
    """Where an item with these values comes: of each value whether it is missing, because such items come
    last, and what it is compared by.
    """
    key: list[Any] = []
    for value, (_, descending) in zip(values, order, strict=True):
        key.append(value is None)
        key.append(_reversed(value) if descending and value is not None else value)
    return tuple(key)


def _reversed(value: Any) -> Any:
    """What is in the opposite order as a value."""
    return -value if isinstance(value, float | int) else _Descending(value)
