"""What the fields of rows can be, as the types of the rows declare it: every surface refuses a filter for
anything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from schedulemesh.errors import InvalidRequestError, nearest, nearest_names

#: The kinds of values by which rows can be filtered and sorted.
SCALARS = (str, int, float, bool)
#: Values that an error lists; of more it names the nearest.
_LISTED, _NEAREST = 24, 3


class OneOf:
    """Of a field of text: all values that it may have."""

    def __init__(self, *words: str) -> None:
        self.words = words

    @classmethod
    def codes(cls, *kinds: type[Enum]) -> OneOf:
        """The values of these enumerations, and none where there is no reason."""
        return cls(*dict.fromkeys(str(member.value) for kind in kinds for member in kind))


class NameOf(Enum):
    """Of a field of text: what it names."""

    POOL = "pool"
    OWNER = "owner"
    TASK = "task"
    NODE = "node"
    COHORT = "cohort"


@cache
def scalar_fields(row: type) -> Mapping[str, type]:
    """The fields of a row that hold one value, with its type."""
    scalars = {name: _scalar(hint) for name, hint in get_type_hints(row).items()}
    return {name: kind for name, kind in scalars.items() if kind is not None}


def _scalar(hint: object) -> type | None:
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return _scalar(kinds[0]) if len(kinds) == 1 else None
    return next((kind for kind in SCALARS if hint is kind), None)


@cache
def _metadata(row: type) -> Mapping[str, tuple[Any, ...]]:
    """What the type of each field says beside its kind."""
    hints = get_type_hints(row, include_extras=True)
    return {
        name: tuple(
            one for part in (hint, *get_args(hint)) for one in getattr(part, "__metadata__", ())
        )
        for name, hint in hints.items()
    }


def allowed_values(row: type, field: str) -> tuple[str, ...]:
    """All values that a field may have; empty: any."""
    words = (one.words for one in _metadata(row).get(field, ()) if isinstance(one, OneOf))
    return next(words, ())


def named_by(row: type, field: str) -> NameOf | None:
    """What a field names; None: it is no name of these."""
    kinds = (one for one in _metadata(row).get(field, ()) if isinstance(one, NameOf))
    return next(kinds, None)


def parse_word(row: type, field: str, value: str, what: str) -> str:
    """A text as the field of a row has it; an empty one asks for rows without. Raises InvalidRequestError for
    one that it never is. ``what``: what the caller calls the field.
    """
    allowed = allowed_values(row, field)
    if not allowed or not value:
        return value
    if value.lower() in allowed:
        return value.lower()
    may = f"it may be {', '.join(allowed)}"
    if len(allowed) > _LISTED:
        near = ", ".join(nearest_names(value, allowed, _NEAREST))
        may = f"the nearest of {len(allowed)} codes are {near}; docs/api/schedule_mesh.md lists all"
    raise InvalidRequestError(f"{what} is {value!r}{nearest(value, allowed)}; {may}")


def parse_scalar(text: str, kind: type, what: str) -> str | int | float | bool | None:
    """The value that a text stands for; empty: None. Raises InvalidRequestError."""
    if kind is str:
        return text
    if not text:
        return None
    try:
        if kind is bool:
            return {"true": True, "false": False, "yes": True, "no": False}[text.lower()]
        # int() and float() would read digits of other scripts, and underscores.
        readable = text if text.isascii() and "_" not in text else ""
        number: int | float = kind(readable)
        if abs(number) >= 2**63:
            # No encoding holds it as a whole number, and no row has it.
            number = float(number)
    except (KeyError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidRequestError(f"{what} is {_KINDS[kind]}, which {text!r} is not")
    return number


_KINDS = {bool: "yes or no (true or false)", int: "a whole number", float: "a number"}
