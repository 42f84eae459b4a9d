"""The quota ledger: the quota of each pool, which claims hold it, and which part is on loan.

A claim is charged to *shares*: a pool and an amount. A share of a pool other than the claim's own is a loan:
it counts against the owner's total as reserved or used, and is shown there as lent and at the claim's pool as
borrowed. So no claim exceeds a pool's total, and the loan ends with the claim. A total that is made smaller
than what is held stays exceeded until enough has ended.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.domain.cohort import CohortSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import NOTHING, Resources, sum_of, without
from schedulemesh.engine.messages.facts import HoldShrank, QuotaHeld, Share, merged
from schedulemesh.engine.state.cohorts import CohortTree
from schedulemesh.engine.state.decay import decayed_mean


class Account(msgspec.Struct, kw_only=True, gc=False):
    """The quota of one pool. Invariant: reserved + used <= total, kind by kind, or they have not grown since
    the total was made smaller.
    """

    spec: PoolSpec
    #: Held by claims whose agent does not run yet, and by holds; including loans to other pools.
    reserved: Resources = NOTHING
    #: Held by running agents; including loans to other pools.
    used: Resources = NOTHING
    #: The part of reserved + used that claims of other pools hold.
    lent: Resources = NOTHING
    #: Quota of other pools that this pool's claims hold.
    borrowed: Resources = NOTHING
    #: The decayed mean of the net loans until ``mean_at``, by kind; see ``mean_loans``.
    mean: dict[str, float] = {}
    mean_at: float = 0.0

    @property
    def free(self) -> Resources:
        """The part of the total that is not held; negative where it was made smaller than what is held."""
        total, reserved, used = self.spec.resources, self.reserved, self.used
        # The same as ``total - reserved - used``, and faster, because this is asked most often.
        custom = total.custom
        if reserved.custom or used.custom:
            custom = without(custom, reserved.custom, used.custom)
        return Resources(
            cpu=total.cpu - reserved.cpu - used.cpu,
            memory=total.memory - reserved.memory - used.memory,
            gpu=total.gpu - reserved.gpu - used.gpu,
            custom=custom,
        )

    @property
    def above(self) -> Resources:
        """What of reserved + used is above the total, after the pool was made smaller."""
        return (self.reserved + self.used).beyond(self.spec.resources)

    @property
    def net_loans(self) -> Resources:
        """What it has borrowed less what it has lent; negative where it has lent more."""
        return self.borrowed - self.lent

    def mean_loans(self, now: float, half_life_s: float) -> dict[str, float]:
        """The mean of the net loans over all time until ``now``, by kind, in which what was held one
        half-life ago counts half as much as what is held now.
        """
        return decayed_mean(self.mean, self.mean_at, self.net_loans, now, half_life_s)

    def note_loan(
        self, *, borrowed: Resources, lent: Resources, at: float, half_life_s: float
    ) -> None:
        """Change what it has borrowed and lent."""
        self.mean = self.mean_loans(at, half_life_s)
        self.mean_at = max(self.mean_at, at)
        self.borrowed = self.borrowed + borrowed
        self.lent = self.lent + lent


class Hold(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Quota held for one pool or one client; see ``QuotaHeld``."""

    for_pool: str | None = None
    for_client: str | None = None
    shares: tuple[Share, ...]
    until: float


