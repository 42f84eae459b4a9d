"""Priority classes."""

from __future__ import annotations

import pytest

from schedulemesh.domain.numbers import parse_priority
from schedulemesh.domain.priorities import PRIORITY_CLASSES, class_of
from schedulemesh.errors import InvalidRequestError


def test_a_class_is_accepted_where_a_number_is():
    assert [parse_priority(name) for name in PRIORITY_CLASSES] == [10.0, 5.0, 1.0, 0.5, 0.1]
    assert parse_priority(2.5) == 2.5


def test_only_exactly_its_priority_is_of_a_class():
    assert [class_of(p) for p in (10.0, 5.0, 5.1)] == ["critical", "high", None]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "hihg",
            "priority is 'hihg' (did you mean 'high'?); allowed are a number, and the classes ",
        ),
        ("5", "priority is '5'; allowed are a number, and the classes critical (10), high (5), "),
    ],
)
def test_another_word_is_refused_with_the_nearest_class(word, message):
    with pytest.raises(InvalidRequestError) as caught:
        parse_priority(word)
    assert str(caught.value).startswith(message)
