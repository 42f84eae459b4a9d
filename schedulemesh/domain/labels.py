"""Labels of pools, agents, tasks and nodes, and selectors over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeGuard

import msgspec

from schedulemesh.errors import InvalidRequestError

Labels = dict[str, str]


def is_text(given: object) -> TypeGuard[str]:
    """Whether this is a text that can be written down: a str without lone surrogates."""
    if not isinstance(given, str):
        return False
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_labels(given: object, what: str = "labels") -> Labels:
    """A dict of texts; None is no labels. Raises InvalidRequestError naming what is no text."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"{what} must be a dict of texts, not {given!r}")
    for key, value in given.items():
        if not is_text(key) or not key or not is_text(value):
            raise InvalidRequestError(f"{what} must map texts to texts; it has {key!r}: {value!r}")
    return dict(given)


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


def parse_selector(given: object, what: str = "pool_selector") -> Selector:
    """Conditions that must all hold: ``{"stage": "demo"}`` (equal), ``{"stage": ["a", "b"]}`` or
    ``{"stage": {"in": [...]}}``, ``{"stage": {"not_in": [...]}}``, ``{"stage": {"exists": True}}``.

    Raises InvalidRequestError naming the key whose condition is none of these.
    """
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"{what} must be a dict of conditions, not {given!r}")
    for key in given:
        if not isinstance(key, str) or not key:
            raise InvalidRequestError(
                f"{what} must map labels to conditions; it has the key {key!r}"
            )
    return tuple(_requirement(key, wish, what) for key, wish in sorted(given.items()))


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether the labels meet every condition; an empty selector matches all."""
    return all(requirement.matches(labels) for requirement in selector)


def _are_texts(given: object) -> TypeGuard[list[str] | tuple[str, ...]]:
    return isinstance(given, list | tuple) and all(isinstance(value, str) for value in given)


def _requirement(key: str, wish: object, what: str) -> Requirement:
    if isinstance(wish, str):
        return Requirement(key=key, operator="in", values=(wish,))
    if _are_texts(wish):
        return Requirement(key=key, operator="in", values=tuple(wish))
    if isinstance(wish, Mapping) and len(wish) == 1:
        operator, value = next(iter(wish.items()))
        if operator == "exists" and isinstance(value, bool):
            return Requirement(key=key, operator="exists", wanted=value)
        if operator in ("in", "not_in") and _are_texts(value):
            return Requirement(key=key, operator=operator, values=tuple(value))
    raise InvalidRequestError(
        f"{what}[{key!r}] is {wish!r}; allowed are a text, a list of texts, "
        "{'in': [...]}, {'not_in': [...]} and {'exists': True or False}"
    )
