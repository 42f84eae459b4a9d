"""The policy: validated, changed field by field, and levels that stand for thresholds."""

from __future__ import annotations

import logging
import math

import pytest

from schedulemesh.config.policy import (
    PreemptionAggressiveness,
    PreemptionPolicy,
    changed_policy,
    parse_aggressiveness,
    resolve_changes,
)
from schedulemesh.errors import InvalidRequestError, ScheduleMeshError


def test_the_defaults_are_the_documented_ones():
    assert PreemptionPolicy().public() == {
        "same_pool_priority_threshold": 1.0,
        "cross_pool_priority_threshold": 5.0,
        "remaining_time_weight": 0.1,
        "min_preempt_score": 0.5,
        "victim_order": "score",
        "enable_cross_pool_preemption": True,
        "protected_pools": [],
        "label_preemption_rules": {},
        "label_priority_threshold": 0.5,
        "enable_label_preemption": True,
        "label_dominance_protects": True,
        "cancel_timeout": 5.0,
        "save_timeout": 30.0,
        "start_timeout": 120.0,
        "preemption_grace_s": 0.0,
        "min_runtime": 0.0,
        "max_preemptions": 5,
        "preemption_cooldown": 0.0,
        "lost_work_budget": 0.0,
        "usage_half_life_s": 86400.0,
        "idle_gpu_percent": 0.0,
        "reclaim_unsavable": True,
        "defragment_after_s": 0.0,
        "idle_gpu_s": 600.0,
        "measured_progress": False,
        "over_claim": "warn",
        "over_claim_s": 60.0,
        "evict_despite_external_demand": False,
        "allow_exec": False,
        "topology_levels": [],
        "priority_classes": {},
        "links": {},
    }


@pytest.mark.parametrize(
    "name",
    [
        "same_pool_priority_threshold",
        "cross_pool_priority_threshold",
        "label_priority_threshold",
        "cancel_timeout",
        "save_timeout",
        "start_timeout",
    ],
)
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "1", True, None])
def test_thresholds_and_timeouts_must_be_above_zero(name, value):
    with pytest.raises(InvalidRequestError, match=name):
        PreemptionPolicy(**{name: value})


@pytest.mark.parametrize(
    "name",
    [
        "remaining_time_weight",
        "preemption_grace_s",
        "usage_half_life_s",
        "min_runtime",
        "preemption_cooldown",
        "lost_work_budget",
    ],
)
def test_weight_and_limits_may_be_zero_but_not_less(name):
    assert getattr(PreemptionPolicy(**{name: 0}), name) == 0
    with pytest.raises(InvalidRequestError, match=name):
        PreemptionPolicy(**{name: -0.1})


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "5"])
def test_preemptions_are_limited_to_a_whole_number_of_at_least_one(value):
    assert PreemptionPolicy(max_preemptions=1).max_preemptions == 1
    with pytest.raises(InvalidRequestError, match="max_preemptions"):
        PreemptionPolicy(max_preemptions=value)


def test_the_least_score_may_be_any_finite_number():
    assert PreemptionPolicy(min_preempt_score=-3).min_preempt_score == -3
    with pytest.raises(InvalidRequestError, match="min_preempt_score"):
        PreemptionPolicy(min_preempt_score=math.nan)


@pytest.mark.parametrize(
    "name", ["enable_cross_pool_preemption", "enable_label_preemption", "label_dominance_protects"]
)
@pytest.mark.parametrize("value", [1, "yes", None])
def test_switches_are_true_or_false(name, value):
    with pytest.raises(InvalidRequestError, match=name):
        PreemptionPolicy(**{name: value})


def test_an_error_is_a_value_error_and_one_of_ours():
    with pytest.raises(ValueError, match="above 0") as caught:
        PreemptionPolicy(cancel_timeout=0)
    assert isinstance(caught.value, ScheduleMeshError)


def test_protected_pools_are_a_set_of_names():
    assert PreemptionPolicy(protected_pools=["b", "a", "b"]).protected_pools == ("a", "b")
    assert PreemptionPolicy(protected_pools={"b", "a"}).protected_pools == ("a", "b")
    for wrong in ("a", [1], None):
        with pytest.raises(InvalidRequestError, match="protected_pools"):
            PreemptionPolicy(protected_pools=wrong)


def test_a_pool_is_protected_if_it_is_named():
    policy = PreemptionPolicy(protected_pools=("b", "d", "a"))
    assert [name for name in ("", "a", "aa", "b", "c", "d", "e") if policy.protects(name)] == [
        "a",
        "b",
        "d",
    ]
    assert not PreemptionPolicy().protects("a")


def test_label_rules_are_lists_of_lower_values():
    policy = PreemptionPolicy(label_preemption_rules={"tier": {"gold": ["iron"], "iron": ()}})
    assert policy.label_preemption_rules == {"tier": {"gold": ("iron",), "iron": ()}}
    assert policy.public()["label_preemption_rules"] == {"tier": {"gold": ["iron"], "iron": []}}
    assert PreemptionPolicy(
        label_preemption_rules={"tier": {"gold": {"b", "a"}}}
    ).label_preemption_rules == {"tier": {"gold": ("a", "b")}}


