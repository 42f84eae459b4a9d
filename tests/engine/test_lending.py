"""Idle quota of a cohort is borrowed before anyone is evicted: by whom, from whom, and how much."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from schedulemesh.config.groups import parse_groups
from schedulemesh.engine.state import invariants, lending
from tests.engine import builders
from tests.engine.builders import Mesh, amount, node, pool

COHORT = {"cohort": "c"}


def member(name, cpu=4, **lending):
    return pool(name, cpu=cpu, lending={**COHORT, **lending})


def shares(mesh, name):
    found = mesh.state.agents[name].shares
    return {share.pool_name: share.amount.public().get("cpu", 0.0) for share in found}


def test_a_task_uses_its_own_quota_first_and_then_what_is_idle_in_the_cohort():
    mesh = Mesh(member("p"), member("q"))
    mesh.run("x", "p", cpu=6)
    assert shares(mesh, "x") == {"p": 4.0, "q": 2.0}
    accounts = mesh.state.ledger.accounts
    assert accounts["q"].lent == accounts["p"].borrowed == amount(cpu=2)
    assert mesh.state.ledger.loans == {("q", "p"): amount(cpu=2)}
    mesh.complete("x")
    assert mesh.state.ledger.loans == {}


def test_how_a_claim_would_be_paid_is_kept_until_the_ledger_changes():
    mesh = Mesh(member("p"), member("q"))
    mesh.run("x", "p", cpu=6)
    mesh.dry("y", "p", cpu=2)
    assert [payment.loans for payment in mesh.state.ledger.payments.values()]
    mesh.complete("x")
    assert not mesh.state.ledger.payments


def test_nobody_is_evicted_while_the_cohort_has_idle_quota():
    mesh = Mesh(member("p"), member("q"))
    mesh.run("low", "p", 0.0, cpu=4)
    outcome = mesh.dry("high", "p", 9.0, cpu=4)
    assert outcome.preempted == ()


def test_pools_without_a_cohort_and_of_other_cohorts_lend_nothing():
    mesh = Mesh(member("p"), pool("q", cpu=4), member("r", cohort="d"))
    refused = mesh.submit("x", "p", cpu=6)
    assert refused.reason == "exceeds_pool_capacity"
    mesh.run("y", "p", cpu=4)
    assert mesh.submit("z", "p", cpu=1).reason == "preemption_failed"


def test_the_nearest_cohort_lends_first_and_then_the_pool_with_most_idle():
    mesh = Mesh(member("p"), member("q"), member("r", 9, cohort="d"), member("s", cohort="d"))
    for name in ("c", "d"):
        mesh.cohort("root")
        mesh.cohort(name, "root")
    mesh.run("x", "p", cpu=4)
    mesh.run("near", "p", cpu=3)
    mesh.run("far", "p", cpu=2)
    assert shares(mesh, "near") == {"q": 3.0}
    assert shares(mesh, "far") == {"q": 1.0, "r": 1.0}
    mesh.run("most", "p", cpu=1)
    assert shares(mesh, "most") == {"r": 1.0}


@pytest.mark.parametrize(
    ("limit", "admitted"), [(None, 4), ({"cpu": 3}, 3), ({"gpu": 0}, 4), (0, 0)]
)
def test_no_pool_lends_above_its_limit(limit, admitted):
    mesh = Mesh(member("p", 1), member("q", lending_limit=limit))
    mesh.run("own", "p", cpu=1)
    outcomes = [mesh.submit(f"x{i}", "p", cpu=1) for i in range(4)]
    assert sum(not hasattr(outcome, "reason") for outcome in outcomes) == admitted
    assert mesh.state.ledger.accounts["q"].lent == amount(cpu=admitted)


@pytest.mark.parametrize(("limit", "admitted"), [(None, 8), ({"cpu": 3}, 3), (0, 0)])
def test_no_pool_borrows_above_its_limit_from_all_lenders_together(limit, admitted):
    mesh = Mesh(member("p", 1, borrowing_limit=limit), member("q"), member("r"))
    mesh.run("own", "p", cpu=1)
    outcomes = [mesh.submit(f"x{i}", "p", cpu=1) for i in range(8)]
    assert sum(not hasattr(outcome, "reason") for outcome in outcomes) == admitted
    assert mesh.state.ledger.accounts["p"].borrowed == amount(cpu=admitted)


def test_only_the_kinds_that_are_short_are_borrowed():
    mesh = Mesh(
        pool("p", cpu=4, lending=COHORT), pool("q", cpu=8, gpu=2, lending={**COHORT, "weight": 2})
    )
    mesh.run("x", "p", cpu=2, gpu=1)
    (loan,) = mesh.state.ledger.loans.values()
    assert loan == amount(gpu=1)


def test_a_pool_without_quota_of_its_own_works_on_loans():
    mesh = Mesh(pool("p", lending=COHORT), member("q"))
    mesh.run("x", "p", cpu=3)
    assert shares(mesh, "x") == {"q": 3.0}
    refused = mesh.submit("y", "p", cpu=5)
    assert refused.reason == "exceeds_pool_capacity"
    assert "could borrow at most cpu 4 in cohort 'c'" in refused.error


def test_a_protected_pool_lends_and_does_not_borrow():
    mesh = Mesh(member("p"), member("q"), protected_pools=("p",))
    mesh.run("x", "p", cpu=4)
    refused = mesh.submit("y", "p", cpu=1)
    assert refused.reason == "preemption_failed"
    assert "a protected pool does not borrow" in refused.error
    assert "protected" in mesh.submit("z", "p", cpu=5).error
    mesh.complete("x")
    mesh.run("w", "q", cpu=6)
    assert shares(mesh, "w") == {"q": 4.0, "p": 2.0}


def test_a_refusal_says_what_the_cohort_has_idle_and_what_was_lent_to_whom():
    mesh = Mesh(
        member("p"),
        member("q"),
        member("r", borrowing_limit=0, lending_limit=0),
        label_preemption_rules={"tier": {"premium": ["batch"]}},
    )
    mesh.run("x", "q", labels={"tier": "premium"}, cpu=7)
    refused = mesh.submit("y", "p", labels={"tier": "batch"}, cpu=2)
    assert "other pools have cpu 1 of it as a loan" in refused.error
    assert "pool 'q' cpu 3" in refused.error
    assert "cohort 'c' has nothing idle for it to borrow" in refused.error
    mesh.run("z", "r", cpu=4)
    refused = mesh.submit("w", "r", cpu=1)
    assert "cohort 'c' has cpu 1 idle for it to borrow" in refused.error
    assert "its borrowing_limit is 0, of which nothing is used" in refused.error


def test_agents_in_placement_groups_borrow_too():
    groups = parse_groups({"enable": True, "max_dynamic_pgs": 4}, "STRICT_PACK")
    grouped = pool("p", cpu=1, groups=groups, lending=COHORT)
    mesh = Mesh(grouped, member("q"), nodes=[node("a", cpu=8)])
    mesh.submit("x", "p", cpu=3)
    mesh.make_all()
    mesh.report("x")
    assert shares(mesh, "x") == {"p": 1.0, "q": 2.0}


def test_a_limit_below_what_is_lent_ends_no_loan_and_allows_no_other():
    mesh = Mesh(member("p", 1), member("q"))
    mesh.run("x", "p", cpu=3)
    assert mesh.resize(member("q", lending_limit={"cpu": 1})).change == "changed"
    assert mesh.state.ledger.accounts["q"].lent == amount(cpu=2)
    assert mesh.submit("y", "p", cpu=1).reason == "preemption_failed"


def test_a_queued_task_starts_when_another_pool_of_its_cohort_has_quota_again():
    mesh = Mesh(member("p", 0), member("q"))
    mesh.run("own", "q", 9.0, cpu=4)
    mesh.submit("waits", "p", cpu=2, more={"queue": True})
    assert "waits" in mesh.state.queue.by_id
    mesh.complete("own")
    assert shares(mesh, "waits") == {"q": 2.0}


def test_a_queued_task_starts_when_its_cohort_joins_another():
    mesh = Mesh(member("p", 2, cohort="e"), member("q"))
    mesh.cohort("root")
    mesh.run("own", "p", 9.0, cpu=2)
    mesh.submit("waits", "p", cpu=2, more={"queue": True})
    mesh.cohort("c", "root")
    assert "waits" in mesh.state.queue.by_id
    mesh.cohort("e", "root")
    assert shares(mesh, "waits") == {"q": 2.0}


def test_a_queued_task_borrows_as_soon_as_its_pool_is_protected_no_longer():
    mesh = Mesh(member("p", 2), member("q"), protected_pools=("p",))
    mesh.run("own", "p", cpu=2)
    mesh.submit("waits", "p", cpu=2, more={"queue": True})
    mesh.policy(protected_pools=())
    assert shares(mesh, "waits") == {"q": 2.0}


def test_a_queued_task_borrows_what_was_promised_to_one_that_is_deleted():
    mesh = Mesh(member("p", 0), member("q", 8, lending_limit={"cpu": 4}), pool("r", cpu=4))
    mesh.run("low", "q", 0.0, cpu=4)
    mesh.run("own", "r", 9.0, cpu=4)
    mesh.submit("high", "r", 9.0, cpu=4)
    assert mesh.state.ledger.promised_by("q") == amount(cpu=4)
    mesh.submit("waits", "p", cpu=1, more={"queue": True})
    assert mesh.starts == {}
    mesh.delete("high")
    assert shares(mesh, "waits") == {"q": 1.0}


@pytest.mark.parametrize(
    ("lender", "borrower", "held"),
    [
        ({}, {}, 4),
        ({"lending_limit": {"cpu": 1}}, {}, 1),
        ({}, {"borrowing_limit": {"cpu": 3}}, 3),
        ({"lending_limit": 0}, {}, 0),
    ],
)
def test_a_requested_eviction_holds_no_more_for_a_pool_than_may_be_lent(lender, borrower, held):
    mesh = Mesh(
        pool("p", cpu=4, lending={"cohort": "c", **lender}),
        pool("q", cpu=0, lending={"cohort": "c", **borrower}),
    )
    mesh.run("t", "p", cpu=4)
    mesh.preempt(agent_name="t", for_pool="q")
    mesh.leave("t")
    assert mesh.state.ledger.accounts["q"].borrowed == amount(cpu=held)
    assert mesh.free("p") == amount(cpu=4 - held)


def test_what_is_behind_the_first_of_a_strict_pool_starts_with_it_although_that_borrows():
    strict = msgspec.structs.replace(member("p"), queueing="strict")
    mesh = Mesh(strict, member("q"), nodes=[node("n1", cpu=8)])
    mesh.run("lender", "q", cpu=4)
    mesh.queue("first", "p", cpu=6)
    mesh.queue("second", "p", cpu=1)
    mesh.complete("lender")
    assert mesh.waiting("p") == []


def test_the_end_of_a_task_asks_no_pool_of_the_cohort_for_whose_tasks_too_little_is_idle():
    mesh = Mesh(*(member(f"p{i}") for i in range(9)))
    for i in range(9):
        mesh.run(f"runs-{i}", f"p{i}", cpu=4)
    for i in range(9):
        mesh.queue(f"waits-{i}", f"p{i}", cpu=4)
    mesh.complete("runs-3")
    assert list(mesh.starts) == ["waits-3"]
    assert not mesh.state.ledger.payments, "nobody was asked what it could lend"


def test_what_an_owner_leaves_idle_is_lent_to_those_who_were_short():
    mesh = Mesh(member("p"), member("q"), member("r"))
    for name in ("p", "q", "r"):
        mesh.run(f"runs-{name}", name, cpu=4)
    mesh.queue("large", "q", cpu=6)
    mesh.queue("small", "r", cpu=2)
    mesh.queue("own", "p", cpu=1)
    mesh.complete("runs-p")
    assert sorted(mesh.starts) == ["own", "small"]


@pytest.mark.parametrize("pools", [50, 400])
def test_the_end_of_a_task_costs_no_more_searches_for_loans_in_a_larger_cohort(pools, monkeypatch):
    """In each pool of the cohort a task waits that would borrow what becomes free; one of them gets it."""
    steps = itertools.count()
    monkeypatch.setattr(
        builders, "check", lambda state: next(steps) % 200 or invariants.check(state)
    )
    mesh = Mesh(
        *(pool(f"p{i:03}", lending=COHORT) for i in range(pools)),
        pool("owner", cpu=2, lending=COHORT),
        nodes=[node("n", cpu=2)],
    )
    mesh.run("first", "owner", cpu=1)
    mesh.run("second", "owner", cpu=1)
    for i in range(pools):
        mesh.queue(f"waits-{i:03}", f"p{i:03}", cpu=1)
    mesh.tick(1)
    searches = []
    borrow = lending.borrow
    monkeypatch.setattr(lending, "borrow", lambda *given: searches.append(given) or borrow(*given))
    mesh.complete("first")
    assert len(mesh.starts) == 1
    assert len(searches) <= 6
