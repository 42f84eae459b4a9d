"""Labels of pools, agents, tasks and nodes, and selectors over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from schedulemesh.domain.containers import as_items
from schedulemesh.domain.kinds import is_a, is_list
from schedulemesh.domain.names import MAX_CHARS, as_text, is_name
from schedulemesh.errors import InvalidRequestError, shown

Labels = dict[str, str]


#: Bytes of all labels of one thing, keys and values together.
MAX_BYTES = 64 * 1024


def parse_labels(labels: object, what: str = "labels") -> Labels:
    """A dict of texts as ``parse_name`` takes them, at most 64 KB; None is no labels.

    Raises InvalidRequestError naming what is wrong.
    """
    if labels is None:
        return {}
    parsed_labels: Labels = {}
    for key, value in as_items(labels, what, "a dict of texts"):
        name, text = as_text(key), as_text(value)
        if name is None or text is None or not is_name(name) or not is_name(text):
            raise InvalidRequestError(
                f"{what} must map texts to texts of 1 to {MAX_CHARS} printable characters; it has "
                f"{shown(key)}: {shown(value)}"
            )
        parsed_labels[name] = text
    _check_size(size_of(parsed_labels), what)
    return parsed_labels


def size_of(labels: Mapping[str, str]) -> int:
    """Bytes of all keys and values."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in labels.items())


def _check_size(size: int, what: str) -> None:
    if size > MAX_BYTES:
        raise InvalidRequestError(f"{what} take {size} bytes; up to {MAX_BYTES} are allowed")


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """One condition on one label: ``in``, ``not_in`` (also true where absent) or ``exists``."""

    key: str
    operator: Literal["in", "not_in", "exists"]
    values: tuple[str, ...] = ()
    #: For ``exists``: whether the label must be there (True) or must not (False).
    wanted: bool = True

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels meet the condition."""
        if self.operator == "exists":
            return (self.key in labels) is self.wanted
        if self.operator == "in":
            return labels.get(self.key) in self.values
        return labels.get(self.key) not in self.values


Selector = tuple[Requirement, ...]


def parse_selector(selector: object, what: str = "pool_selector") -> Selector:
    """Conditions that must all hold: ``{"stage": "demo"}`` (equal), ``{"stage": ["a", "b"]}`` or
    ``{"stage": {"in": [...]}}``, ``{"stage": {"not_in": [...]}}``, ``{"stage": {"exists": True}}``.

    Raises InvalidRequestError naming the key whose condition is none of these.
    """
    requirements = []
    for key, condition in as_items(selector, what, "a dict of conditions"):
        name = as_text(key)
        if name is None or not is_name(name):
            raise InvalidRequestError(
                f"{what} must map labels to conditions; it has the key {shown(key)}"
            )
        requirements.append(_requirement(name, condition, what))
    texts = (text for r in requirements for text in (r.key, *r.values))
    _check_size(sum(len(text.encode()) for text in texts), what)
    return tuple(sorted(requirements, key=lambda requirement: requirement.key))


def check_selector(selector: Selector, what: str = "pool_selector") -> None:
    """Raise InvalidRequestError for a selector that ``parse_selector`` cannot have made."""
    parse_selector(
        {r.key: {r.operator: r.wanted if r.operator == "exists" else r.values} for r in selector},
        what,
    )


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether the labels meet every condition; an empty selector matches all."""
    return all(requirement.matches(labels) for requirement in selector)


def _values(values: object) -> tuple[str, ...] | None:
    """The texts of a list of label values; None: it is none."""
    if not is_list(values):
        return None
    texts = [text for value in values if (text := as_text(value)) is not None and is_name(text)]
    return tuple(texts) if len(texts) == len(values) else None


def _requirement(key: str, condition: object, what: str) -> Requirement:
    text = as_text(condition)
    values = _values(condition if text is None else (text,))
    if values is not None:
        return Requirement(key=key, operator="in", values=values)
    if issubclass(type(condition), Mapping):
        requirement = _by_operator(key, as_items(condition, f"{what}[{shown(key)}]", "a condition"))
        if requirement is not None:
            return requirement
    raise InvalidRequestError(
        f"{what}[{shown(key)}] is {shown(condition)}; allowed are a text, a list of texts, "
        "{'in': [...]}, {'not_in': [...]} and {'exists': True or False}"
    )


def _by_operator(key: str, items: Sequence[tuple[object, object]]) -> Requirement | None:
    """The condition of ``{operator: value}``; None: there is no such condition."""
    if len(items) != 1:
        return None
    operator, value = as_text(items[0][0]), items[0][1]
    if operator == "exists" and is_a(value, bool):
        return Requirement(key=key, operator="exists", wanted=value)
    values = _values(value)
    if values is None:
        return None
    if operator == "in":
        return Requirement(key=key, operator="in", values=values)
    return Requirement(key=key, operator="not_in", values=values) if operator == "not_in" else None
