"""How a topology is written, and the domains of nodes."""

from __future__ import annotations

import pytest

from schedulemesh.domain.topology import parse_levels, parse_topology, topology_request, with_levels
from schedulemesh.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("rack", "rack"),
        (" required:rack ", "rack"),
        ("slice:8:rack,preferred:block", "preferred:block,slice:8:rack"),
        ({"required": "block", "preferred": "rack"}, "block,preferred:rack"),
        ({"slice": {"size": 2, "level": "a/b"}}, "slice:2:a/b"),
        ({"required": "rack", "preferred": None}, "rack"),
    ],
)
def test_a_topology_has_one_text(value, text):
    assert parse_topology(value) == text
    assert parse_topology(text) == str(topology_request(text)) == text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "asks for nothing"),
        ({}, "asks for nothing"),
        ("rack,rack", "twice"),
        ("near:rack", "unknown"),
        ("slice:8", "SIZE:LEVEL"),
        ("slice:-1:rack", "SIZE:LEVEL"),
        ({"slice": {"size": 0, "level": "rack"}}, "whole number"),
        ({"slice": {"size": 2}}, "must be a dict"),
        ({"requierd": "rack"}, "did you mean 'required'"),
        ({"required": "a,b"}, "key of a node label"),
        (7, "such as 'rack' or a dict"),
    ],
)
def test_what_is_none_is_refused(value, message):
    with pytest.raises(InvalidRequestError, match=message):
        parse_topology(value)


@pytest.mark.parametrize(
    "value", ["rack", ["rack", "rack"], ["a:b"], [""], [1], [f"l{n}" for n in range(9)]]
)
def test_levels_are_up_to_eight_keys_of_labels(value):
    with pytest.raises(InvalidRequestError, match="topology_levels"):
        parse_levels(value, "topology_levels")


def test_what_lacks_a_label_is_a_domain_by_itself():
    topology = with_levels("rack", ("block", "rack"))
    of = topology.domain_of
    assert of({"block": "b", "rack": "r"}, "n1", 1) == of({"block": "b", "rack": "r"}, "n2", 1)
    assert of({"rack": "r"}, "n1", 0) == of({"rack": "r"}, "n2", 0) != of({"block": "r"}, "n3", 0)
    assert of({}, "n1", 0) != of({}, "n2", 0)
    assert of({"block": "b"}, "n1", 1) != of({"block": "b"}, "n2", 1)
