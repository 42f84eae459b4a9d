"""Chooses rows: filters and sorting, and what is refused because no row could ever answer it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_type_hints

from schedulemesh.api.rows import NameOf, named_by, parse_scalar, parse_word, scalar_fields
from schedulemesh.cli.command import Select
from schedulemesh.cli.language import phrase
from schedulemesh.cli.rows import Column, Listing, Row, value_at
from schedulemesh.cli.texts import text
from schedulemesh.errors import InvalidRequestError, nearest

if TYPE_CHECKING:
    from schedulemesh.api.call import Call
    from schedulemesh.cli.gateway import Gateway

    CallT = TypeVar("CallT", bound=Call)

#: What a column names that is made of several fields, by its heading.
_KINDS = {kind.value: kind for kind in NameOf}
#: Names that an error lists.
_LISTED = 10


class _Filter(NamedTuple):
    """A filter of a listing's rows."""

    #: As the user writes the field, and where it is in the rows.
    word: str
    key: str
    #: The column that shows it; None: none does.
    column: Column | None
    value: str
    equal: bool

    def matches(self, row: Row) -> bool:
        """Whether a row has the value, as it is or as the table shows it."""
        if _matches(value_at(row, self.key), self.value):
            return True
        return self.column is not None and self.column.cell(row) == self.value


def selected(listing: Listing, select: Select) -> Listing:
    """The rows that the filters choose. Raises InvalidRequestError for a filter that no row can answer."""
    rows = list(listing.rows)
    for one in _filters(listing, select):
        if not any(map(one.matches, listing.rows)):
            _check_value(listing, one)
        rows = [row for row in rows if one.matches(row) == one.equal]
    for label in select.labels or ():
        key, value, equal = _parts(label, "-l")
        rows = [row for row in rows if ((row.get("labels") or {}).get(key) == value) == equal]
    if select.sort is not None:
        at = _key_of(listing, select.sort.removeprefix("-"))
        rows.sort(key=lambda row: _place(value_at(row, at)), reverse=select.sort.startswith("-"))
    return replace(listing, rows=rows)


def listed(
    gateway: Gateway,
    request: Call,
    listing: Callable[[list[dict[str, Any]]], Listing],
    select: Select,
    field: str = "task_ids",
) -> Listing:
    """The rows that a request lists; where a filter names an id, those with this id only. ``field``: that of
    the request that takes the ids, of which a row has one.
    """
    from schedulemesh.protocol.answers import Listed

    request = narrowed(request, listing([]), select, field)
    return listing(gateway.ask(request, Listed).rows)


def narrowed(request: CallT, listing: Listing, select: Select, field: str = "task_ids") -> CallT:
    """The request for the rows with the id that a filter names, where there is one. ``listing``: one without
    rows; ``field``: see ``listed``.
    """
    from msgspec.structs import replace

    key = field.removesuffix("s")
    filters = _filters(listing, select)
    ids = [one.value for one in filters if one.key == key and one.equal and one.value]
    return replace(request, **{field: tuple(ids[:1])}) if ids else request


def chosen(gateway: Gateway, listing: Listing, select: Select) -> Listing:
    """The rows that the filters choose, with remarks about names that the scheduler does not know.

    Raises InvalidRequestError and RefusedError for a filter that no row can answer.
    """
    names: list[tuple[NameOf, str]] = []
    words = []
    for one in _filters(listing, select):
        kind = None if listing.row is None else named_by(listing.row, one.key)
        kind = kind or _KINDS.get(one.key)
        word, value = one.word, one.value
        if kind is not None and value and not any(map(one.matches, listing.rows)):
            value = node_id(gateway, value) if kind is NameOf.NODE else value
            names.append((kind, value))
            # Rows of nodes have an id beside the name by which they were asked for.
            is_id = value != one.value and not one.key.endswith("node_id")
            word = "node_id" if is_id else word
        words.append(f"{word}{'' if one.equal else '!'}={value}")
    shown = selected(listing, replace(select, filters=words))
    return replace(shown, notes=(*shown.notes, *unknown_names(gateway, names)))


