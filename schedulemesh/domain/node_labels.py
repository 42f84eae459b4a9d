"""Selectors over the labels of nodes, in the words of Ray's ``label_selector``.

A selector has a condition for each label: ``"a"`` (the label has this value), ``"!a"`` (it has not, or the
node has no such label), ``"in(a, b)"`` (one of these), ``"!in(a, b)"`` (none of these, or no such label).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from schedulemesh.domain.containers import as_items
from schedulemesh.domain.names import as_text, is_name
from schedulemesh.errors import InvalidRequestError, shown

#: The label under which Ray shows the model of a node's accelerators, such as "H100".
ACCELERATOR_TYPE = "ray.io/accelerator-type"

#: Conditions that must all hold, as (label, condition), sorted; empty: every node meets them.
NodeLabels = tuple[tuple[str, str], ...]

_VALUE = r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
_CONDITION = re.compile(rf"(!?)(?:({_VALUE})?|in\(({_VALUE}(?:, ?{_VALUE})*)\))")
_ALLOWED = "allowed are 'value', '!value', 'in(a, b)' and '!in(a, b)'"


def parse_node_labels(labels: object, what: str) -> NodeLabels:
    """The conditions of a dict of texts; None is no condition. Raises InvalidRequestError naming the label
    whose condition is none.
    """
    if labels is None:
        return ()
    conditions = []
    for key, value in as_items(labels, what, "a dict such as {'zone': 'a'}"):
        label, condition = as_text(key), as_text(value)
        if label is None or not is_name(label):
            raise InvalidRequestError(f"{what} must map labels to conditions; it has {shown(key)}")
        if condition is None or _CONDITION.fullmatch(condition) is None or condition == "!":
            raise InvalidRequestError(f"{what}[{label!r}] is {shown(value)}; {_ALLOWED}")
        conditions.append((label, condition))
    return tuple(sorted(conditions))


def all_of(*selectors: NodeLabels) -> NodeLabels:
    """The selector that holds where each of these does."""
    return tuple(sorted({condition for selector in selectors for condition in selector}))


@lru_cache(maxsize=4096)
def excludes(selector: NodeLabels, other: NodeLabels) -> bool:
    """Whether no node can meet all conditions of both selectors."""
    conditions: dict[str, list[tuple[bool, frozenset[str | None]]]] = {}
    for label, condition in (*selector, *other):
        conditions.setdefault(label, []).append(_parsed(condition))
    return any(_is_contradiction(of_label) for of_label in conditions.values())


def _is_contradiction(conditions: list[tuple[bool, frozenset[str | None]]]) -> bool:
    """Whether no value of a label meets all of these conditions."""
    allowed = [values for negated, values in conditions if not negated]
    refused = [values for negated, values in conditions if negated]
    return bool(allowed) and not frozenset.intersection(*allowed).difference(*refused)


def is_value(text: str) -> bool:
    """Whether this can be the value of a label."""
    return re.fullmatch(_VALUE, text) is not None


def check_node_labels(selector: NodeLabels, what: str) -> None:
    """Raise InvalidRequestError for a selector that ``parse_node_labels`` cannot have made."""
    for label, condition in selector:
        parse_node_labels({label: condition}, what)


def selects(selector: NodeLabels, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels meets every condition."""
    for label, condition in selector:
        negated, values = _parsed(condition)
        if (labels.get(label) in values) is negated:
            return False
    return True


def spelled(selector: NodeLabels) -> str:
    """A selector as it is shown: ``zone=a, disk!=slow``."""
    return ", ".join(
        f"{label}!={condition[1:]}" if condition.startswith("!") else f"{label}={condition}"
        for label, condition in selector
    )


@lru_cache(maxsize=4096)
def _parsed(condition: str) -> tuple[bool, frozenset[str | None]]:
    """Whether a condition is negated, and its values."""
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise ValueError(f"{condition!r} is no condition on a label")
    negated, value, several = match.groups()
    values = [value or ""] if several is None else re.split(", ?", several)
    return bool(negated), frozenset(values)
