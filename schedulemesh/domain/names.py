"""Texts that users give: ids, names and label values, copied to exact ``str``."""

from __future__ import annotations

from schedulemesh.domain.kinds import is_a, without_enum
from schedulemesh.errors import InvalidRequestError, shown

#: Characters of an id, a name, or a label's key or value.
MAX_CHARS = 253

_KEY_CHARS, _HEX = 64, frozenset("0123456789abcdef")


def as_text(value: object) -> str | None:
    """The exact ``str`` that this holds: a str, one of a subclass, or an Enum member whose value is one.

    None: it is no text.
    """
    if type(value) is str:
        return value
    value = without_enum(value)
    return str.__str__(value) if is_a(value, str) else None


def is_name(text: str) -> bool:
    """Whether this can be an id, a name or a label: 1 to 253 printable characters, not only spaces."""
    return 0 < len(text) <= MAX_CHARS and text.isprintable() and not text.isspace()


def parse_name(value: object, what: str) -> str:
    """An id or a name. Raises InvalidRequestError for what ``is_name`` refuses."""
    text = as_text(value)
    if text is None or not is_name(text):
        raise InvalidRequestError(
            f"{what} must be a text of 1 to {MAX_CHARS} printable characters without line breaks, "
            f"not {shown(value)}"
        )
    return text


def parse_method(value: object, what: str) -> str:
    """The name of a public method. Raises InvalidRequestError."""
    text = as_text(value)
    if text is None or not text.isidentifier() or text.startswith("_") or not is_name(text):
        raise InvalidRequestError(
            f"{what} must be the name of a public method, such as 'train', not {shown(value)}"
        )
    return text


def parse_key(value: object, what: str) -> str:
    """The key of stored bytes, a SHA-256 in hex. Raises InvalidRequestError."""
    text = as_text(value)
    if text is None or len(text) != _KEY_CHARS or not set(text) <= _HEX:
        raise InvalidRequestError(f"{what} must be a SHA-256 in hex, not {shown(value)}")
    return text
