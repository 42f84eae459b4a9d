"""What a caller may ask for in a lease."""

from __future__ import annotations

import pytest

from schedulemesh.domain.agent import AgentSpec, Alternative, check_agent, with_alternatives
from schedulemesh.domain.payloads import LeasePayload
from schedulemesh.domain.resources import parse_resources, sum_of
from schedulemesh.errors import InvalidRequestError

BUNDLES = (parse_resources({"cpu": 1}),) * 4


def a_lease(lease=None, **more):
    given = {"name": "a", "pool_name": "p", "resources": sum_of(BUNDLES), "bundles": BUNDLES}
    return AgentSpec(**{**given, **more}, payload=lease or LeasePayload(parts=2))


def test_a_lease_has_no_process_and_no_class():
    spec = a_lease()
    check_agent(spec)
    assert (spec.process_names, spec.class_keys, spec.kind) == ((), (), "lease")
    assert spec.own_group is spec.payload


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"parts": 3}, "3 groups has 4 bundles"),
        ({"parts": 0}, "0 groups"),
        ({"parts": 5}, "5 groups"),
        ({"strategy": "ANYWHERE"}, "strategy is 'ANYWHERE'"),
        ({"same_label": "a\nb"}, "same_label"),
        ({"grace_s": -1.0}, "grace_s"),
        ({"ttl_s": 0.5}, "at least 5 s"),
    ],
)
def test_a_lease_that_cannot_be_is_refused(changes, told):
    with pytest.raises(InvalidRequestError, match=told):
        check_agent(a_lease(LeasePayload(**changes)))


@pytest.mark.parametrize(
    "more",
    [
        {"class_key": "a" * 64},
        {"arguments_key": "a" * 64},
        {"options": '{"max_restarts":1}'},
        {"references": 1},
    ],
)
def test_a_lease_with_something_of_a_process_is_refused(more):
    with pytest.raises(InvalidRequestError, match="a lease has no process"):
        check_agent(a_lease(**more))


def test_a_lease_without_bundles_is_refused():
    with pytest.raises(InvalidRequestError, match="0 bundles"):
        check_agent(a_lease(bundles=()))


def with_bundles(count, sizes, parts):
    bundles = tuple(parse_resources({"cpu": 1 + number % sizes}) for number in range(count))
    lease = LeasePayload(parts=parts)
    return a_lease(lease, bundles=bundles, resources=sum_of(bundles))


@pytest.mark.parametrize(
    ("count", "sizes", "parts"), [(250, 2, 125), (1_000, 1, 500), (1_000, 50, 1)]
)
def test_a_lease_of_as_many_bundles_as_there_may_be(count, sizes, parts):
    check_agent(with_bundles(count, sizes, parts))


def test_a_lease_of_groups_with_too_many_bundles_that_differ_is_refused():
    with pytest.raises(InvalidRequestError, match="up to 250 bundles, not 252"):
        check_agent(with_bundles(252, 2, 2))
    few, many = with_bundles(250, 2, 2), with_bundles(252, 2, 2)
    other = Alternative(resources=many.resources, bundles=many.bundles)
    with pytest.raises(InvalidRequestError, match="up to 250 bundles, not 252"):
        check_agent(with_alternatives(few, (other,)))
