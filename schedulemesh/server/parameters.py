"""The parameters of a call: the names in its path, and those in its query, which one table reads and
documents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import QueryParams
from starlette.types import Scope

from schedulemesh.api.history import HIGHEST_CURSOR
from schedulemesh.domain.names import parse_name
from schedulemesh.errors import InvalidRequestError, nearest
from schedulemesh.protocol.times import parse_time

Json = dict[str, Any]
#: Stands for a slash within a name, from where a path is split to where the name is read. No name has it: it
#: is not printable.
_SLASH = "\ue000"


class _NameConvertor(Convertor[str]):
    """A name in a path: one part of it, in which a slash is written as ``%2F``."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.replace(_SLASH, "/")

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("name", _NameConvertor())


def path_of(scope: Scope) -> str:
    """The path of a request, split where the client wrote slashes: one that is written as ``%2F`` is part of
    a name, or a pool ``a/drain`` could not be told from the drain of ``a``. Raises InvalidRequestError.
    """
    raw_path: bytes = scope["raw_path"]
    try:
        if b"%" not in raw_path:
            return raw_path.decode()
        parts = [unquote_to_bytes(part).decode() for part in raw_path.split(b"/")]
    except UnicodeDecodeError:
        raise InvalidRequestError(
            "the path is not encoded in UTF-8; write names as UTF-8"
        ) from None
    return "/".join(part.replace("/", _SLASH) for part in parts)


class QueryParameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of a query."""

    name: str
    #: What it does, for the OpenAPI document.
    means: str
    schema: Json
    #: The value that a text stands for. Raises InvalidRequestError.
    read: Callable[[str, str], Any]
    #: Whether it may be given several times; then its value is a tuple.
    many: bool = False
    #: The text that stands for one that is not given; None: its value is None.
    default: str | None = None


def read_parameters(query: QueryParams, parameters: Sequence[QueryParameter]) -> Mapping[str, Any]:
    """The value of each parameter by its name. Raises InvalidRequestError for what is not known or valid."""
    names = [parameter.name for parameter in parameters]
    for name in query:
        if name not in names:
            raise InvalidRequestError(
                f"there is no parameter {name!r}{nearest(name, names)}; there are {', '.join(names)}"
            )
    return {parameter.name: _value(query, parameter) for parameter in parameters}


def _value(query: QueryParams, parameter: QueryParameter) -> Any:
    texts = query.getlist(parameter.name)
    if parameter.many:
        return tuple(parameter.read(text, parameter.name) for text in texts)
    if len(texts) > 1:
        raise InvalidRequestError(f"{parameter.name} is given {len(texts)} times; give it once")
    text = texts[0] if texts else parameter.default
    return None if text is None else parameter.read(text, parameter.name)


def name(parameter: str, means: str) -> QueryParameter:
    """The name of something."""
    schema = {"type": "string", "minLength": 1, "maxLength": 253}
    return QueryParameter(name=parameter, means=means, schema=schema, read=parse_name)


def names(parameter: str, means: str) -> QueryParameter:
    """Several names."""
    schema = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 253}}
    return QueryParameter(name=parameter, means=means, schema=schema, read=parse_name, many=True)


def labels(parameter: str, means: str) -> QueryParameter:
    """Labels as ``KEY=VALUE``; the value is a tuple of pairs."""
    schema = {"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}}
    return QueryParameter(name=parameter, means=means, schema=schema, read=_label, many=True)


def time(parameter: str, means: str, default: str | None = None) -> QueryParameter:
    """A time: seconds since 1970, a duration before now, or a date."""
    return QueryParameter(
        name=parameter,
        means=f"{means} Seconds since 1970, a time ago such as 24h or 7d, or a date.",
        schema={"type": "string", **({} if default is None else {"default": default})},
        read=_time,
        default=default,
    )


def count(
    parameter: str,
    means: str,
    most: int = HIGHEST_CURSOR,
    *,
    least: int = 0,
    default: int | None = None,
) -> QueryParameter:
    """A whole number."""
    schema: Json = {"type": "integer", "minimum": least, "maximum": most}
    if default is not None:
        schema["default"] = default

    def read(text: str, what: str) -> int:
        # int() would also read digits of other scripts, signs and underscores.
        digits = text.isascii() and text.isdigit() and len(text) <= len(str(HIGHEST_CURSOR))
        if not (digits and least <= int(text) <= most):
            raise InvalidRequestError(
                f"{what} must be a whole number from {least:,} to {most:,}, not {text!r}"
            )
        return int(text)

    return QueryParameter(
        name=parameter,
        means=means,
        schema=schema,
        read=read,
        default=None if default is None else str(default),
    )


def flag(parameter: str, means: str) -> QueryParameter:
    """``true`` or ``false``."""
    words = {"true": True, "false": False}
    schema: Json = {"type": "boolean", "default": False}
    return QueryParameter(
        name=parameter, means=means, schema=schema, read=_word(words), default="false"
    )


def choice(parameter: str, means: str, allowed: Sequence[str]) -> QueryParameter:
    """One of some words; the first is the default."""
    schema: Json = {"type": "string", "enum": list(allowed), "default": allowed[0]}
    read = _word({word: word for word in allowed})
    return QueryParameter(name=parameter, means=means, schema=schema, read=read, default=allowed[0])


def optional_choice(parameter: str, means: str, allowed: Sequence[str]) -> QueryParameter:
    """One of some words, or none."""
    schema: Json = {"type": "string", "enum": list(allowed)}
    read = _word({word: word for word in allowed})
    return QueryParameter(name=parameter, means=means, schema=schema, read=read)


def _word(words: Mapping[str, Any]) -> Callable[[str, str], Any]:
    def read(text: str, what: str) -> Any:
        if text not in words:
            raise InvalidRequestError(f"{what} is {text!r}; allowed are {', '.join(words)}")
        return words[text]

    return read


def _label(text: str, what: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InvalidRequestError(f"{what} must be KEY=VALUE, not {text!r}")
    return key, value


def _time(text: str, what: str) -> float | None:
    try:
        return parse_time(float(text), what)
    except ValueError:
        return parse_time(text, what)
