"""Flavors as callers write them, and the quotas that go with them."""

from __future__ import annotations

import pytest

from schedulemesh.config.pools import parse_pool
from schedulemesh.domain.agent import AgentSpec, check_agent
from schedulemesh.domain.flavors import flavors_for, parse_flavors, without_flavors
from schedulemesh.domain.node_labels import excludes, parse_node_labels
from schedulemesh.domain.resources import parse_resources
from schedulemesh.errors import InvalidRequestError

H100 = {"name": "h100", "label_selector": {"model": "H100"}}
A100 = {"name": "a100", "label_selector": {"model": "A100"}}


def labels(selector):
    return parse_node_labels(selector, "labels")


def test_a_kind_of_a_flavor_is_a_custom_resource_of_a_quota():
    by_key = parse_resources({"cpu": 2, "gpu@h100": 3, "memory@spot": "1GB", "custom": {"x": 1}})
    assert by_key.public() == {
        "cpu": 2.0,
        "custom": {"gpu@h100": 3.0, "memory@spot": 1024.0, "x": 1.0},
    }
    assert parse_resources(by_key.public()) == by_key
    assert str(by_key) == "cpu 2, gpu@h100 3, memory@spot 1 GB, x 1"


@pytest.mark.parametrize(
    ("flavors", "error"),
    [
        (5, "flavors must be a list such as"),
        ([{"name": "x"}], "has no label_selector"),
        ([{"label_selector": {"a": "b"}}], "['name']"),
        ([{**H100, "labels": 1}], "has 'labels'"),
        ([{**H100, "name": "a@b"}], "has no '@'"),
        ([H100, H100], "has two with the name 'h100'"),
        ([{**H100, "kinds": []}], "must be a list of kinds"),
        ([{**H100, "kinds": ["gpu@x"]}], "must be a list of kinds"),
        ([{**H100, "name": f"f{n}"} for n in range(11)], "has up to 10"),
    ],
)
def test_what_is_no_flavor_is_refused(flavors, error):
    with pytest.raises(InvalidRequestError) as refused:
        parse_flavors(flavors)
    assert error in str(refused.value)


@pytest.mark.parametrize(
    ("resources", "error"),
    [
        (
            {"gpu": 1},
            "resources has gpu, of which the pool has quota by flavor; give gpu@h100 instead",
        ),
        ({"gpu@h10": 1}, "no flavor 'h10' that covers gpu (did you mean 'gpu@h100'?)"),
        ({"cpu@h100": 1}, None),
    ],
)
def test_a_quota_goes_with_the_flavors(resources, error):
    if error is None:
        parse_pool("p", {}, resources, flavors=[{**H100, "kinds": ["cpu"]}])
        return
    with pytest.raises(InvalidRequestError) as refused:
        parse_pool("p", {}, resources, flavors=[H100])
    assert error in str(refused.value)


def test_a_pool_without_flavors_has_no_quota_of_any():
    with pytest.raises(InvalidRequestError, match="no flavor 'h100' that covers gpu"):
        parse_pool("p", {}, {"gpu@h100": 1})


def test_a_task_asks_for_plain_kinds():
    with pytest.raises(InvalidRequestError, match="ask for gpu, and choose a flavor by label"):
        check_agent(AgentSpec(name="x", pool_name="p", resources=parse_resources({"gpu@h100": 1})))


@pytest.mark.parametrize(
    ("selector", "other", "expected"),
    [
        ({"model": "H100"}, {"model": "A100"}, True),
        ({"model": "H100"}, {"model": "!H100"}, True),
        ({"model": "H100"}, {"zone": "a"}, False),
        ({"model": "in(H100,A100)"}, {"model": "!in(A100)"}, False),
        ({"model": "in(H100,A100)"}, {"model": "!in(A100,H100)"}, True),
        ({"model": "!H100"}, {"model": "!A100"}, False),
    ],
)
def test_selectors_exclude_one_another_where_no_value_meets_both(selector, other, expected):
    assert excludes(labels(selector), labels(other)) is expected


def test_a_flavor_must_cover_all_that_others_cover_and_the_task_asks_for():
    both = {**A100, "kinds": ["cpu", "gpu"]}
    flavors = parse_flavors([H100, both])
    need = parse_resources({"cpu": 1, "gpu": 1})
    assert [flavor.name for flavor in flavors_for(flavors, need, ())] == ["a100"]
    gpu = parse_resources({"gpu": 1})
    assert [flavor.name for flavor in flavors_for(flavors, gpu, ())] == ["h100", "a100"]
    quota = parse_resources({"gpu@h100": 1, "gpu@a100": 2, "cpu@a100": 3, "memory": 4})
    assert without_flavors(quota, flavors) == parse_resources({"gpu": 3, "cpu": 3, "memory": 4})
