"""Amounts: exact, and refused where they are wrong."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.domain.resources import NOTHING, UNIT, Resources, bytes_hint, parse_resources
from schedulemesh.errors import InvalidRequestError, ScheduleMeshError

units = st.integers(0, 50_000)
amounts = st.builds(
    Resources,
    cpu=units,
    memory=units,
    gpu=units,
    custom=st.dictionaries(st.sampled_from("xyz"), st.integers(1, 50_000)).map(
        lambda found: tuple(sorted(found.items()))
    ),
)


@pytest.mark.parametrize("memory", [64 * 2**30, 1e8, 16 * 2**50])
def test_memory_that_looks_like_bytes_is_said_to_be(memory):
    if memory > 1e12:
        with pytest.raises(InvalidRequestError, match=r"Memory is given in MB; .* bytes are .* MB"):
            parse_resources({"memory": memory})
    else:
        assert f"{memory:.12g} bytes are" in bytes_hint(parse_resources({"memory": memory}))


def test_memory_of_a_large_machine_is_no_bytes():
    assert bytes_hint(parse_resources({"memory": 24 * 2**20})) == ""


def test_every_key_is_optional():
    assert parse_resources({}) == NOTHING
    assert not NOTHING
    assert parse_resources({"cpu": None, "custom": None}) == NOTHING


def test_amounts_are_stored_in_ten_thousandths():
    found = parse_resources({"cpu": 1.5, "memory": 512, "gpu": 0.25, "custom": {"b": 2, "a": 1}})
    assert (found.cpu, found.memory, found.gpu) == (15_000, 512 * UNIT, 2_500)
    assert found.custom == (("a", UNIT), ("b", 2 * UNIT))


def test_custom_amounts_of_zero_are_left_out():
    assert parse_resources({"custom": {"a": 0}}) == NOTHING


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"cpus": 1}, ["cpus", "cpu, memory"]),
        ({1: 1}, ["unknown key 1"]),
        ({"cpu": -1}, ["cpu", "-1", "at least 0"]),
        ({"cpu": math.nan}, ["cpu", "nan"]),
        ({"memory": math.inf}, ["memory", "inf"]),
        ({"memory": -math.inf}, ["memory", "-inf"]),
        ({"cpu": "2"}, ["cpu", "'2'", "number"]),
        ({"cpu": True}, ["cpu", "True"]),
        ({"cpu": [1]}, ["cpu", "[1]"]),
        ({"cpu": 0.00001}, ["cpu", "1e-05", "0.0001"]),
        ({"gpu": 1.5}, ["gpu", "1.5", "whole"]),
        ({"gpu": 2.0001}, ["gpu", "2.0001"]),
        ({"gpu": -0.5}, ["gpu", "-0.5"]),
        ({"custom": 3}, ["custom", "3"]),
        ({"custom": {"a": -2}}, ["custom", "a", "-2"]),
        ({"custom": {"": 2}}, ["custom", "''"]),
        ({"custom": {3: 2}}, ["custom", "3"]),
        ({"custom": {"GPU": 2}}, ["custom", "GPU"]),
        ({"custom": {"cpu": 2}}, ["custom", "cpu"]),
        ({"custom": {"a": math.nan}}, ["custom", "a", "nan"]),
        ("cpu=1", ["dict", "cpu=1"]),
        (None, ["dict", "None"]),
    ],
)
def test_an_invalid_amount_is_refused_with_key_and_value(given_, words):
    with pytest.raises(InvalidRequestError) as caught:
        parse_resources(given_)
    for word in words:
        assert word in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ScheduleMeshError)


def test_a_refusal_names_the_argument():
    with pytest.raises(InvalidRequestError, match="the pool's"):
        parse_resources({"cpu": -1}, "the pool's resources")


@pytest.mark.parametrize("gpu", [0, 0.0001, 0.5, 1, 1.0, 2, 8.0])
def test_gpus_are_a_fraction_of_one_or_whole(gpu):
    assert parse_resources({"gpu": gpu}).gpu == round(gpu * UNIT)


def test_many_additions_of_a_tenth_drift_by_nothing():
    tenth = parse_resources({"cpu": 0.1, "gpu": 0.1, "memory": 0.1, "custom": {"x": 0.1}})
    total = NOTHING
    for _ in range(20_000):
        total = total + tenth
    assert total.cpu == total.gpu == total.memory == 2000 * UNIT
    for _ in range(20_000):
        total = total - tenth
    assert total == NOTHING


@given(amounts, amounts)
def test_a_sum_less_one_part_is_the_other(left, right):
    assert left + right - right == left
    assert left.fits(left + right)


@given(amounts, amounts)
def test_the_covered_and_the_missing_part_add_up(need, room):
    assert need.within(room) + need.beyond(room) == need
    assert need.within(room).fits(room)
    assert need.fits(room) is (not need.beyond(room))


@given(amounts, amounts)
def test_freed_resources_help_where_the_same_kind_is_short(frees, short):
    kinds = {kind for kind, _ in frees.items()} & {kind for kind, _ in short.items()}
    assert frees.helps(short) is bool(kinds)


@given(amounts)
def test_the_public_form_round_trips(amount):
    shown = amount.public()
    assert 0 not in shown.values()
    if not (amount.gpu > UNIT and amount.gpu % UNIT):
        assert parse_resources(shown) == amount


def test_a_debt_is_negative_and_never_covered():
    owed = NOTHING - parse_resources({"cpu": 1, "custom": {"x": 1}})
    assert owed.negative()
    assert not NOTHING.negative()
    assert (NOTHING - parse_resources({"custom": {"x": 1}})).negative()
    assert parse_resources({"cpu": 5}).within(owed) == NOTHING
    assert NOTHING.fits(owed)


def test_a_resource_that_is_not_requested_is_never_short():
    overdrawn = NOTHING - parse_resources({"cpu": 1, "memory": 1, "gpu": 1, "custom": {"x": 1}})
    assert NOTHING.beyond(overdrawn) == NOTHING
    assert parse_resources({"custom": {"y": 1}}).beyond(overdrawn) == parse_resources(
        {"custom": {"y": 1}}
    )
    assert parse_resources({"cpu": 1}).beyond(overdrawn) == parse_resources({"cpu": 2})


def test_resources_are_printed_readably():
    assert str(parse_resources({"cpu": 2, "memory": 512, "custom": {"x": 0.5}})) == (
        "cpu 2, memory 512 MB, x 0.5"
    )
    assert str(NOTHING) == "nothing"


@pytest.mark.parametrize(
    ("need", "room", "count"),
    [
        ({"cpu": 0.3}, {"cpu": 1}, 3),
        ({"cpu": 0.3}, {"memory": 1}, 0),
        ({"cpu": 1, "memory": 3}, {"cpu": 9, "memory": 8}, 2),
        ({"custom": {"a": 1}}, {"custom": {"a": 2.5, "b": 1}}, 2),
        ({"custom": {"a": 1}}, {"cpu": 1}, 0),
        ({"cpu": 0.01}, {"cpu": 100}, 7),
        ({"gpu": 1}, {}, 7),
        ({}, {}, 7),
    ],
)
def test_how_many_have_room_together(need, room, count):
    assert parse_resources(need).count_in(parse_resources(room), 7) == count


def test_nothing_has_room_in_less_than_nothing():
    missing = parse_resources({}) - parse_resources({"cpu": 1})
    assert parse_resources({"cpu": 1}).count_in(missing, 7) == 0
