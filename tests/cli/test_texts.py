"""Durations and times, as they are read and written."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from schedulemesh.cli.texts import amounts, duration, moment, remaining
from schedulemesh.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0s"),
        (59.9, "59s"),
        (187.0, "3m07s"),
        (18720.0, "5h12m"),
        (187200.0, "2d04h"),
        (None, "-"),
    ],
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_a_task_that_is_not_known_to_end_has_no_time_left_to_show():
    assert (remaining(0.0), remaining(None), remaining(90.0)) == ("-", "-", "1m30s")


def test_amounts_are_written_without_idle_digits():
    given = {"cpu": 1.0, "memory": 10_485_760.0, "custom": {"加速器": 0.5}}
    assert amounts(given) == "cpu 1, memory 10240 GB, 加速器 0.5"
    assert amounts({}) == amounts(None) == "-"


@pytest.mark.parametrize(
    ("given", "ago"),
    [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("7 d", 604_800), ("2w", 1209600)],
)
def test_a_moment_is_so_long_ago(given, ago):
    assert moment(given, now=2_000_000.0) == 2_000_000.0 - ago


def test_a_moment_is_a_date():
    assert (
        moment("2026-03-01T12:30:00+00:00")
        == datetime(2026, 3, 1, 12, 30, tzinfo=timezone.utc).timestamp()
    )
    assert moment("2026-03-01") == datetime(2026, 3, 1).astimezone().timestamp()


@pytest.mark.parametrize("given", ["", "yesterday", "5y", "-3h", "2026-13-01"])
def test_what_is_no_moment_is_refused(given):
    with pytest.raises(InvalidRequestError, match="allowed are a duration"):
        moment(given)
