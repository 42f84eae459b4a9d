"""Budgets as people write them."""

from __future__ import annotations

import pytest

from schedulemesh.domain.budgets import (
    check_budget,
    check_owner_budgets,
    local_time,
    offset_text,
    parse_budget,
    parse_offset,
    parse_owner_budgets,
    public_budget,
    public_owner_budgets,
)
from schedulemesh.errors import InvalidRequestError


def test_a_budget_is_shown_whole_and_parsed_again_as_it_is_shown():
    budget = parse_budget({"gpu_hours": 5})
    shown = public_budget(budget)
    assert shown == {
        "gpu_hours": 5.0,
        "period": "month",
        "then": "hold",
        "priority": 0.1,
        "utc_offset": "+00:00",
    }
    assert parse_budget(shown) == budget
    check_budget(budget)
    assert parse_budget(None) is None


def test_those_of_owners_are_shown_as_they_are_given():
    given = {"default": {"gpu_hours": 10.0}, "ada": {"period": "day"}, "ben": {"gpu_hours": None}}
    budgets = parse_owner_budgets({**given, "cid": None})
    assert public_owner_budgets(budgets) == given
    assert parse_owner_budgets(public_owner_budgets(budgets)) == budgets
    check_owner_budgets(budgets)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "budget must be a dict such as"),
        ({}, "budget names no gpu_hours"),
        ({"gpu_hours": None}, "budget names no gpu_hours"),
        ({"gpu_hours": 0}, r"budget\['gpu_hours'\] is 0; it must be above 0"),
        ({"gpu_hours": 1, "period": "year"}, "is 'year'; allowed are day, week, month"),
        ({"gpu_hours": 1, "utc_offset": "Asia/Shanghai"}, "it must be the difference to UTC"),
        ({"gpu_hours": 1, "utc_offset": "+15:00"}, "it must be the difference to UTC"),
        ({"gpu_hourss": 1}, "has the unknown key 'gpu_hourss'; allowed are gpu_hours, period"),
    ],
)
def test_what_is_wrong_is_named(value, message):
    with pytest.raises(InvalidRequestError, match=message):
        parse_budget(value)


@pytest.mark.parametrize(
    ("text", "minutes"), [("+08:00", 480), ("-03:30", -210), (600, 600), ("+00:00", 0)]
)
def test_offsets(text, minutes):
    assert parse_offset(text) == minutes
    assert parse_offset(offset_text(minutes)) == minutes


def test_times_are_those_of_the_budgets_clock():
    assert local_time(0.0, parse_budget({"gpu_hours": 1})) == "1970-01-01 00:00 UTC"
    shanghai = parse_budget({"gpu_hours": 1, "utc_offset": "+08:00"})
    assert local_time(16 * 3600.0, shanghai) == "1970-01-02 00:00 +08:00"
