"""Limits of owners as users give them."""

from __future__ import annotations

import pytest

from schedulemesh.domain.owner_limits import (
    OwnerLimit,
    check_owner_limits,
    limit_of,
    parse_owner_limits,
    parse_owner_order,
    public_owner_limits,
)
from schedulemesh.domain.resources import UNIT
from schedulemesh.errors import InvalidRequestError

GIVEN = {
    "default": {"gpu": 8.0, "queued": 100, "custom": {"tpu": 2.0}},
    "ada": {"gpu": 16.0, "queued": None, "custom": {"tpu": None}},
    "ben": {"memory": 65536.0, "running": 0},
}


def test_limits_are_shown_as_they_are_given():
    limits = parse_owner_limits({**GIVEN, "cid": None, "ben": {"memory": "64GB", "running": 0}})
    assert public_owner_limits(limits) == GIVEN
    assert parse_owner_limits(public_owner_limits(limits)) == limits
    check_owner_limits(limits)
    assert parse_owner_limits(None) == parse_owner_limits({}) == {}


def test_what_an_entry_leaves_out_is_as_in_the_default():
    limits = parse_owner_limits(GIVEN)
    assert limit_of(limits, "zoe") == limits["default"]
    assert limit_of(limits, "ada") == OwnerLimit(named=(("gpu", 16 * UNIT),))
    ben = (("gpu", 8 * UNIT), ("memory", 65536 * UNIT), ("tpu", 2 * UNIT))
    assert limit_of(limits, "ben") == OwnerLimit(named=ben, running=0, queued=100)
    assert limit_of({}, "ada") == OwnerLimit()


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        (3, "owner_limits must be a dict such as"),
        ({"ada": 3}, r"owner_limits\['ada'\] must be a dict of limits such as"),
        ({"ada": {"gup": 1}}, r"unknown key 'gup'; allowed are cpu, memory, gpu, custom, running"),
        ({"ada": {"gpu": -1}}, r"owner_limits\['ada'\]\['gpu'\] is -1"),
        ({"ada": {"memory": 64e9}}, r"Memory is given in MB; 64000000000 bytes are 61035.2 MB"),
        ({"ada": {"queued": 0}}, r"\['queued'\] must be a whole number of at least 1"),
        ({"ada": {"running": 1.5}}, r"\['running'\] must be a whole number"),
        ({"ada": {"custom": {"running": 1}}}, "'running', which is a limit of its own"),
        ({"": {"gpu": 1}}, "each owner of owner_limits must be a text"),
        ({str(n): {} for n in range(1_001)}, "1,001 owners, not 1,000"),
    ],
)
def test_wrong_limits_are_refused(limits, error):
    with pytest.raises(InvalidRequestError, match=error):
        parse_owner_limits(limits)


def test_orders_are_known():
    assert parse_owner_order(None) == "none"
    with pytest.raises(InvalidRequestError, match="owner_order is 'fare'; allowed are none, fair"):
        parse_owner_order("fare")
