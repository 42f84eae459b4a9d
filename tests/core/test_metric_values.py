"""Metrics as plain values, whatever user code reports."""

from __future__ import annotations

import enum
import math
import time
from collections import OrderedDict, UserDict

import numpy as np
import pytest

from schedulemesh.protocol.metric_values import decode_metrics, encode_metrics


class Phase(str, enum.Enum):
    WARM = "warm"


class Text(str):
    __slots__ = ()


class Hostile:
    def __str__(self):
        raise RuntimeError("not shown")


def there_and_back(value):
    return decode_metrics(encode_metrics({"v": value}))["v"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (1, 1),
        (True, True),
        (None, None),
        (0.5, 0.5),
        ("schön", "schön"),
        ([1, [2.0, "x"]], [1, [2.0, "x"]]),
        ({"a": {"b": [1, {"c": None}]}}, {"a": {"b": [1, {"c": None}]}}),
        ((1, 2), [1, 2]),
        ({3}, [3]),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        (2**70, float(2**70)),
        (-(10**400), -math.inf),
        ("\udcff", "\\udcff"),
        ({"\udcff": 1}, {"\\udcff": 1}),
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.array(3), 3),
        (np.array([1.5, 2.5]), [1.5, 2.5]),
        (np.zeros((100, 100)), "ndarray of shape (100, 100)"),
        (Phase.WARM, "warm"),
        (Text("x"), "x"),
        (OrderedDict(a=np.int8(1)), {"a": 1}),
        (UserDict(a=1), {"a": 1}),
        (object, "<class 'object'>"),
        (Hostile(), "a Hostile that cannot be shown"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_is_reported_arrives_as_a_plain_value(given, kept):
    found = there_and_back(given)
    assert found == kept
    assert type(found) is type(kept)


def test_no_number_is_lost():
    assert math.isnan(there_and_back(math.nan))
    assert there_and_back(np.float64(math.inf)) == math.inf


def test_what_is_nested_without_end_is_cut():
    endless = []
    endless.append(endless)
    assert "..." in str(there_and_back(endless))


def test_a_report_costs_the_caller_microseconds():
    metrics = {"step": 7, "loss": 0.25, "progress": 0.5, "lr": 1e-4, "phase": "train"}
    best = math.inf
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(200):
            encode_metrics(metrics)
        best = min(best, (time.perf_counter() - began) / 200)
    assert best < 20e-6
