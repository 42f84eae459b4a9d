"""Lending within a cohort: what of other pools' quota is idle, and which of it a claim borrows.

A pool lends what is free of its quota to the pools of its tree of cohorts, up to its lending limit, and
borrows up to its borrowing limit. Both limits count every loan, also those by preemption, and those that are
promised to a task whose victims have not ended. Lenders are asked in this order:

1. the nearest first: those of the pool's own cohort, then those of its parent, and so on;
2. of them the one with the most idle quota, relative to the need in the kind of which it has least;
3. then by name.

A pool that is protected from preemption does not borrow, because what it borrows could not be reclaimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from schedulemesh.domain.cohort import LoanLimit
from schedulemesh.domain.resources import NOTHING, Resources, sum_of
from schedulemesh.engine.messages.facts import Share, merged
from schedulemesh.engine.state.quota import Ledger, Payment, PaymentKey, paid_alone, pay

#: How many payments are kept in ``Ledger.payments``.
_PAYMENTS = 1_000


def pay_with_loans(
    ledger: Ledger,
    pool_name: str,
    need: Resources,
    client: str | None = None,
    *,
    protected: Iterable[str] = (),
) -> Payment:
    """As ``pay``, and what is still short is borrowed of what is idle in the pool's cohort."""
    if not ledger.holds and need.fits(ledger.accounts[pool_name].free):
        return paid_alone(pool_name, need)
    key = (pool_name, need, client, pool_name not in protected)
    payments = ledger.payments
    if key not in payments:
        if len(payments) >= _PAYMENTS:
            payments.clear()
        payments[key] = payment_for(ledger, key)
    return payments[key]


def payment_for(ledger: Ledger, key: PaymentKey) -> Payment:
    """The same, computed anew."""
    pool_name, need, client, may_borrow = key
    payment = pay(ledger, pool_name, need, client)
    if not payment.short or not may_borrow:
        return payment
    loans = borrow(ledger, pool_name, payment.short)
    if not loans:
        return payment
    return Payment(
        shares=merged((*payment.shares, *loans)),
        holds_left=payment.holds_left,
        loans=loans,
        short=payment.short - sum_of(loan.amount for loan in loans),
    )


def borrow(ledger: Ledger, pool_name: str, need: Resources) -> tuple[Share, ...]:
    """As much of the need as the pool may borrow and its cohort has idle, kind by kind."""
    neighbours = ledger.cohorts.neighbours(pool_name).by_distance
    if not neighbours or not need.helps(idle_beside(ledger, pool_name)):
        return ()
    need = _borrowable(ledger, pool_name, need)
    lenders = []
    for distance, name in neighbours:
        idle = lendable(ledger, name)
        if idle and need.helps(idle):
            lenders.append((distance, -_cover(idle, need), name, idle))
    loans = []
    for _, _, name, idle in sorted(lenders, key=lambda lender: lender[:3]):
        part = need.within(idle)
        if part:
            loans.append(Share(pool_name=name, amount=part))
            need = need - part
        if not need:
            break
    return tuple(loans)


def lendable(ledger: Ledger, name: str) -> Resources:
    """What is free of a pool's quota and may be lent now."""
    account = ledger.accounts[name]
    if name in ledger.closed:
        return NOTHING
    idle = clipped(account.free)
    limit = account.spec.lending_limit
    return idle if limit is None else limit.room(idle, account.lent + ledger.promised_by(name))


def clipped(free: Resources) -> Resources:
    """Free quota without the kinds of which a pool holds more than it has, after it was made smaller."""
    if min(free.cpu, free.memory, free.gpu) < 0 or free.custom:
        return free.within(free)
    return free


def idle_of_tree(ledger: Ledger, root: str) -> Resources:
    """What all pools of a tree of cohorts may lend now, in sum. Costs only what has changed since the last
    time.
    """
    cohorts, sums, lendable_by_pool = ledger.cohorts, ledger.idle_of_trees, ledger.lendable
    for name in ledger.changed:
        path = cohorts.path(name)
        if path and path[-1] in sums:
            idle = lendable(ledger, name)
            sums[path[-1]] += idle - lendable_by_pool[name]
            lendable_by_pool[name] = idle
    ledger.changed.clear()
    if root not in sums:
        below = list(cohorts.pools_below(root))
        lendable_by_pool.update((name, lendable(ledger, name)) for name in below)
        sums[root] = sum_of(lendable_by_pool[name] for name in below)
    return sums[root]


def idle_beside(ledger: Ledger, pool_name: str) -> Resources:
    """What all other pools of its tree of cohorts may lend now, in sum; nothing where it is in none."""
    path = ledger.cohorts.path(pool_name)
    if not path:
        return NOTHING
    return idle_of_tree(ledger, path[-1]) - ledger.lendable[pool_name]


def is_surely_short(ledger: Ledger, pool_name: str, need: Resources) -> bool:
    """Whether a need is more than what the pool has free and its whole tree of cohorts may lend. Costs
    little, however many pools are in it.
    """
    if ledger.holds:
        return False
    short = need.beyond(clipped(ledger.accounts[pool_name].free))
    return not short.fits(idle_beside(ledger, pool_name))


def idle_in_cohort(ledger: Ledger, pool_name: str) -> Resources:
    """What all other pools of its cohorts may lend now."""
    names = ledger.cohorts.neighbours(pool_name).names
    return sum_of(lendable(ledger, name) for name in names)


