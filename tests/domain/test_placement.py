"""Shapes of placement groups: their sum, whom they hold, how they read."""

from __future__ import annotations

import pytest

from schedulemesh.domain.placement import PLACEMENT_STRATEGIES, GroupShape, GroupsSpec
from schedulemesh.domain.resources import NOTHING, parse_resources


def bundles(*given):
    return tuple(parse_resources(one) for one in given)


def test_the_total_is_the_sum_over_the_bundles():
    shape = GroupShape(bundles=bundles({"cpu": 1, "gpu": 1}, {"cpu": 2, "custom": {"x": 1}}))
    assert shape.total == parse_resources({"cpu": 3, "gpu": 1, "custom": {"x": 1}})
    assert GroupShape(bundles=()).total == NOTHING


@pytest.mark.parametrize(
    ("need", "held"),
    [
        (({"cpu": 2}, {"cpu": 4}), True),
        (({"cpu": 1}, {"cpu": 1}), True),
        (({"cpu": 4}, {"cpu": 2}), False),
        (({"cpu": 2},), False),
        (({"cpu": 1}, {"cpu": 1}, {"cpu": 1}), False),
        (({"cpu": 1, "gpu": 1}, {"cpu": 1}), False),
        (({}, {}), True),
    ],
)
def test_a_shape_holds_bundles_one_by_one_in_their_order(need, held):
    assert GroupShape(bundles=bundles({"cpu": 2}, {"cpu": 4})).holds(bundles(*need)) is held


def test_shapes_that_are_equal_are_one_key():
    def made():
        return GroupShape(bundles=bundles({"cpu": 2}), node_labels=(("zone", "a"),))

    assert {made(): 1}[made()] == 1
    assert made() != GroupShape(bundles=bundles({"cpu": 2}))


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (GroupShape(bundles=bundles({"cpu": 2}), strategy="SPREAD"), "[cpu 2]"),
        (GroupShape(bundles=bundles({"cpu": 2}, {"gpu": 1})), "[cpu 2; gpu 1] STRICT_PACK"),
    ],
)
def test_a_shape_is_printed_briefly_with_its_strategy_where_it_matters(shape, text):
    assert str(shape) == text


def test_a_pool_packs_strictly_and_reuses_groups_by_default():
    spec = GroupsSpec()
    assert spec.strategy in PLACEMENT_STRATEGIES
    assert (spec.reserved, spec.max_dynamic, spec.reuse, spec.entitled_above) == ((), 0, True, 5.0)