def node_id(gateway: Gateway, name: str) -> str:
    """The id of the node that a host name, an address or the beginning of an id means; else the name."""
    from schedulemesh.api.nodes import ListNodeNames
    from schedulemesh.domain.node_names import nodes_named
    from schedulemesh.protocol.answers import Listed

    rows = gateway.ask(ListNodeNames(), Listed).rows
    named = nodes_named(name, {row["node_id"]: (row["host"], row["address"]) for row in rows})
    return named[0] if len(named) == 1 else name


def unknown_names(gateway: Gateway, names: Iterable[tuple[NameOf, str | None]]) -> tuple[str, ...]:
    """Remarks about these names, of which nothing was found: those that only the history knows, and those of
    owners and tasks that nothing knows. Raises RefusedError for a pool, a cohort or a node that never was.
    """
    notes = []
    for kind, name in names:
        if name is None or _lives(gateway, kind, name):
            continue
        if _in_history(gateway, kind, name):
            code = "remark_past" if kind in (NameOf.POOL, NameOf.OWNER) else "remark_ended"
            notes.append(phrase(code, kind=kind.value, name=name))
        elif kind in (NameOf.OWNER, NameOf.TASK):
            code = "remark_no_task" if kind is NameOf.TASK else "remark_no_task_of"
            notes.append(phrase(code, name=name))
        else:
            _refuse(gateway, kind, name)
    return tuple(notes)


def check_pools(gateway: Gateway, names: Iterable[str]) -> None:
    """Raise RefusedError for the first of these pools that there is not."""
    for name in names:
        if not _lives(gateway, NameOf.POOL, name):
            _refuse(gateway, NameOf.POOL, name)


def _lives(gateway: Gateway, kind: NameOf, name: str) -> bool:
    """Whether there is something of this name now."""
    if kind in (NameOf.TASK, NameOf.OWNER):
        return _has_task(gateway, "task_id" if kind is NameOf.TASK else "owner", name)
    return name in _existing_names(gateway, kind)


def _has_task(gateway: Gateway, field: str, value: str) -> bool:
    """Whether a task that runs or waits has this value."""
    from schedulemesh.api.pages import ListPage, PageQuery
    from schedulemesh.protocol.answers import Details

    page = PageQuery(fields=((field, (value,)),), order=(("task_id", False),), limit=1)
    return bool(gateway.ask(ListPage(listing="tasks", page=page), Details).facts["total"])


def _existing_names(gateway: Gateway, kind: NameOf) -> set[str]:
    """The names of the pools, cohorts or nodes that there are now, of a node all that it has."""
    return set(chain.from_iterable(_names_of_each(gateway, kind)))


def _names_of_each(gateway: Gateway, kind: NameOf) -> list[list[str]]:
    """The names of each of the pools, cohorts or nodes that there are now."""
    from schedulemesh.api.nodes import ListNodeNames
    from schedulemesh.api.pools import ListCohorts, ListPools
    from schedulemesh.protocol.answers import Listed

    if kind is NameOf.NODE:
        rows = gateway.ask(ListNodeNames(), Listed).rows
        return [[str(row[k]) for k in ("node_id", "short_id", "host", "address")] for row in rows]
    request = ListPools() if kind is NameOf.POOL else ListCohorts()
    return [[str(row["name"])] for row in gateway.ask(request, Listed).rows]


def _in_history(gateway: Gateway, kind: NameOf, name: str) -> bool:
    """Whether the history has an attempt of this name."""
    from schedulemesh.api.history import QueryHistory
    from schedulemesh.cli.exits import RefusedError
    from schedulemesh.protocol.answers import Details

    fields = {NameOf.POOL: "pool_name", NameOf.OWNER: "owner", NameOf.TASK: "task_id"}
    if kind not in fields:
        return False
    query: dict[str, Any] = {fields[kind]: name}
    try:
        return bool(gateway.ask(QueryHistory(limit=1, **query), Details).facts["attempts"])
    except RefusedError:
        return False


