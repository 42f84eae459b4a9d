"""Labels and selectors over them."""

from __future__ import annotations

import pytest

from schedulemesh.domain.labels import matches, parse_labels, parse_selector
from schedulemesh.errors import InvalidRequestError


def test_labels_are_strings_and_none_means_no_labels():
    assert parse_labels(None) == {}
    assert parse_labels({"a": "b"}) == {"a": "b"}


@pytest.mark.parametrize("given", [[], "a=b", {"a": 1}, {1: "a"}, {"": "a"}, {"a": None}])
def test_a_malformed_label_is_refused(given):
    with pytest.raises(InvalidRequestError, match="labels must"):
        parse_labels(given)


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ({}, {}, True),
        ({"a": "1"}, {"a": "1"}, True),
        ({"a": "1"}, {"a": "2"}, False),
        ({"a": "1"}, {}, False),
        ({"a": ["1", "2"]}, {"a": "2"}, True),
        ({"a": ("1", "2")}, {"a": "3"}, False),
        ({"a": {"in": ["1"]}}, {"a": "1"}, True),
        ({"a": {"in": []}}, {"a": "1"}, False),
        ({"a": {"not_in": ["1"]}}, {"a": "1"}, False),
        ({"a": {"not_in": ["1"]}}, {"a": "2"}, True),
        ({"a": {"not_in": ["1"]}}, {}, True),
        ({"a": {"exists": True}}, {"a": "1"}, True),
        ({"a": {"exists": True}}, {}, False),
        ({"a": {"exists": False}}, {}, True),
        ({"a": {"exists": False}}, {"a": "1"}, False),
        ({"a": "1", "b": {"exists": True}}, {"a": "1"}, False),
        ({"a": "1", "b": {"exists": True}}, {"a": "1", "b": "x"}, True),
    ],
)
def test_every_condition_must_hold(selector, labels, expected):
    assert matches(parse_selector(selector), labels) is expected


@pytest.mark.parametrize(
    "given",
    [
        None,
        "a",
        {"a": 1},
        {"a": [1]},
        {"a": {}},
        {"a": {"like": ["x"]}},
        {"a": {"exists": "yes"}},
        {"a": {"in": "x"}},
        {"a": {"in": [1]}},
        {"a": {"in": ["x"], "not_in": ["y"]}},
        {1: "a"},
        {1: "a", "b": "c"},
        {"": "a"},
    ],
)
def test_a_malformed_condition_is_refused(given):
    with pytest.raises(InvalidRequestError, match="pool_selector"):
        parse_selector(given)