class Ledger:
    """Accounts of all pools, the cohorts that they are in, and the holds and loans between them."""

    def __init__(self) -> None:
        #: By pool name, in the order in which the pools were created.
        self.accounts: dict[str, Account] = {}
        #: Names of the pools that have flavors.
        self.flavored: set[str] = set()
        self.holds: dict[str, Hold] = {}
        #: Pools of which quota has become free since the queue was served last.
        self.freed: set[str] = set()
        self.cohorts = CohortTree()
        #: What ``quota_of_tree`` has found.
        self._quota_of_tree: dict[str, dict[str, int]] = {}
        #: What each tree of cohorts may lend in sum, by its root, and each pool of it; brought up to date for
        #: the pools that have changed since, when it is asked for (``lending.idle_of_tree``).
        self.idle_of_trees: dict[str, Resources] = {}
        self.lendable: dict[str, Resources] = {}
        self.changed: set[str] = set()
        #: (owner, borrower): the quota of the owner that the borrower's claims hold.
        self.loans: dict[tuple[str, str], Resources] = {}
        #: Names of the pools that hold more than their quota, which was made smaller.
        self.over_quota: dict[str, None] = {}
        #: Names of the pools that are being deleted, which lend nothing more.
        self.closed: set[str] = set()
        #: The time of the change in progress, in seconds since 1970.
        self.clock = 0.0
        #: The half-life of past loans in ``Account.mean_loans``; 0: only present loans count.
        self.half_life_s = 0.0
        #: By the name of the incoming agent: its pool, and the loans that it gets when its victims have
        #: ended.
        self.promises: dict[str, tuple[str, tuple[Share, ...]]] = {}
        #: How claims would be paid that their pools' own free quota does not cover: what was found out since
        #: anything above has changed. It only spares work; see ``lending``.
        self.payments: dict[PaymentKey, Payment] = {}

    def ensure(self, spec: PoolSpec) -> None:
        """Open an account, or change the definition of the pool."""
        account = self.accounts.get(spec.name)
        if account is None:
            self.accounts[spec.name] = Account(spec=spec)
        else:
            account.spec = spec
        (self.flavored.add if spec.flavors else self.flavored.discard)(spec.name)
        self.note_over_quota(spec.name)
        self._trees_changed()
        self.freed.add(spec.name)
        self.cohorts.join(spec.name, spec.cohort)

    def remove(self, name: str) -> None:
        """Close the account of a pool that nothing uses."""
        del self.accounts[name]
        self.flavored.discard(name)
        self.over_quota.pop(name, None)
        self.closed.discard(name)
        self._trees_changed()
        self.cohorts.join(name, None)

    def close(self, name: str, *, closed: bool) -> None:
        """Have a pool lend nothing more, or lend again."""
        (self.closed.add if closed else self.closed.discard)(name)
        self._note_change(name)
        self.freed.add(name)

    def rename(
        self,
        accounts: dict[str, Account],
        loans: dict[tuple[str, str], Resources],
        holds: dict[str, Hold],
        promises: dict[str, tuple[str, tuple[Share, ...]]],
    ) -> None:
        """Take these, in which a pool has another name, in place of what there is."""
        self.accounts, self.loans, self.holds, self.promises = accounts, loans, holds, promises
        self.flavored = {name for name, account in accounts.items() if account.spec.flavors}
        self._trees_changed()

    def note_over_quota(self, name: str) -> None:
        """Note whether a pool holds more than its quota."""
        self.over_quota.pop(name, None)
        if self.accounts[name].above:
            self.over_quota[name] = None

    def ensure_cohort(self, spec: CohortSpec) -> None:
        """Create a cohort, or change its definition: its pools may have new lenders."""
        self._trees_changed()
        self.cohorts.ensure(spec)
        self.freed.update(self.cohorts.pools_below(self.cohorts.upwards(spec.name)[-1]))

    def rename_cohort(self, name: str, new_name: str) -> None:
        """A cohort has another name, which its pools name."""
        for account in self.accounts.values():
            if account.spec.cohort == name:
                account.spec = msgspec.structs.replace(account.spec, cohort=new_name)
        self.cohorts.rename(name, new_name)
        self._trees_changed()

    def quota_of_tree(self, root: str) -> dict[str, int]:
        """The quota of all pools of a tree of cohorts, by kind; not to be changed."""
        quota = self._quota_of_tree.get(root)
        if quota is None:
            below = self.cohorts.pools_below(root)
            total = sum_of(self.accounts[name].spec.resources for name in below)
            quota = self._quota_of_tree[root] = dict(total.items())
        return quota

    def reserve(self, pool_name: str, shares: Iterable[Share]) -> None:
        """Reserve these shares for a claim of the pool."""
        for share in shares:
            self._note_change(share.pool_name)
            owner = self.accounts[share.pool_name]
            owner.reserved = owner.reserved + share.amount
            if share.pool_name != pool_name:
                self._lend(owner, pool_name, share.amount)
            if owner.free.negative():
                self.note_over_quota(share.pool_name)  # what a victim held passes on

    def commit(self, shares: Iterable[Share]) -> None:
        """Turn reserved shares into used ones."""
        for share in shares:
            owner = self.accounts[share.pool_name]
            owner.reserved = owner.reserved - share.amount
            owner.used = owner.used + share.amount

    def release(self, pool_name: str, shares: Iterable[Share], *, committed: bool) -> None:
        """Release the shares of a claim to the pools that own them."""
        for share in shares:
            self._note_change(share.pool_name)
            self.freed.add(share.pool_name)
            owner = self.accounts[share.pool_name]
            if committed:
                owner.used = owner.used - share.amount
            else:
                owner.reserved = owner.reserved - share.amount
            if share.pool_name != pool_name:
                self._lend(owner, pool_name, NOTHING - share.amount)
            if share.pool_name in self.over_quota:
                self.note_over_quota(share.pool_name)

    def quota_held(self, fact: QuotaHeld) -> None:
        """Hold quota that has just become free."""
        self.clock = fact.at
        for_pool, for_client = fact.for_pool, fact.for_client
        hold = Hold(for_pool=for_pool, for_client=for_client, shares=fact.shares, until=fact.until)
        self.hold(fact.hold_id, hold)
        # Tasks that wait in the pool may use it; of which pools the client's tasks are is not known.
        self.freed.update(self.accounts if for_pool is None else (for_pool,))

    def hold_shrank(self, fact: HoldShrank) -> None:
        """Reduce a hold, of which some was used or has expired."""
        self.clock = fact.at
        self.shrink_hold(fact.hold_id, fact.shares)

    def hold(self, hold_id: str, hold: Hold) -> None:
        """Hold shares for a pool, which borrows them, or for a client, whose pool is not known yet."""
        for share in hold.shares:
            self.reserve(hold.for_pool or share.pool_name, (share,))
        self.holds[hold_id] = hold

    def shrink_hold(self, hold_id: str, remaining: tuple[Share, ...]) -> None:
        """Reduce a hold to these shares."""
        hold = self.holds.pop(hold_id)
        for share in hold.shares:
            self.release(hold.for_pool or share.pool_name, (share,), committed=False)
        if remaining:
            self.hold(hold_id, msgspec.structs.replace(hold, shares=remaining))

    def holds_for(self, pool_name: str, client: str | None) -> list[tuple[str, Hold]]:
        """The holds that a claim of this pool by this client may use, the first to expire first."""
        usable_holds = [
            (key, hold)
            for key, hold in self.holds.items()
            if hold.for_pool == pool_name
            or (hold.for_client is not None and hold.for_client == client)
        ]
        return sorted(usable_holds, key=lambda entry: (entry[1].until, entry[0]))

    def note_promise(self, agent_name: str, pool_name: str, promised: Iterable[Share]) -> None:
        """Record which loans an incoming agent still gets; quota of its own pool is none."""
        loans = tuple(share for share in promised if share.pool_name != pool_name)
        self._note_change(*(loan.pool_name for loan in loans))
        if loans:
            self.promises[agent_name] = (pool_name, loans)
        else:
            self.drop_promise(agent_name)

    def drop_promise(self, agent_name: str) -> None:
        """An incoming agent gets no more loans of its victims: others may borrow within the same limits."""
        if agent_name in self.promises:
            pool_name, loans = self.promises.pop(agent_name)
            self._note_change(*(loan.pool_name for loan in loans))
            self.freed.update((pool_name, *(loan.pool_name for loan in loans)))

    def promised_by(self, owner: str) -> Resources:
        """What incoming agents of other pools still get of this pool's quota, at most."""
        every = (share for _, shares in self.promises.values() for share in shares)
        return sum_of(share.amount for share in every if share.pool_name == owner)

    def promised_to(self, borrower: str) -> Resources:
        """What incoming agents of this pool still get of other pools' quota."""
        promised_shares = (
            shares for pool_name, shares in self.promises.values() if pool_name == borrower
        )
        return sum_of(share.amount for shares in promised_shares for share in shares)

    def lent_by(self, owner: str) -> dict[str, Resources]:
        """What each other pool holds of this one's quota, by name."""
        return {other: amount for (lender, other), amount in self.loans.items() if lender == owner}

    def borrowed_by(self, pool_name: str) -> dict[str, Resources]:
        """What this pool holds of each other one's quota, by name."""
        return {owner: amount for (owner, who), amount in self.loans.items() if who == pool_name}

    def _note_change(self, *pools: str) -> None:
        """What these pools have free, or may lend, has changed."""
        self.payments.clear()
        self.changed.update(pools)

    def _trees_changed(self) -> None:
        """Pools and cohorts have changed: all of it is found out anew."""
        self.payments.clear()
        self._quota_of_tree.clear()
        self.idle_of_trees.clear()
        self.lendable.clear()
        self.changed.clear()

    def _lend(self, owner: Account, pool_name: str, amount: Resources) -> None:
        at, half_life_s = self.clock, self.half_life_s
        owner.note_loan(borrowed=NOTHING, lent=amount, at=at, half_life_s=half_life_s)
        self.accounts[pool_name].note_loan(
            borrowed=amount, lent=NOTHING, at=at, half_life_s=half_life_s
        )
        pair = (owner.spec.name, pool_name)
        loan = self.loans.pop(pair, NOTHING) + amount
        if loan:
            self.loans[pair] = loan


