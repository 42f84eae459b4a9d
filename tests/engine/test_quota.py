"""The quota ledger: who pays, what is lent, what is held."""

from __future__ import annotations

from schedulemesh.domain.resources import NOTHING
from schedulemesh.engine.messages.facts import Share, merged
from schedulemesh.engine.state.invariants import check
from schedulemesh.engine.state.quota import Hold, Ledger, pass_on, pay
from tests.engine.builders import Mesh, amount, pool


def share(pool_name, **given):
    return Share(pool_name=pool_name, amount=amount(**given))


def ledger(*pools):
    book = Ledger()
    for spec in pools:
        book.ensure(spec)
    return book


def test_a_claim_goes_from_reserved_to_used_to_released():
    book = ledger(pool("p", cpu=4))
    account = book.accounts["p"]

    book.reserve("p", [share("p", cpu=3)])
    assert (account.reserved, account.used, account.free) == (amount(cpu=3), NOTHING, amount(cpu=1))

    book.commit([share("p", cpu=3)])
    assert (account.reserved, account.used, account.free) == (NOTHING, amount(cpu=3), amount(cpu=1))

    book.release("p", [share("p", cpu=3)], committed=True)
    assert (account.reserved, account.used, account.free) == (NOTHING, NOTHING, amount(cpu=4))


def test_a_share_of_another_pool_shows_as_a_loan_on_both_sides():
    book = ledger(pool("owner", cpu=4), pool("borrower", cpu=1))

    book.reserve("borrower", [share("borrower", cpu=1), share("owner", cpu=2)])

    owner, borrower = book.accounts["owner"], book.accounts["borrower"]
    assert (owner.reserved, owner.lent, owner.borrowed) == (amount(cpu=2), amount(cpu=2), NOTHING)
    assert (borrower.reserved, borrower.lent, borrower.borrowed) == (
        amount(cpu=1),
        NOTHING,
        amount(cpu=2),
    )

    book.release("borrower", [share("borrower", cpu=1), share("owner", cpu=2)], committed=False)
    assert owner.lent == borrower.borrowed == owner.reserved == NOTHING


def test_twenty_thousand_claims_of_a_tenth_leave_nothing_behind():
    book = ledger(pool("p", cpu=1))
    tenth = [share("p", cpu=0.1)]
    for _ in range(20_000):
        book.reserve("p", tenth)
        book.commit(tenth)
        book.release("p", tenth, committed=True)
    assert book.accounts["p"].free == amount(cpu=1)
    assert not book.accounts["p"].used


def test_a_claim_that_fits_is_paid_by_its_own_pool():
    payment = pay(ledger(pool("p", cpu=4)), "p", amount(cpu=4))
    assert payment.shares == (share("p", cpu=4),)
    assert not payment.short


def test_a_claim_of_nothing_is_paid_by_nobody():
    assert pay(ledger(pool("p", cpu=4)), "p", NOTHING).shares == ()


def test_what_is_short_is_told_kind_by_kind_and_the_rest_is_paid():
    book = ledger(pool("p", cpu=4, memory=100, custom={"x": 1}))
    book.reserve("p", [share("p", cpu=3)])

    payment = pay(book, "p", amount(cpu=2, memory=50, custom={"x": 3}))

    assert payment.shares == (share("p", cpu=1, memory=50, custom={"x": 1}),)
    assert payment.short == amount(cpu=1, custom={"x": 2})


def test_a_claim_draws_on_what_is_held_for_its_pool_first_and_on_the_oldest_hold_first():
    book = ledger(pool("p", cpu=4), pool("owner", cpu=8))
    book.hold("late", Hold(for_pool="p", shares=(share("owner", cpu=3),), until=90.0))
    book.hold("soon", Hold(for_pool="p", shares=(share("owner", cpu=2),), until=80.0))

    payment = pay(book, "p", amount(cpu=3))

    assert payment.shares == (share("owner", cpu=3),)
    assert payment.holds_left == (("soon", ()), ("late", (share("owner", cpu=2),)))


