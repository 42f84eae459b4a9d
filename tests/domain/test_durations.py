"""Durations and sizes have one syntax on every surface: numbers, ``30m``, ``64GB``."""

from __future__ import annotations

import math

import pytest

from schedulemesh.config.policy import PreemptionPolicy, changed_policy
from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.domain.numbers import parse_duration, parse_timeout, span_of
from schedulemesh.domain.task import parse_task
from schedulemesh.domain.tokens import parse_lifetime
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.times import parse_time


@pytest.mark.parametrize("parse", [parse_duration, parse_timeout])
@pytest.mark.parametrize(
    ("given", "seconds"),
    [("90s", 90), ("30m", 1800), ("1h30m", 5400), (" 7d ", 604_800), ("2w", 1_209_600), (5, 5)],
)
def test_a_duration_is_a_number_of_seconds_or_a_text_with_units(parse, given, seconds):
    assert parse(given, "x") == seconds


@pytest.mark.parametrize("parse", [parse_duration, parse_timeout])
@pytest.mark.parametrize(
    "given", ["", "soon", "30", "5y", "-3h", "1h 1", "1" * 40 + "h", "\u0663d"]
)
def test_another_text_is_refused_with_the_forms(parse, given):
    with pytest.raises(InvalidRequestError, match=r"x is .*; allowed are seconds.*'30m'"):
        parse(given, "x")


@pytest.mark.parametrize("given", [-1, math.nan, None, [], True])
def test_what_is_neither_number_nor_text_is_refused(given):
    for parse in (parse_duration, parse_timeout):
        with pytest.raises(InvalidRequestError):
            parse(given, "x")


def test_a_time_limit_is_above_zero():
    with pytest.raises(InvalidRequestError, match=r"seconds above 0.*or a duration"):
        parse_timeout("0s", "x")
    assert parse_duration("0s") == span_of("0s") == 0.0


def test_policies_take_durations():
    policy = changed_policy(PreemptionPolicy(), {"min_runtime": "2h", "save_timeout": "1m30s"})
    assert (policy.min_runtime, policy.save_timeout) == (7200.0, 90.0)
    assert changed_policy(policy, {"usage_half_life_s": "7d"}).usage_half_life_s == 604_800.0
    assert QueuePolicy(promote_after_s="1h").promote_after_s == 3600.0
    for field in ("min_runtime", "save_timeout", "usage_half_life_s"):
        with pytest.raises(InvalidRequestError, match=rf"{field} is 'long'; allowed are seconds"):
            changed_policy(policy, {field: "long"})


def test_tasks_and_tokens_take_durations_and_sizes():
    grow = {"on_oom": "grow", "max_retries": 1}
    task = parse_task(
        {"task_id": "t", "estimated_duration": "30m", "oom_max_memory": "64GB", **grow}
    )
    assert (task.estimated_duration, task.oom_max_memory) == (1800.0, 65_536.0)
    assert parse_lifetime("12h") == 43_200.0


@pytest.mark.parametrize("text", ["1700000000", "1700000000.5", " 1700000000 "])
def test_a_long_number_is_seconds_since_1970(text):
    assert parse_time(text, "since") == float(text)


def test_a_number_of_eight_digits_is_no_time():
    with pytest.raises(InvalidRequestError, match="since is '17000000'"):
        parse_time("17000000", "since")
