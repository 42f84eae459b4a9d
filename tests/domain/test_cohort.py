"""Limits of loans, and what users say of them."""

from __future__ import annotations

import pytest

from schedulemesh.domain.cohort import (
    LoanLimit,
    check_limit,
    parse_cohort,
    parse_limit,
    parse_weight,
)
from schedulemesh.domain.resources import NOTHING, parse_resources
from schedulemesh.errors import InvalidRequestError


def amount(**given):
    return parse_resources(given)


@pytest.mark.parametrize(
    ("limit", "used", "room"),
    [
        ({"gpu": 2}, {}, {"cpu": 8, "gpu": 2, "custom": {"x": 3}}),
        ({"gpu": 2}, {"gpu": 1, "cpu": 100}, {"cpu": 8, "gpu": 1, "custom": {"x": 3}}),
        ({"gpu": 2}, {"gpu": 3}, {"cpu": 8, "custom": {"x": 3}}),
        ({"gpu": 0, "cpu": 1}, {}, {"cpu": 1, "custom": {"x": 3}}),
        ({"custom": {"x": 1}}, {}, {"cpu": 8, "gpu": 4, "custom": {"x": 1}}),
        ({"custom": {"x": 0}}, {}, {"cpu": 8, "gpu": 4}),
        (0, {}, {}),
    ],
)
def test_a_limit_leaves_room_kind_by_kind(limit, used, room):
    found = parse_limit(limit, "lending_limit")
    assert found is not None
    check_limit(found, "lending_limit")
    assert found.room(amount(cpu=8, gpu=4, custom={"x": 3}), amount(**used)) == amount(**room)


@pytest.mark.parametrize("given", [None, {}, {"cpu": None}])
def test_nothing_named_is_no_limit(given):
    assert parse_limit(given, "lending_limit") is None


@pytest.mark.parametrize("given", [0, {"gpu": 2.0, "custom": {"x": 0.0}}, {"cpu": 0.0}])
def test_a_limit_is_shown_as_it_was_given(given):
    found = parse_limit(given, "lending_limit")
    assert found is not None
    assert found.public() == given


@pytest.mark.parametrize("given", [1, -1, True, "all", {"gpus": 1}, {"cpu": -1}, [("cpu", 1)]])
def test_other_limits_are_refused(given):
    with pytest.raises(InvalidRequestError, match="lending_limit"):
        parse_limit(given, "lending_limit")


@pytest.mark.parametrize(
    "limit",
    [
        LoanLimit(),
        LoanLimit(named=(("gpu", 1),), nothing=True),
        LoanLimit(named=(("gpu", 1), ("cpu", 1))),
        LoanLimit(named=(("cpu", -1),)),
    ],
)
def test_a_limit_that_nobody_can_ask_for_is_refused(limit):
    with pytest.raises(InvalidRequestError):
        check_limit(limit, "lending_limit")


def test_no_cohort_is_none_or_empty():
    assert (parse_cohort(None), parse_cohort(""), parse_cohort("c")) == (None, None, "c")


@pytest.mark.parametrize("given", [0, -1.0, float("nan"), float("inf"), "2", None])
def test_a_weight_is_a_finite_number_above_zero(given):
    with pytest.raises(InvalidRequestError, match="weight"):
        parse_weight(given)


def test_room_of_nothing_is_nothing():
    assert LoanLimit(named=(("cpu", 1),)).room(NOTHING, NOTHING) == NOTHING