@pytest.mark.parametrize(
    "rules",
    [
        [],
        {"tier": ["gold"]},
        {"tier": {"gold": "iron"}},
        {"tier": {"gold": [1]}},
        {"tier": {1: ["iron"]}},
        {1: {"gold": ["iron"]}},
    ],
)
def test_a_malformed_rule_is_refused(rules):
    with pytest.raises(InvalidRequestError, match="label_preemption_rules"):
        PreemptionPolicy(label_preemption_rules=rules)


@pytest.mark.parametrize(
    ("rules", "chain"),
    [
        ({"a": ["a"]}, "a > a"),
        ({"a": ["b"], "b": ["a"]}, "a > b > a"),
        ({"x": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]}, "a > b > c > a"),
    ],
)
def test_cycles_are_refused_and_shown(rules, chain):
    with pytest.raises(InvalidRequestError, match="cycle") as caught:
        PreemptionPolicy(label_preemption_rules={"tier": rules})
    assert chain in str(caught.value)


def test_two_ways_down_are_no_cycle():
    PreemptionPolicy(
        label_preemption_rules={"tier": {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}}
    )


def test_the_same_value_under_two_keys_is_no_cycle():
    PreemptionPolicy(label_preemption_rules={"k": {"a": ["b"]}, "m": {"b": ["a"]}})


def test_an_update_changes_only_the_given_fields():
    policy = PreemptionPolicy(protected_pools=("q",))
    changed = changed_policy(policy, {"min_preempt_score": 2.0})
    assert changed.min_preempt_score == 2.0
    assert changed.protected_pools == ("q",)
    assert policy.min_preempt_score == 0.5


def test_an_unknown_field_is_named_with_the_known_ones():
    with pytest.raises(InvalidRequestError, match=r"'threshold'.*same_pool_priority_threshold"):
        changed_policy(PreemptionPolicy(), {"threshold": 1})
    with pytest.raises(InvalidRequestError, match="above 0"):
        changed_policy(PreemptionPolicy(), {"cancel_timeout": 0})


@pytest.mark.parametrize(
    ("given", "level"),
    [
        (PreemptionAggressiveness.LOW, PreemptionAggressiveness.LOW),
        ("HIGH", PreemptionAggressiveness.HIGH),
        (" urgent ", PreemptionAggressiveness.HIGH),
        ("Critical", PreemptionAggressiveness.HIGH),
        ("prod", PreemptionAggressiveness.HIGH),
        ("medium", PreemptionAggressiveness.MEDIUM),
        ("Default", PreemptionAggressiveness.MEDIUM),
        ("normal", PreemptionAggressiveness.MEDIUM),
        ("low", PreemptionAggressiveness.LOW),
        ("BACKGROUND", PreemptionAggressiveness.LOW),
        ("batch", PreemptionAggressiveness.LOW),
        (None, None),
    ],
)
def test_levels_are_found_by_name_and_alias_in_any_case(given, level):
    assert parse_aggressiveness(given, {}) is level


@pytest.mark.parametrize(
    ("level", "label", "same"), [("high", 0.1, 0.5), ("medium", 0.5, 1.0), ("low", 1.0, 3.0)]
)
def test_a_level_sets_the_label_and_the_same_pool_threshold(level, label, same):
    changes, named = resolve_changes({"preemption_aggressiveness": level}, {})
    assert changes == {"label_priority_threshold": label, "same_pool_priority_threshold": same}
    assert named == level


def test_an_explicit_threshold_in_the_same_call_wins():
    changes, _ = resolve_changes(
        {
            "preemption_aggressiveness": "high",
            "same_pool_priority_threshold": 2.5,
            "min_preempt_score": None,
        },
        {},
    )
    assert changes == {"label_priority_threshold": 0.1, "same_pool_priority_threshold": 2.5}


def test_an_unknown_level_is_refused_with_the_accepted_ones():
    for wrong in ("extreme", 3, ["high"]):
        with pytest.raises(InvalidRequestError, match=r"urgent.*env:NAME"):
            parse_aggressiveness(wrong, {})


def test_the_environment_may_name_the_level(caplog):
    caplog.set_level(logging.INFO)
    assert parse_aggressiveness("env:LEVEL", {"LEVEL": "Urgent"}) is PreemptionAggressiveness.HIGH
    assert parse_aggressiveness("ENV: LEVEL ", {"LEVEL": "low"}) is PreemptionAggressiveness.LOW
    assert "HIGH" in caplog.text
    assert "LEVEL" in caplog.text


@pytest.mark.parametrize("environ", [{}, {"LEVEL": "extreme"}, {"LEVEL": ""}])
def test_a_missing_or_bad_variable_warns_and_changes_nothing(environ, caplog):
    caplog.set_level(logging.WARNING)
    assert resolve_changes({"preemption_aggressiveness": "env:LEVEL"}, environ) == ({}, None)
    assert "LEVEL" in caplog.text


def test_what_was_resolved_is_logged(caplog):
    caplog.set_level(logging.INFO)
    parse_aggressiveness("batch", {})
    assert "LOW" in caplog.text
