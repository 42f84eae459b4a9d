"""The quota ledger: the quota of each pool, which claims hold it, and which part is on loan.

A claim is charged to *shares*: a pool and an amount. A share of a pool other than the claim's own is a loan:
it counts against the owner's total as reserved or used, and is shown there as lent and at the claim's pool as
borrowed. So no pool's total is ever exceeded, and the loan ends with the claim.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.messages.facts import Share


class Account(msgspec.Struct, kw_only=True, gc=False):
    """The quota of one pool. Invariant: reserved + used <= total, kind by kind."""

    spec: PoolSpec
    #: Held by claims whose agent does not run yet, and by holds; including loans to other pools.
    reserved: Resources = NOTHING
    #: Held by running agents; including loans to other pools.
    used: Resources = NOTHING
    #: The part of reserved + used that claims of other pools hold.
    lent: Resources = NOTHING
    #: Quota of other pools that this pool's claims hold.
    borrowed: Resources = NOTHING

    @property
    def free(self) -> Resources:
        """The part of the total that is not held; negative only after a forced shrink."""
        return self.spec.resources - self.reserved - self.used


class Hold(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Quota held for one pool or one client after a manual eviction."""

    for_pool: str | None = None
    for_client: str | None = None
    shares: tuple[Share, ...]
    until: float


class Ledger:
    """Accounts of all pools, and the holds between them."""

    def __init__(self) -> None:
        #: By pool name, in the order in which the pools were created.
        self.accounts: dict[str, Account] = {}
        self.holds: dict[str, Hold] = {}
        #: Pools of which quota has become free since the queue was served last.
        self.freed: set[str] = set()

    def ensure(self, spec: PoolSpec) -> None:
        """Open an account, or change the definition of the pool."""
        account = self.accounts.get(spec.name)
        if account is None:
            self.accounts[spec.name] = Account(spec=spec)
        else:
            account.spec = spec
        self.freed.add(spec.name)

    def reserve(self, pool_name: str, shares: Iterable[Share]) -> None:
        """Reserve these shares for a claim of the pool."""
        for share in shares:
            owner = self.accounts[share.pool_name]
            owner.reserved = owner.reserved + share.amount
            if share.pool_name != pool_name:
                self._lend(owner, pool_name, share.amount)

    def commit(self, shares: Iterable[Share]) -> None:
        """Turn reserved shares into used ones."""
        for share in shares:
            owner = self.accounts[share.pool_name]
            owner.reserved = owner.reserved - share.amount
            owner.used = owner.used + share.amount

    def release(self, pool_name: str, shares: Iterable[Share], *, committed: bool) -> None:
        """Release the shares of a claim to the pools that own them."""
        for share in shares:
            self.freed.add(share.pool_name)
            owner = self.accounts[share.pool_name]
            if committed:
                owner.used = owner.used - share.amount
            else:
                owner.reserved = owner.reserved - share.amount
            if share.pool_name != pool_name:
                self._lend(owner, pool_name, NOTHING - share.amount)

    def hold(self, hold_id: str, hold: Hold) -> None:
        """Hold shares for a pool, which borrows them, or for a client, whose pool is not known yet."""
        for share in hold.shares:
            self.reserve(hold.for_pool or share.pool_name, (share,))
        self.holds[hold_id] = hold

    def shrink_hold(self, hold_id: str, left: tuple[Share, ...]) -> None:
        """Reduce a hold to these shares."""
        hold = self.holds.pop(hold_id)
        for share in hold.shares:
            self.release(hold.for_pool or share.pool_name, (share,), committed=False)
        if left:
            self.hold(hold_id, msgspec.structs.replace(hold, shares=left))

    def holds_for(self, pool_name: str, client: str | None) -> list[tuple[str, Hold]]:
        """The holds that a claim of this pool by this client may use, the first to expire first."""
        mine = [
            (key, hold)
            for key, hold in self.holds.items()
            if hold.for_pool == pool_name
            or (hold.for_client is not None and hold.for_client == client)
        ]
        return sorted(mine, key=lambda entry: (entry[1].until, entry[0]))

    def _lend(self, owner: Account, pool_name: str, amount: Resources) -> None:
        owner.lent = owner.lent + amount
        borrower = self.accounts[pool_name]
        borrower.borrowed = borrower.borrowed + amount


class Payment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a claim is charged: its shares, the holds that they use, and what is still short."""

    shares: tuple[Share, ...]
    #: The rest of each hold that was used.
    holds_left: tuple[tuple[str, tuple[Share, ...]], ...] = ()
    short: Resources = NOTHING


def pay(ledger: Ledger, pool_name: str, need: Resources, client: str | None = None) -> Payment:
    """Charge a claim of this pool: first to quota that is held for the pool or the client, then to the pool's
    own free quota.

    ``short`` is what neither covers; the shares then cover the rest.
    """
    if not ledger.holds and need.fits(free := ledger.accounts[pool_name].free):
        return Payment(shares=(Share(pool_name=pool_name, amount=need),) if need else ())
    shares: list[Share] = []
    holds_left = []
    for key, hold in ledger.holds_for(pool_name, client):
        taken, left, need = _draw(hold.shares, need)
        if taken:
            shares += taken
            holds_left.append((key, left))
    free = ledger.accounts[pool_name].free
    own = need.within(free)
    if own:
        shares.append(Share(pool_name=pool_name, amount=own))
    return Payment(shares=merged(shares), holds_left=tuple(holds_left), short=need - own)


def can_pay(ledger: Ledger, pool_name: str, need: Resources, client: str | None = None) -> bool:
    """Whether ``pay`` would leave nothing short."""
    if need.fits(ledger.accounts[pool_name].free):
        return True
    return bool(ledger.holds) and not pay(ledger, pool_name, need, client).short


def pass_on(freed: Iterable[Share], need: Resources) -> tuple[tuple[Share, ...], Resources]:
    """The part of a victim's shares that the incoming claim takes (at most what it is short of), and what it
    is still short of.
    """
    taken, _, left = _draw(tuple(freed), need)
    return tuple(taken), left


def merged(shares: Iterable[Share]) -> tuple[Share, ...]:
    """The same shares with one entry per pool."""
    total: dict[str, Resources] = {}
    for share in shares:
        total[share.pool_name] = total.get(share.pool_name, NOTHING) + share.amount
    return tuple(Share(pool_name=name, amount=amount) for name, amount in total.items() if amount)


def _draw(
    shares: tuple[Share, ...], need: Resources
) -> tuple[list[Share], tuple[Share, ...], Resources]:
    """Take what is needed from these shares: the taken shares, the rest, and what is still needed."""
    taken, left = [], []
    for share in shares:
        part = need.within(share.amount)
        if part:
            taken.append(Share(pool_name=share.pool_name, amount=part))
            need = need - part
        if rest := share.amount - part:
            left.append(Share(pool_name=share.pool_name, amount=rest))
    return taken, tuple(left), need
