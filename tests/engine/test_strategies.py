"""Which pool takes a task that names none."""

from __future__ import annotations

import pytest

from schedulemesh.domain.labels import parse_selector
from schedulemesh.domain.resources import UNIT
from schedulemesh.engine.messages.facts import Share
from schedulemesh.engine.placement.strategies import (
    NODE_STRATEGIES,
    POOL_STRATEGY,
    Strategies,
    choose_devices,
    score_pool,
)
from schedulemesh.engine.state.fragmentation import Workload
from schedulemesh.engine.state.quota import Ledger
from tests.engine.builders import Mesh, amount, node, on, pool


def ledger(*pools, **used):
    book = Ledger()
    for spec in pools:
        book.ensure(spec)
    for name, cpu in used.items():
        book.reserve(name, [Share(pool_name=name, amount=amount(cpu=cpu))])
    return book


def choose_pool(book, selector, need, strategy=POOL_STRATEGY, **how):
    """The pool that a built-in strategy chooses."""
    return Strategies(pool=strategy).choose_pool(book, selector, need, **how)


def test_the_score_is_the_least_fraction_that_would_stay_free():
    account = ledger(pool("p", cpu=4, memory=100)).accounts["p"]
    assert score_pool(account, amount(cpu=1, memory=50)) == 0.5
    assert score_pool(account, amount(cpu=4, memory=50)) == 0.0
    assert score_pool(account, amount()) == 1.0


def test_a_pool_that_is_short_now_scores_below_zero():
    account = ledger(pool("p", cpu=4), p=3).accounts["p"]
    assert score_pool(account, amount(cpu=2)) == -0.25


def test_the_best_score_wins_and_among_equals_the_name():
    assert choose_pool(ledger(pool("a", cpu=4), pool("b", cpu=8)), (), amount(cpu=2)) == "b"
    assert choose_pool(ledger(pool("b", cpu=4), pool("a", cpu=4)), (), amount(cpu=2)) == "a"


def test_a_full_pool_is_taken_where_no_other_matches():
    book = ledger(pool("full", labels={"x": "1"}, cpu=4), pool("free", cpu=4), full=4)
    assert choose_pool(book, parse_selector({"x": "1"}), amount(cpu=2)) == "full"


def test_a_draining_pool_is_taken_where_no_other_matches():
    book = ledger(pool("best", labels={"x": "1"}, cpu=8), pool("other", cpu=4))
    assert choose_pool(book, (), amount(cpu=2), avoided={"best"}) == "other"
    assert choose_pool(book, parse_selector({"x": "1"}), amount(cpu=2), avoided={"best"}) == "best"


def test_none_that_matches_is_none():
    book = ledger(pool("a", cpu=4))
    assert choose_pool(book, parse_selector({"x": "1"}), amount(cpu=2)) is None
    assert choose_pool(book, (), amount(cpu=5)) is None


def test_without_a_need_each_pool_offers_its_own_default():
    book = ledger(pool("whole", cpu=4), pool("shared", agents=4, cpu=4))
    assert choose_pool(book, (), None) == "shared"


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("bin_pack", "small"),
        ("spread", "big"),
        ("best_fit", "small"),
        ("dominant_share", "big"),
        ("fragmentation_aware", "big"),
    ],
)
def test_every_built_in_strategy_chooses_pools(strategy, expected):
    book = ledger(
        pool("small", cpu=2, gpu=1), pool("big", cpu=8, gpu=4), pool("short", cpu=8), short=8
    )
    assert choose_pool(book, (), amount(cpu=1), strategy) == expected


@pytest.mark.parametrize("strategy", NODE_STRATEGIES)
def test_a_pool_that_is_short_now_comes_last(strategy):
    book = ledger(pool("a", cpu=4), pool("b", cpu=4), a=4)
    assert choose_pool(book, (), amount(cpu=1), strategy) == "b"


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("bin_pack", 1), ("best_fit", 1), ("spread", 2), ("dominant_share", 2)],
)
def test_a_share_goes_on_the_device_that_the_strategy_likes(strategy, expected):
    mesh = Mesh(nodes=[node("a", cpu=4, gpu=3)])
    found = mesh.state.cluster.nodes["a"]
    found.devices[:] = [UNIT // 4, UNIT // 2, UNIT]
    chosen = choose_devices(strategy, found, amount(gpu=0.5), Workload())
    assert chosen == on((expected, 0.5))


def test_devices_that_are_not_there_are_none():
    mesh = Mesh(nodes=[node("a", cpu=4, gpu=1)])
    found = mesh.state.cluster.nodes["a"]
    assert choose_devices("best_fit", found, amount(gpu=2), Workload()) is None
    found.devices[:] = [UNIT // 4]
    assert choose_devices("best_fit", found, amount(gpu=0.5), Workload()) is None