#: Pool, need, client, and whether the pool may borrow.
PaymentKey = tuple[str, Resources, "str | None", bool]


class Payment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a claim is charged: its shares, the holds that they use, and what is still short."""

    shares: tuple[Share, ...]
    #: The rest of each hold that was used.
    holds_left: tuple[tuple[str, tuple[Share, ...]], ...] = ()
    #: Those of the shares that are borrowed of what is idle in the cohort.
    loans: tuple[Share, ...] = ()
    short: Resources = NOTHING


def pay(ledger: Ledger, pool_name: str, need: Resources, client: str | None = None) -> Payment:
    """Charge a claim of this pool: first to quota that is held for the pool or the client, then to the pool's
    own free quota. What is idle in its cohort is not asked: see ``lending``.

    ``short`` is what neither covers; the shares then cover the rest.
    """
    if not ledger.holds and need.fits(free := ledger.accounts[pool_name].free):
        return paid_alone(pool_name, need)
    shares: list[Share] = []
    holds_left = []
    for key, hold in ledger.holds_for(pool_name, client):
        taken, remaining, need = _draw(hold.shares, need)
        if taken:
            shares += taken
            holds_left.append((key, remaining))
    free = ledger.accounts[pool_name].free
    own_part = need.within(free)
    if own_part:
        shares.append(Share(pool_name=pool_name, amount=own_part))
    return Payment(shares=merged(shares), holds_left=tuple(holds_left), short=need - own_part)


def paid_alone(pool_name: str, need: Resources) -> Payment:
    """The payment of a claim that its pool's own free quota covers."""
    return Payment(shares=() if need == NOTHING else (Share(pool_name=pool_name, amount=need),))


