"""Values as callers give them: right, clumsy and hostile."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np


class Name(str):  # noqa: SLOT000  # as users write it
    """A text of a class of the job's own."""


class Spy(str):  # noqa: SLOT000  # as users write it
    """A text that says another thing whenever it is asked."""

    def __str__(self):
        raise RuntimeError("str")

    def __eq__(self, other):
        raise RuntimeError("eq")

    def __hash__(self):
        return 7

    def __len__(self):
        return -1  # noqa: PLE0303  # that is the point


class Tier(str, enum.Enum):
    GOLD = "gold"
    BROKEN = "a\nb"


class Rank(enum.IntEnum):
    HIGH = 9


class Word(enum.Enum):
    TEXT = "plain"
    NUMBER = 3.5
    LIST = ("a", "b")


class Heavy(float):
    def __float__(self):
        raise RuntimeError("float")


class Whole(int):
    def __index__(self):
        raise RuntimeError("index")


class Silent:
    """Nothing can be asked of it."""

    def __repr__(self):
        raise RuntimeError("repr")

    def __bool__(self):
        raise RuntimeError("bool")

    def __eq__(self, other):
        raise RuntimeError("eq")

    __hash__ = None

    def __reduce__(self):
        raise RuntimeError("reduce")


class Torn(Mapping):
    """A mapping that breaks when it is read."""

    def __getitem__(self, key):
        raise RuntimeError("getitem")

    def __iter__(self) -> Iterator[str]:
        return iter(["cpu"])

    def __len__(self):
        return 1


class Loud(dict):
    def items(self):
        raise RuntimeError("items")


class Unlisted(list):
    def __iter__(self):
        raise RuntimeError("iter")


def claiming(kind: type) -> Any:
    """An object that claims to be of a class, as mocks do."""

    class Claiming:
        @property
        def __class__(self):
            return kind

    return Claiming()


def deep(levels: int) -> list:
    """Lists within lists."""
    found: list = []
    for _ in range(levels):
        found = [found]
    return found


HOSTILE: tuple[Any, ...] = (
    None,
    "",
    " ",
    "a\nb",
    "a\x00b",
    "\udcff",
    "x" * 253,
    "x" * 254,
    "x" * 1_000_000,
    "名" * 253,
    "🙂",
    "gold",
    Name("name"),
    Spy("spy"),
    Tier.GOLD,
    Tier.BROKEN,
    Rank.HIGH,
    *Word,
    np.str_("numpy"),
    np.float64(3.5),
    np.float32("nan"),
    np.int64(3),
    np.bool_(True),
    np.array([1, 2]),
    np.array("text"),
    Heavy(1.0),
    Whole(3),
    True,
    False,
    0,
    -1,
    1,
    4711,
    2**31,
    2**63,
    2**64,
    10**400,
    -(10**400),
    10**5000,
    -0.0,
    0.5,
    1.5,
    1e-9,
    1e9,
    1e10,
    1e17,
    1e300,
    -1.8e308,
    1.7976931348623157e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    complex(1, 2),
    decimal.Decimal("1.5"),
    fractions.Fraction(1, 3),
    b"bytes",
    bytearray(b"bytes"),
    [],
    ["x"],
    ("x", "y"),
    [None],
    [["x"]],
    {"x"},
    {},
    {"a": 1},
    {"a": "b"},
    {1: 2},
    {"": ""},
    {"a": {"b": {"c": []}}},
    {"\udcff": "\udcff"},
    {f"k{i}": "v" * 250 for i in range(300)},
    {"CPU": 1},
    {"cpu": 10**400},
    {"cpu": float("nan")},
    {"cpu": "two"},
    {"cpu": Rank.HIGH},
    {"gpu": 1.5},
    {"custom": {"a": 1e300}},
    {"custom": {f"c{i}": 1 for i in range(2_000)}},
    {"bundles": [{}]},
    {"in": ["a"]},
    {"warm": {"actor_class": 3}},
    {"task_id": "t", "priority": float("inf")},
    {"task_id": ["t"]},
    [{"cpu": 1e12}, {"cpu": 1e12}],
    [{"cpu": 1}] * 2_000,
    deep(100),
    deep(5_000),
    Torn(),
    Loud(cpu=1),
    Unlisted(["x"]),
    Silent(),
    *(claiming(kind) for kind in (str, bool, int, float, dict, list, set, type, Rank)),
    *(mock.MagicMock(spec=kind) for kind in (str, bool, float, dict, list)),
    mock.MagicMock(),
    object(),
    object,
    len,
    dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc),
    range(3),
    Ellipsis,
)


@dataclasses.dataclass(frozen=True)
class Values:
    """Picks values by chance; the same seed picks the same."""

    chance: random.Random
    #: Of how many values one is hostile.
    clumsy: float = 0.15

    def of(self, kind: Callable[[random.Random], Any]) -> Any:
        """A right value of a kind, or another one; of a dict's values, too."""
        if self.chance.random() < self.clumsy:
            return self.chance.choice(HOSTILE)
        value = kind(self.chance)
        if isinstance(value, dict) and value and self.chance.random() < self.clumsy:
            key = self.chance.choice(list(value))
            return {**value, key: self.chance.choice(HOSTILE)}
        return value