def test_a_hold_serves_only_the_pool_that_it_is_for():
    book = ledger(pool("p", cpu=1), pool("q", cpu=1), pool("owner", cpu=8))
    book.hold("h", Hold(for_pool="q", shares=(share("owner", cpu=3),), until=90.0))
    assert pay(book, "p", amount(cpu=2)).short == amount(cpu=1)
    assert not pay(book, "q", amount(cpu=2)).short


def test_a_hold_shrinks_and_ends():
    book = ledger(pool("p", cpu=1), pool("owner", cpu=8))
    book.hold("h", Hold(for_pool="p", shares=(share("owner", cpu=3),), until=90.0))

    book.shrink_hold("h", (share("owner", cpu=1),))
    assert book.accounts["owner"].lent == amount(cpu=1)

    book.shrink_hold("h", ())
    assert not book.holds
    assert book.accounts["owner"].reserved == NOTHING


def test_an_incoming_agent_takes_of_freed_shares_what_it_was_promised():
    freed = (share("a", cpu=2), share("b", cpu=4, memory=8), share("a", cpu=2), share("c", cpu=1))
    promised = (share("a", cpu=3), share("b", cpu=5))
    assert pass_on(freed, promised) == (share("a", cpu=3), share("b", cpu=4))


def test_shares_of_one_pool_are_merged_and_empty_ones_dropped():
    assert merged([share("a", cpu=1), share("b"), share("a", cpu=2)]) == (share("a", cpu=3),)


def test_a_victim_of_another_pool_lends_exactly_what_is_short():
    mesh = Mesh(pool("p", cpu=2), pool("q", cpu=4))
    mesh.run("own", "p", priority=9.0, cpu=1)
    mesh.run("low", "q", priority=0.0, cpu=4)

    mesh.submit("high", "p", priority=9.0, cpu=2)
    mesh.slot("high")

    q, p = mesh.state.ledger.accounts["q"], mesh.state.ledger.accounts["p"]
    assert q.lent == p.borrowed == amount(cpu=1)
    assert q.used == amount(cpu=1)
    assert q.free == amount(cpu=3)


def test_the_loan_ends_with_the_task():
    mesh = Mesh(pool("p", cpu=2), pool("q", cpu=4))
    mesh.run("own", "p", priority=9.0, cpu=2)
    mesh.run("low", "q", priority=0.0, cpu=4)
    mesh.submit("high", "p", priority=9.0, cpu=2)
    mesh.slot("high")

    mesh.complete("high")

    assert mesh.state.ledger.accounts["q"].lent == NOTHING
    assert mesh.free("q") == amount(cpu=4)


def test_when_a_borrower_is_evicted_its_loan_passes_on_from_the_owner():
    mesh = Mesh(pool("p", cpu=2), pool("q", cpu=4), pool("r", cpu=2))
    mesh.run("own", "p", priority=9.0, cpu=2)
    mesh.run("low", "q", priority=0.0, cpu=4)
    mesh.submit("borrower", "p", priority=9.0, cpu=2)
    mesh.slot("borrower")
    mesh.run("full", "r", priority=50.0, cpu=2)

    mesh.submit("third", "r", priority=14.5, cpu=2)
    evicted = mesh.state.agents["third"].submission.evicting
    mesh.slot("third")

    accounts = mesh.state.ledger.accounts
    assert [c.pool_name for c in evicted] == ["p"]
    if evicted[0].task_id == "borrower":
        assert accounts["q"].lent == accounts["r"].borrowed == amount(cpu=2)
        assert accounts["p"].borrowed == NOTHING


def test_the_owner_gets_its_own_quota_back_from_the_borrower_without_a_loan():
    mesh = Mesh(pool("p", cpu=2), pool("q", cpu=4))
    mesh.run("own", "p", priority=30.0, cpu=2)
    mesh.run("low", "q", priority=0.0, cpu=4)
    mesh.submit("borrower", "p", priority=9.0, cpu=2)
    mesh.slot("borrower")
    mesh.run("rest", "q", priority=30.0, cpu=2)

    mesh.submit("again", "q", priority=20.0, cpu=2)
    assert [c.task_id for c in mesh.state.agents["again"].submission.evicting] == ["borrower"]
    mesh.slot("again")

    assert mesh.state.ledger.accounts["q"].lent == NOTHING
    assert mesh.state.ledger.accounts["p"].borrowed == NOTHING
    check(mesh.state)
