"""The weighted dominant share of pools, over time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.engine.state.shares import share_key
from tests.engine.builders import Mesh, differences, pool

COHORT = {"cohort": "c"}


def member(name, cpu=0, gpu=0, **lending):
    return pool(name, cpu=cpu, gpu=gpu, lending={**COHORT, **lending})


def share(mesh, name):
    return share_key(mesh.state, name, mesh.now)


def test_a_pool_without_a_cohort_and_one_that_borrows_nothing_have_no_share():
    mesh = Mesh(pool("x", cpu=4), member("p", 4), member("q", 4))
    mesh.run("own", "p", cpu=4)
    assert share(mesh, "x") == share(mesh, "p") == share(mesh, "q") == (0.0,)


def test_the_dominant_kind_counts_in_relation_to_the_whole_cohort():
    mesh = Mesh(member("p", 8, 4), member("q"), usage_half_life_s=0.0)
    mesh.run("b", "q", cpu=4, gpu=1)
    assert share(mesh, "q") == (0.5,)
    assert share(mesh, "p") == (0.0,)


def test_a_weight_divides_the_share():
    mesh = Mesh(member("p", 8), member("q", weight=4.0), usage_half_life_s=0.0)
    mesh.run("b", "q", cpu=4)
    assert share(mesh, "q") == (0.125,)


def test_what_a_pool_has_lent_is_taken_off_what_it_has_borrowed():
    mesh = Mesh(member("p", 4), member("q", 4), member("r", 4), usage_half_life_s=0.0)
    mesh.run("own", "q", cpu=4)
    mesh.run("b", "q", cpu=4)
    lender = next(owner for owner, _ in mesh.state.ledger.loans)
    mesh.run("own too", lender, cpu=4)
    assert share(mesh, lender) == (0.0,)
    assert share(mesh, "q") == (4 / 12,)


def test_loans_between_the_pools_of_a_cohort_do_not_count_outside_of_it():
    mesh = Mesh(usage_half_life_s=0.0)
    mesh.cohort("root")
    mesh.cohort("left", "root", weight=2.0)
    for name, cpu, cohort in (("p", 4, "left"), ("q", 0, "left"), ("r", 4, "root")):
        mesh.resize(member(name, cpu, cohort=cohort))
    mesh.run("within", "q", cpu=4)
    assert share(mesh, "q") == (0.0, 0.5)
    mesh.run("outside", "q", cpu=2)
    assert share(mesh, "q") == (0.125, 0.75)
    assert share(mesh, "r") == (0.0,)


def test_a_pool_that_has_borrowed_comes_after_one_that_has_waited():
    mesh = Mesh(member("p", 4), member("q"), member("r"), usage_half_life_s=100.0)
    mesh.run("b", "q", cpu=4)
    mesh.now += 100
    mesh.complete("b")
    assert share(mesh, "q") == (0.5,)
    assert share(mesh, "r") == (0.0,)
    mesh.now += 100
    assert share(mesh, "q") == (0.25,)
    mesh.run("b2", "q", cpu=4)
    assert share(mesh, "q") == (1.0,)


def test_without_a_half_life_only_present_loans_count():
    mesh = Mesh(member("p", 4), member("q"), usage_half_life_s=0.0)
    mesh.run("b", "q", cpu=4)
    mesh.now += 100
    assert share(mesh, "q") == (1.0,)
    mesh.complete("b")
    assert share(mesh, "q") == (0.0,)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from([0.5, 10.0, 300.0]), st.sampled_from([1, 2, 3, 0])), max_size=12
    )
)
def test_the_mean_is_the_integral_over_all_that_was_held(steps):
    half_life = 100.0
    mesh = Mesh(member("p", 3), member("q"), usage_half_life_s=half_life)
    begin, held, history = mesh.now, 0, []
    for seconds, cpu in steps:
        if held:
            mesh.complete("b")
        if cpu:
            mesh.run("b", "q", cpu=cpu)
        held = cpu
        history.append((mesh.now - begin, mesh.now - begin + seconds, cpu))
        mesh.now += seconds
    end = mesh.now - begin
    weights = [
        cpu * (0.5 ** ((end - until) / half_life) - 0.5 ** ((end - since) / half_life))
        for since, until, cpu in history
    ]
    assert share(mesh, "q")[0] * 3 == pytest.approx(max(held, sum(weights)))
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []
