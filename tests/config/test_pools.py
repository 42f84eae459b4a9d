"""What a user says of a pool."""

from __future__ import annotations

import pytest

from schedulemesh.config.pools import parse_pool
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.resources import parse_resources
from schedulemesh.errors import InvalidRequestError


def test_a_pool_is_built_from_its_arguments():
    spec = parse_pool("p", {"a": "b"}, {"cpu": 4}, 2, "SPREAD")
    assert (spec.name, spec.labels, spec.target_agents) == ("p", {"a": "b"}, 2)
    assert spec.resources == parse_resources({"cpu": 4})
    assert spec.placement_strategy == "SPREAD"


def test_the_defaults_are_no_target_and_strict_pack():
    spec = parse_pool("p", None, {})
    assert (spec.labels, spec.target_agents, spec.placement_strategy) == ({}, 0, "STRICT_PACK")


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (("", None, {}), "name"),
        (("  ", None, {}), "name"),
        ((3, None, {}), "name"),
        (("p", [], {}), "labels"),
        (("p", None, None), "resources"),
        (("p", None, {"cpu": -1}), "cpu"),
        (("p", None, {}, -1), "target_agents"),
        (("p", None, {}, 1.5), "target_agents"),
        (("p", None, {}, True), "target_agents"),
        (("p", None, {}, 0, "TIGHT"), "STRICT_SPREAD"),
        (("p", None, {}, 0, None), "placement_strategy"),
    ],
)
def test_an_invalid_value_is_refused_and_named(given, word):
    with pytest.raises(InvalidRequestError, match=word):
        parse_pool(*given)


def test_a_field_that_no_pool_has_is_not_left_out_without_a_word():
    with pytest.raises(KeyError, match="max_runs"):
        parse_pool("p", None, {}, max_runs=3)


def test_a_name_is_any_text_that_is_not_empty():
    assert parse_name("väl 1", "the name") == "väl 1"
    with pytest.raises(InvalidRequestError, match="the name"):
        parse_name(None, "the name")
