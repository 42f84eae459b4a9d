"""What the address of a screen asks for: parameters, words and names that there are, or else those that are
nearest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from starlette.datastructures import QueryParams

from schedulemesh.api.pools import ListShares
from schedulemesh.errors import nearest_name, nearest_names, shown
from schedulemesh.server.page.entries import InvalidEntryError
from schedulemesh.server.page.links import link
from schedulemesh.server.page.reads import ScreenReads
from schedulemesh.server.page.words import WORDS, Words

#: Parameters of every screen: what a browser prefers.
PREFERENCES = ("lang", "refresh")
#: Values that an error lists, and how many of more; how many names are the nearest.
_LISTED, _NEAREST = 24, 3


class UnknownName(NamedTuple):
    """A name in the address that nothing has, and by which nothing was found."""

    #: The text that says so.
    key: str
    name: str
    #: The most similar names that there are, and the address that asks for each instead.
    nearest: Sequence[tuple[str, str]]


def check_parameters(words: Words, query: QueryParams, allowed: Collection[str]) -> None:
    """Raise InvalidEntryError for a parameter that a screen does not have, so that nobody takes what it shows
    for what was asked for.
    """
    for name in query:
        if name in allowed or name in PREFERENCES:
            continue
        names = words.text("name_separator").join(allowed) or words.text("none")
        near = _perhaps(words, name, allowed)
        raise InvalidEntryError("no_such_parameter", name=shown(name), near=near, names=names)


def word_in(reader: ScreenReads, query: QueryParams, name: str, allowed: Collection[str]) -> str:
    """The value of a parameter that is one of some words; empty: none is given. Raises InvalidEntryError."""
    value = query.get(name, "")
    if not value or value in allowed:
        return value
    if value.lower() in allowed:
        return value.lower()
    words = WORDS[reader.language]
    listed = allowed if len(allowed) <= _LISTED else nearest_names(value, allowed, _NEAREST)
    raise InvalidEntryError(
        "no_such_value" if len(allowed) <= _LISTED else "no_such_value_of_many",
        name=name,
        value=shown(value),
        near=_perhaps(words, value, allowed),
        count=len(allowed),
        values=words.text("name_separator").join(listed),
    )


async def unknown_names(
    reader: ScreenReads, path: str, filters: Mapping[str, str], pools: Collection[str]
) -> list[UnknownName]:
    """The pool and the owner of filters, where there are none of these names; ``pools``: those that there
    are. ``path``: of the screen.
    """
    unknown = []
    if filters["pool_name"] and filters["pool_name"] not in pools:
        unknown.append(unknown_name("no_such_pool", path, filters, "pool_name", pools))
    if filters["owner"]:
        shares = await reader.rows(ListShares())
        owners = {str(row["owner"]) for row in shares if row["owner"]}
        if filters["owner"] not in owners:
            unknown.append(unknown_name("no_such_owner", path, filters, "owner", owners))
    return unknown


def unknown_name(
    key: str, path: str, filters: Mapping[str, str], parameter: str, names: Iterable[str]
) -> UnknownName:
    """The name in a parameter of an address, which is none of these; ``key``: the text that says so."""
    nearest = nearest_names(filters[parameter], names, _NEAREST)
    addresses = [link(path, *{**filters, parameter: name}.items()) for name in nearest]
    return UnknownName(key, filters[parameter], list(zip(nearest, addresses, strict=True)))


def _perhaps(words: Words, name: str, allowed: Iterable[str]) -> str:
    near = nearest_name(name, allowed)
    return "" if near is None else words.text("perhaps", name=near)
