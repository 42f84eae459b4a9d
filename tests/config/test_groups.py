"""What a user says of a pool's placement groups."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.config.groups import NO_LIMIT, parse_bundles, parse_groups, public_groups
from schedulemesh.config.pools import changed, parse_pool
from schedulemesh.domain.labels import parse_selector
from schedulemesh.domain.placement import GroupShape, WarmSpec
from schedulemesh.domain.resources import parse_resources, sum_of
from schedulemesh.errors import InvalidRequestError

CPU2 = parse_resources({"cpu": 2.0, "memory": 2048.0})


def groups(strategy="STRICT_PACK", **config):
    return parse_groups({"enable": True, **config}, strategy)


@pytest.mark.parametrize(
    "given", [None, {}, {"enable": False}, {"enable": None, "max_dynamic_pgs": 1}]
)
def test_a_pool_has_no_groups_by_default(given):
    assert parse_groups(given, "PACK") is None


def test_the_defaults_are_the_documented_ones():
    spec = groups("SPREAD")
    assert (spec.reserved, spec.dynamic, spec.max_dynamic) == ((), True, NO_LIMIT)
    assert (spec.reuse, spec.strategy, spec.node_labels) == (True, "SPREAD", {})
    assert (spec.entitled_above, spec.entitled_labels, spec.warm) == (5.0, (), None)
    assert (spec.fill_target, spec.autoscale) == (False, False)
    assert parse_groups({"max_dynamic_pgs": 3}, "PACK").max_dynamic == 3, (
        "enable goes without saying"
    )


def test_the_documented_pool():
    spec = parse_pool(
        "rlhf-pg-pool",
        None,
        {"cpu": 6.0, "memory": 8192.0},
        pg_pool_config={
            "enable": True,
            "high_priority_pg_specs": [{"cpu": 2.0, "memory": 2048.0}] * 2,
            "enable_dynamic_pgs": True,
            "max_dynamic_pgs": 2,
            "enable_pg_reuse": True,
        },
    ).groups
    assert spec.reserved == (GroupShape(bundles=(CPU2,)),) * 2
    assert (spec.dynamic, spec.max_dynamic, spec.reuse) == (True, 2, True)


def test_a_spec_may_have_several_bundles_a_strategy_and_labels():
    spec = groups(
        placement_strategy="PACK",
        bundle_label_selector={"zone": "a"},
        high_priority_pg_specs=[
            {"cpu": 1.0},
            {
                "bundles": [{"cpu": 1.0}, {"gpu": 2}],
                "placement_strategy": "STRICT_SPREAD",
                "bundle_label_selector": {"disk": "fast"},
            },
        ],
    )
    one, two = spec.reserved
    assert (one.strategy, one.node_labels) == ("PACK", (("zone", "a"),))
    assert two.bundles == (parse_resources({"cpu": 1}), parse_resources({"gpu": 2}))
    assert (two.strategy, two.node_labels) == ("STRICT_SPREAD", (("disk", "fast"), ("zone", "a")))


def test_every_other_field_is_taken_as_given():
    warm = WarmSpec(class_key="k")
    spec = groups(
        enable_dynamic_pgs=False,
        enable_pg_reuse=False,
        idle_timeout_s=5,
        wait_timeout_s=2.5,
        high_priority_threshold=7,
        high_priority_labels={"role": ["train", "reward"]},
        request_resources=True,
        warm=warm,
    )
    assert (spec.dynamic, spec.reuse, spec.idle_s, spec.wait_s) == (False, False, 5.0, 2.5)
    assert (spec.entitled_above, spec.autoscale, spec.warm) == (7.0, True, warm)
    assert spec.entitled_labels == parse_selector({"role": ["train", "reward"]})


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (3, "pg_pool_config must be a dict"),
        ({"enabled": True}, "unknown key 'enabled'; allowed are enable,"),
        ({"enable": 1}, r"\['enable'\] must be True or False"),
        ({"enable_pg_reuse": "yes"}, r"\['enable_pg_reuse'\]"),
        ({"max_dynamic_pgs": -1}, "max_dynamic_pgs"),
        ({"max_dynamic_pgs": 1.5}, "max_dynamic_pgs"),
        ({"max_dynamic_pgs": True}, "max_dynamic_pgs"),
        ({"idle_timeout_s": 0}, "idle_timeout_s"),
        ({"wait_timeout_s": float("nan")}, "wait_timeout_s"),
        ({"placement_strategy": "TIGHT"}, "STRICT_SPREAD"),
        ({"bundle_label_selector": {"a": 1}}, "bundle_label_selector"),
        ({"bundle_label_selector": {"a": "!!b"}}, "allowed are 'value', '!value'"),
        ({"bundle_label_selector": {"a": "in(b,c"}}, "allowed are 'value', '!value'"),
        ({"high_priority_threshold": "highest"}, "high_priority_threshold"),
        ({"high_priority_labels": {"a": 1}}, "high_priority_labels"),
        ({"high_priority_pg_specs": {"cpu": 1}}, "must be a list of specs"),
        ({"high_priority_pg_specs": [{}]}, r"specs'\]\[0\]"),
        ({"high_priority_pg_specs": [{"cpu": 0}]}, "must hold something"),
        (
            {"high_priority_pg_specs": [{"cpu": 1}, {"cpus": 1}]},
            r"\[1\] has the unknown key 'cpus'",
        ),
        ({"high_priority_pg_specs": [{"bundles": []}]}, "bundles"),
        ({"high_priority_pg_specs": [{"bundles": [{"cpu": 1}], "cpu": 1}]}, "unknown key 'cpu'"),
        (
            {"high_priority_pg_specs": [{"bundles": [{"cpu": 1}], "placement_strategy": "X"}]},
            "placement_strategy",
        ),
        ({"warm": {"actor_class": 3}}, r"\['warm'\]"),
    ],
)
def test_an_invalid_value_is_refused_and_named(config, word):
    with pytest.raises(InvalidRequestError, match=word):
        parse_groups(config, "STRICT_PACK")


def test_a_resize_changes_only_the_given_fields():
    spec = parse_pool(
        "p",
        None,
        {"cpu": 4},
        2,
        "PACK",
        {"high_priority_pg_specs": [{"cpu": 1}], "max_dynamic_pgs": 1, "wait_timeout_s": 3.0},
    )
    assert changed(spec) == spec
    bigger = changed(
        spec, resources=parse_resources({"cpu": 8}), pg_pool_config={"max_dynamic_pgs": 5}
    )
    assert bigger.resources == parse_resources({"cpu": 8})
    assert (bigger.target_agents, bigger.groups.max_dynamic) == (2, 5)
    assert (bigger.groups.reserved, bigger.groups.wait_s) == (spec.groups.reserved, 3.0)
    for nothing in (None, {}, {"enable": False}):
        assert changed(spec, pg_pool_config=nothing).groups is None
    first = changed(parse_pool("q", None, {}, 0, "SPREAD"), pg_pool_config={"enable": True})
    assert first.groups.strategy == "SPREAD"


def test_keeping_a_target_filled_requires_the_target():
    with pytest.raises(InvalidRequestError, match="target_agents is 0"):
        parse_pool("p", None, {"cpu": 4}, 0, "PACK", {"fill_target_agents": True})
    spec = parse_pool("p", None, {"cpu": 4}, 2, "PACK", {"fill_target_agents": True})
    with pytest.raises(InvalidRequestError, match="fill_target_agents"):
        changed(spec, target_agents=0)


def test_the_total_of_a_spec_is_the_sum_of_its_bundles():
    bundles = parse_bundles([{"cpu": 1, "gpu": 1}, {"cpu": 0.5}])
    assert sum_of(bundles) == parse_resources({"cpu": 1.5, "gpu": 1})
    for wrong in ([], {}, "x", [{}], [{"cpu": 1}, {"cpu": -1}], [3]):
        with pytest.raises(InvalidRequestError, match="bundles"):
            parse_bundles(wrong)


def test_a_spec_is_shown_as_the_arguments_that_create_it():
    spec = groups(
        high_priority_pg_specs=[{"cpu": 1.0}], bundle_label_selector={"zone": "a"}, wait_timeout_s=9
    )
    shown = public_groups(spec)
    assert shown["max_dynamic_pgs"] is None
    assert parse_groups(shown, "STRICT_PACK") == spec
    assert public_groups(None) is None


def test_a_resize_changes_only_the_given_fields_of_a_pool():
    config = {"high_priority_pg_specs": [{"cpu": 1}]}
    spec = parse_pool("p", {"tier": "gold"}, {"cpu": 4}, 2, "PACK", config)
    bigger = changed(spec, resources=parse_resources({"cpu": 8}))
    assert bigger == msgspec.structs.replace(spec, resources=parse_resources({"cpu": 8}))
    bare = changed(spec, labels={}, target_agents=0, pg_pool_config=None)
    assert (bare.labels, bare.target_agents, bare.groups) == ({}, 0, None)
    assert (bare.resources, bare.placement_strategy) == (spec.resources, "PACK")