def can_pay(ledger: Ledger, pool_name: str, need: Resources, client: str | None = None) -> bool:
    """Whether ``pay`` would leave nothing short."""
    if need.fits(ledger.accounts[pool_name].free):
        return True
    return bool(ledger.holds) and not pay(ledger, pool_name, need, client).short


def pass_on(freed: Iterable[Share], promised: Iterable[Share]) -> tuple[Share, ...]:
    """The part of a victim's shares that is promised to the incoming claim."""
    promised_amounts = {share.pool_name: share.amount for share in promised}
    taken = []
    for share in merged(freed):
        part = promised_amounts.get(share.pool_name, NOTHING).within(share.amount)
        if part:
            taken.append(Share(pool_name=share.pool_name, amount=part))
    return tuple(taken)


def _draw(
    shares: tuple[Share, ...], need: Resources
) -> tuple[list[Share], tuple[Share, ...], Resources]:
    """Take what is needed from these shares: the taken shares, the rest, and what is still needed."""
    taken, remaining = [], []
    for share in shares:
        part = need.within(share.amount)
        if part:
            taken.append(Share(pool_name=share.pool_name, amount=part))
            need = need - part
        if rest := share.amount - part:
            remaining.append(Share(pool_name=share.pool_name, amount=rest))
    return taken, tuple(remaining), need