def _refuse(gateway: Gateway, kind: NameOf, name: str) -> None:
    from schedulemesh.cli.exits import RefusedError
    from schedulemesh.domain.reasons import Reason
    from schedulemesh.domain.sentences import did_you_mean, say
    from schedulemesh.engine.messages.outcomes import Refused

    names_of_each = _names_of_each(gateway, kind)
    names = sorted(chain.from_iterable(names_of_each))
    reason, code = {
        NameOf.POOL: (Reason.POOL_NOT_FOUND, "no_such_pool"),
        NameOf.COHORT: (Reason.COHORT_NOT_FOUND, "no_such_cohort"),
        NameOf.NODE: (Reason.NODE_NOT_FOUND, "no_such_node"),
    }[kind]
    if len(names) > _LISTED or kind is NameOf.NODE:
        others = say("listed_by", command=f"{kind.value}s", count=len(names_of_each))
    else:
        others = say("there_are", names=tuple(names) or (say("none_yet"),))
    missing = say(code, name=name, near=did_you_mean(name, names))
    raise RefusedError(Refused(reason=reason, error_text=say("parts", parts=[missing, others])))


def _filters(listing: Listing, select: Select) -> list[_Filter]:
    filters = []
    for condition in select.filters or ():
        word, value, equal = _parts(condition, "-f")
        key = _key_of(listing, word)
        names = ((c, (c.key, c.heading, c.title)) for c in listing.columns)
        column = next((c for c, of_column in names if word in of_column), None)
        filters.append(_Filter(word, key, column, value, equal))
    return filters


def _place(value: Any) -> tuple[int, float, str]:
    """Where a value comes among others: missing ones first, then numbers, then texts."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, (bool, int, float)):
        return (1, float(value), "")
    return (2, 0.0, text(value))


def _parts(words: str, option: str) -> tuple[str, str, bool]:
    """Key, value, and whether they are to be equal."""
    key, sign, value = words.partition("=")
    if not sign or not key.strip("! "):
        raise InvalidRequestError(f"{option} is {words!r}; it takes KEY=VALUE or KEY!=VALUE")
    return key.strip().removesuffix("!").strip(), value.strip(), not key.strip().endswith("!")


def _key_of(listing: Listing, word: str) -> str:
    """The field of the rows that a filter names, by its key or by the heading of its column."""
    headings = {
        heading: column.key or column.heading
        for column in listing.columns
        for heading in dict.fromkeys((column.heading, column.title))
    }
    fields = {} if listing.row is None else get_type_hints(listing.row)
    keys = {*headings.values(), *fields, *(key for row in listing.rows for key in row)}
    first, dot, part = word.partition(".")
    if word in keys or (first in keys and dot):
        _check_part(fields.get(first), first, part)
        return word
    if word in headings:
        return headings[word]
    allowed = sorted({*headings, *keys})
    raise InvalidRequestError(
        f"{listing.kind} have no field {word!r}{nearest(word, allowed)}; they have {', '.join(allowed)}"
    )


def _check_part(hint: Any, field: str, part: str) -> None:
    """Raise InvalidRequestError for a part that a field with known parts does not have."""
    parts = list(getattr(hint, "__annotations__", ()))
    first = part.partition(".")[0]
    if part and parts and first not in parts:
        raise InvalidRequestError(
            f"{field} has no part {first!r}{nearest(first, parts)}; it has {', '.join(parts)}"
        )


def _check_value(listing: Listing, one: _Filter) -> None:
    """Raise InvalidRequestError for a value that the field never has."""
    if listing.row is None:
        return
    parse_word(listing.row, one.key, one.value, one.word)
    hint = get_type_hints(listing.row).get(one.key)
    if parts := list(getattr(hint, "__annotations__", ())):
        raise InvalidRequestError(
            f"{one.word} has parts; name one, as {one.word}.{parts[0]}; it has {', '.join(parts)}"
        )
    kind = scalar_fields(listing.row).get(one.key)
    if kind is not None:
        parse_scalar(one.value, kind, one.word)


def _matches(value: object, sought: str) -> bool:
    """Whether a value is the given one as it is printed, or a list contains it."""
    if isinstance(value, (list, tuple)):
        return any(_matches(one, sought) for one in value)
    if isinstance(value, Mapping):
        return False
    spellings = [text(value), str(value)]
    if isinstance(value, bool):
        spellings += ("yes", "是") if value else ("no", "否")
    return sought in spellings or sought.lower() in {word.lower() for word in spellings}
