"""Values are what their own type is, not what they claim to be."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from unittest import mock

import pytest

from schedulemesh.domain.containers import as_elements, as_items, plain_data
from schedulemesh.domain.kinds import is_a, is_list, without_enum
from schedulemesh.domain.labels import parse_selector
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import as_number, parse_flag
from schedulemesh.errors import InvalidRequestError


class Tier(enum.Enum):
    GOLD = "gold"


def claiming(kind):
    class Claiming:
        @property
        def __class__(self):
            return kind

    return Claiming()


@pytest.mark.parametrize("made", [claiming, mock.MagicMock])
@pytest.mark.parametrize("kind", [str, bool, int, float, dict, list, tuple, Mapping, Tier])
def test_a_faked_class_attribute_is_ignored(made, kind):
    given = made(kind)
    assert isinstance(given, kind)
    assert not is_a(given, kind)
    assert not is_list(given)
    assert without_enum(given) is given
    assert as_text(given) is None
    assert as_number(given) is None
    for parse in (parse_name, parse_flag, plain_data):
        with pytest.raises(InvalidRequestError, match="the value"):
            parse(given, "the value")
    for read in (as_items, as_elements):
        with pytest.raises(InvalidRequestError, match="the value must be something else"):
            read(given, "the value", "something else")
    with pytest.raises(InvalidRequestError, match="pool_selector"):
        parse_selector({"key": given})


def test_a_member_of_an_enum_gives_its_value():
    assert without_enum(Tier.GOLD) == "gold"