def could_ever_borrow(ledger: Ledger, pool_name: str) -> Resources:
    """What the pool might borrow if no other pool of its cohorts used anything."""
    most = NOTHING
    for name in ledger.cohorts.neighbours(pool_name).names:
        spec = ledger.accounts[name].spec
        limit = spec.lending_limit
        if name in ledger.closed:
            continue
        most = most + (spec.resources if limit is None else limit.room(spec.resources, NOTHING))
    limit = ledger.accounts[pool_name].spec.borrowing_limit
    return most if limit is None else limit.room(most, NOTHING)


class LoanCaps(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much of what victims of other pools free one claim may borrow."""

    pool_name: str
    borrowing: LoanLimit | None
    #: What its pool holds of others' quota, this claim's loans of idle quota included.
    borrowed: Resources
    #: Of each pool with a limit: that, and what other pools hold or are promised of its quota.
    lending: dict[str, tuple[LoanLimit, Resources]]

    def split(
        self, pool_name: str, shares: Iterable[Share]
    ) -> tuple[Resources, tuple[tuple[str, Resources], ...]]:
        """What an agent of this pool frees for the claim: its pool's own quota, and what it may borrow within
        the limits, by lender. A loan that passes on has no lender: the owner lends no more than before.
        """
        own_quota, loans = NOTHING, []
        for share in shares:
            if share.pool_name == self.pool_name:
                own_quota = own_quota + share.amount
            else:
                loans.append(
                    (share.pool_name if share.pool_name == pool_name else "", share.amount)
                )
        return own_quota, tuple(loans)

    def after(self, shares: Iterable[Share]) -> LoanCaps:
        """What is left of them once the claim has borrowed these, too."""
        loans = [share for share in shares if share.pool_name != self.pool_name]
        lending = dict(self.lending)
        for loan in loans:
            if loan.pool_name in lending:
                limit, used = lending[loan.pool_name]
                lending[loan.pool_name] = (limit, used + loan.amount)
        borrowed = self.borrowed + sum_of(loan.amount for loan in loans)
        return msgspec.structs.replace(self, borrowed=borrowed, lending=lending)

    def usable(self, short: Resources, freed: Mapping[str, Resources]) -> Resources:
        """How much of what is short these loans cover."""
        allowed = NOTHING
        for lender, amount in freed.items():
            limit, used = self.lending.get(lender, (None, NOTHING))
            allowed = allowed + (amount if limit is None else limit.room(amount, used))
        part = short.within(allowed)
        return part if self.borrowing is None else self.borrowing.room(part, self.borrowed)


def caps_of(ledger: Ledger, pool_name: str, payment: Payment) -> LoanCaps | None:
    """The limits that apply to what a claim with this payment borrows of victims; None: there are none."""
    lent = {share.pool_name: share.amount for share in payment.loans}
    lending = {
        name: (
            account.spec.lending_limit,
            account.lent + ledger.promised_by(name) + lent.get(name, NOTHING),
        )
        for name, account in ledger.accounts.items()
        if account.spec.lending_limit is not None and name != pool_name
    }
    account = ledger.accounts[pool_name]
    if account.spec.borrowing_limit is None and not lending:
        return None
    return LoanCaps(
        pool_name=pool_name,
        borrowing=account.spec.borrowing_limit,
        borrowed=account.borrowed + ledger.promised_to(pool_name) + sum_of(lent.values()),
        lending=lending,
    )


def promise(
    victims: Iterable[tuple[str, tuple[Share, ...]]],
    pool_name: str,
    short: Resources,
    caps: LoanCaps | None,
) -> tuple[Share, ...]:
    """What a claim that is short gets of its victims, each a pool and its shares: first all that is of its
    own pool, then loans, within the limits.
    """
    victim_shares = [(victim_pool, share) for victim_pool, shares in victims for share in shares]
    own_shares = [share for _, share in victim_shares if share.pool_name == pool_name]
    promised = []
    for share in own_shares:
        part = short.within(share.amount)
        promised.append(Share(pool_name=pool_name, amount=part))
        short = short - part
    taken: dict[str, Resources] = {}
    for victim_pool, share in victim_shares:
        if share.pool_name == pool_name or not short:
            continue
        part = short.within(share.amount)
        if caps is not None:
            _, ((lender, amount),) = caps.split(victim_pool, (share,))
            before = caps.usable(short + sum_of(taken.values()), taken)
            more = {**taken, lender: taken.get(lender, NOTHING) + amount}
            part = caps.usable(short + sum_of(taken.values()), more) - before
            taken[lender] = taken.get(lender, NOTHING) + part
        promised.append(Share(pool_name=share.pool_name, amount=part))
        short = short - part
    return merged(promised)


def _borrowable(ledger: Ledger, pool_name: str, need: Resources) -> Resources:
    account = ledger.accounts[pool_name]
    limit = account.spec.borrowing_limit
    if limit is None:
        return need
    return limit.room(need, account.borrowed + ledger.promised_to(pool_name))


def _cover(idle: Resources, need: Resources) -> float:
    """How often the idle quota covers the need, in the kind of which it has least."""
    pairs = [(idle.cpu, need.cpu), (idle.memory, need.memory), (idle.gpu, need.gpu)]
    if need.custom:
        has = dict(idle.custom)
        pairs += [(has.get(name, 0), units) for name, units in need.custom]
    return min([amount / units for amount, units in pairs if units], default=0.0)
