"""Arrays as they are written, and sets of indices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.domain.arrays import (
    Indices,
    array_form,
    check_array_id,
    members_named,
    parse_array,
    parse_indices,
)
from schedulemesh.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("value", "indices", "most"),
    [
        ("0-3", [0, 1, 2, 3], 0),
        ("0-10:5", [0, 5, 10], 0),
        ("0-11:5%2", [0, 5, 10], 2),
        ("1,4,7-9", [1, 4, 7, 8, 9], 0),
        ("0-6:3,1-7:3", [0, 1, 3, 4, 6, 7], 0),
        ("5 , 3", [3, 5], 0),
        (3, [0, 1, 2], 0),
        ("7", [7], 0),
    ],
)
def test_what_is_written_stands_for_these_indices(value, indices, most):
    form = array_form(parse_array(value))
    assert list(form.indices()) == indices
    assert (form.size, form.most, form.ends) == (len(indices), most, (indices[0], indices[-1]))
    assert [index for index in range(-1, 20) if form.has(index)] == indices


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "indices are written as 0-99"),
        ("a-b", "indices are written as 0-99"),
        ("-1", "indices are written as 0-99"),
        ("٣", "indices are written as 0-99"),
        (True, "array is True"),
        (None, "array is None"),
        ("3-1", "no range"),
        ("0-9:0", "no range"),
        ("0-9999999999", "no range"),
        ("0-5,4", "twice"),
        ("0-6:3,3-9:3", "twice"),
        ("0-9%0", "from 1"),
        ("0-9%", "from 1"),
        ("0-9%x", "from 1"),
        ("0-100000", "up to 100,000"),
        (100_001, "1 to 100,000"),
        (0, "1 to 100,000"),
        (",".join(map(str, range(5000))), "up to 20,000"),
    ],
)
def test_what_stands_for_no_indices_is_refused_with_the_form(value, words):
    with pytest.raises(InvalidRequestError, match=words):
        parse_array(value)


def test_the_id_of_an_array_leaves_room_for_its_members():
    check_array_id("a" * 200)
    with pytest.raises(InvalidRequestError, match="up to 241"):
        check_array_id("a" * 250)


@pytest.mark.parametrize(
    ("task_id", "named"),
    [
        ("train[3]", ("train", "3")),
        ("a[1][3-7,9]", ("a[1]", "3-7,9")),
        ("train", None),
        ("[3]", None),
        ("train[x]", None),
        ("train[3", None),
    ],
)
def test_members_are_named_by_indices_in_brackets(task_id, named):
    assert members_named(task_id) == named


changes = st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 6)), max_size=30)


@given(changes, st.integers(0, 30), st.integers(0, 9))
def test_a_set_of_indices_is_as_a_set_of_numbers(made, first, length):
    indices, numbers = Indices(), set()
    for adds, begin, size in made:
        span = range(begin, begin + size + 1)
        if adds:
            indices.add_range(begin, begin + size)
            numbers |= {*span}
        else:
            indices.discard_range(begin, begin + size)
            numbers -= {*span}
        assert [*indices] == sorted(numbers)
        assert (len(indices), bool(indices)) == (len(numbers), bool(numbers))
    assert [index for index in range(40) if index in indices] == sorted(numbers)
    others = Indices([(first, first + length)])
    assert [*indices.within(others)] == sorted(numbers & {*others})
    assert [*indices.without(others)] == sorted(numbers - {*others})
    assert [*others.without(indices)] == sorted({*others} - numbers)
    assert [*indices.joined_with(others)] == sorted(numbers | {*others})
    assert indices.copy() == indices
    if numbers:
        assert parse_indices(indices.written()) == indices
        assert (indices.first, indices.last) == (min(numbers), max(numbers))


def test_a_text_of_many_ranges_is_cut_short():
    assert Indices([(0, 3), (5, 5), (7, 9)]).written(2) == "0-3,5,…"
