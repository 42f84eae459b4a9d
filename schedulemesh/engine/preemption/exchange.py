"""Reclaim with exchanged loans: an owner gets its quota back from any tasks of the pool that borrows it.

Which of a pool's tasks holds a loan depends on the order in which they started, but the room that an owner
needs may be held by others: eight small tasks on eight nodes hold the loans, and a task on the pool's own
quota holds a whole node. So where the eviction of borrowers (``reclaim``) makes no room, other tasks of pools
that use more than their quota may be evicted, up to what each pool uses beyond it, all tasks counted. Before
that, the victims take over the loans of tasks that stay, and give these quota of their own pool
(``LoansExchanged``); so it is the loans that end, and no account changes.

The incoming task's pool must not use more than its quota with it, all its tasks counted. So what has been
reclaimed this way is not beyond its pool's quota, and nobody reclaims it in turn.

Beside what spares borrowers, those are spared that hold quota of their own pool and would lose their work, or
would not join the queue again; but no extra members of elastic gangs, which are given up before the core.
The order of victims is that of ``reclaim``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from schedulemesh.domain.cohort import LoanLimit
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, Resources, sum_of
from schedulemesh.engine.messages.facts import Share, merged
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.preemption.reclaim import Borrowers
from schedulemesh.engine.preemption.savable import can_be_saved, returns_when_evicted
from schedulemesh.engine.preemption.veto import PluginVeto
from schedulemesh.engine.preemption.victims import VictimAgent, is_running
from schedulemesh.engine.state.lending import LoanCaps
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.preemption_rules import Incoming, Verdict
from schedulemesh.engine.state.quota import Account
from schedulemesh.engine.state.tasks import RunningTask, TaskClass

#: The shares that claims hold after an exchange, by agent.
Claims = tuple[tuple[str, tuple[Share, ...]], ...]


class TasksOfBorrowers(Borrowers):
    """The tasks of pools that use more than their quota, whoever of them holds the loans."""

    def __init__(
        self,
        state: MeshState,
        incoming: Incoming,
        now: float,
        veto: PluginVeto | None = None,
        revoked: tuple[str, ...] = (),
        of_kinds: Resources | None = None,
    ) -> None:
        super().__init__(state, incoming, now, veto)
        #: Agents whose claims count as revoked: their pools use less without them.
        self._revoked = revoked
        #: Only tasks of pools that hold quota of the incoming task's pool of these kinds; None: of all.
        self._lent_kinds = of_kinds

    def candidate_of(self, task: RunningTask) -> Candidate | None:
        """See ``Candidates.candidate_of``."""
        agent = self._state.agents.get(task.agent_name)
        if agent is None:
            return None
        excess = self._excess.get(agent.spec.pool_name, NOTHING)
        if not _fits(agent.spec.quota, excess):
            return None
        if task.spec.extra_of:
            return super().candidate_of(task)
        has_own_quota = any(share.pool_name == agent.spec.pool_name for share in agent.shares)
        if has_own_quota and not can_be_saved(self._state, agent):
            return None
        return (
            super().candidate_of(task) if returns_when_evicted(self._state, task, agent) else None
        )

    @cached_property
    def _excess(self) -> dict[str, Resources]:
        excess = {
            name: excess_of(self._state, name, self._revoked)
            for name in sorted(self._incoming.neighbours)
            if self._holds_of_owner(name)
        }
        if self._lent_kinds is not None:
            kinds = self._lent_kinds
            excess = {name: amount.of_kinds(kinds) for name, amount in excess.items()}
        return {name: amount for name, amount in excess.items() if amount}

    def _holds_of_owner(self, pool_name: str) -> bool:
        """Whether a pool holds quota of the incoming task's pool of the kinds that this gets back."""
        loan = self._state.ledger.loans.get((self._incoming.pool_name, pool_name), NOTHING)
        return self._lent_kinds is None or loan.helps(self._lent_kinds)

    def _judge_all(self) -> list[tuple[TaskClass, Verdict]]:
        return [
            (task_class, self._judge_in_sum(task_class))
            for task_class in self._running.occupied
            if task_class.pool_name in self._excess
        ]

    def _judge_in_sum(self, task_class: TaskClass) -> Verdict:
        excess = self._excess[task_class.pool_name]
        if not _fits(task_class.quota, excess):
            return Verdict(refused=Reason.OWN_QUOTA)
        return self._judge(task_class)

    def caps(self) -> LoanCaps:
        """What the incoming task's pool gets back of each borrowing pool, at most: all that it has lent."""
        ledger, owner = self._state.ledger, self._incoming.pool_name
        lending = {
            name: (LoanLimit(named=_named(ledger.loans.get((owner, name), NOTHING))), NOTHING)
            for name in self._excess
        }
        return LoanCaps(pool_name=owner, borrowing=None, borrowed=NOTHING, lending=lending)


def uses_no_more_than_its_quota(account: Account, need: Resources) -> bool:
    """Whether the claims of a pool, whoever lends it quota, and this need fit into the pool's own quota."""
    return need.fits(account.free - account.net_loans)


def excess_of(state: MeshState, pool_name: str, revoked: tuple[str, ...] = ()) -> Resources:
    """What the claims of a pool hold beyond its own quota, whoever lends it, without those of the revoked
    agents and of those that are leaving.
    """
    account = state.ledger.accounts[pool_name]
    gone = state.leaving.union(revoked).intersection(state.agents_of[pool_name])
    paid = sum_of(state.agents[name].paid for name in gone)
    return (account.net_loans - paid).beyond(account.free)


def exchanged(
    state: MeshState,
    owner: str,
    victims: Iterable[VictimAgent],
    short: Resources,
    revoked: tuple[str, ...] = (),
) -> Claims | None:
    """The shares of the victims, and of the claims of their pools that stay, after the exchange: victims take
    over as many loans as they can, those of this owner first, until they cover what it is short of. None:
    they do not cover it, or the victims of a pool hold more than it uses beyond its quota. ``revoked``: see
    ``excess_of``.
    """
    new_shares: dict[str, tuple[Share, ...]] = {}
    by_pool: dict[str, list[VictimAgent]] = {}
    for victim in victims:
        by_pool.setdefault(victim.pool_name, []).append(victim)
        new_shares[victim.name] = victim.shares
        short = short.beyond(_part(victim.shares, owner))
    for pool_name, of_pool in by_pool.items():
        used = sum_of(state.agents[victim.name].spec.quota for victim in of_pool)
        if not _fits(used, excess_of(state, pool_name, revoked)):
            return None
        short = _exchange(state, pool_name, owner, [v.name for v in of_pool], short, new_shares)
    if short:
        return None
    names = {name for name, shares in new_shares.items() if shares != state.agents[name].shares}
    return tuple((name, new_shares[name]) for name in sorted(names))


def _exchange(
    state: MeshState,
    pool_name: str,
    owner: str,
    victims: list[str],
    short: Resources,
    new_shares: dict[str, tuple[Share, ...]],
) -> Resources:
    """Have the victims of one pool take over loans; what the owner is still short of."""
    stay = [
        n
        for n in sorted(state.agents_of[pool_name])
        if n not in new_shares and is_running(state, n)
    ]
    for name in victims:
        for other in stay:
            short = _swap(state, pool_name, owner, name, other, short, new_shares)
            if not _part(new_shares[name], pool_name):
                break
    return short


def _swap(
    state: MeshState,
    pool_name: str,
    owner: str,
    victim: str,
    other: str,
    short: Resources,
    new_shares: dict[str, tuple[Share, ...]],
) -> Resources:
    """Have a victim take over the loans of one claim that stays, for quota of their own pool."""
    other_shares = new_shares.get(other, state.agents[other].shares)
    for loan in other_shares:
        if loan.pool_name == pool_name or (short and loan.pool_name != owner):
            continue
        part = loan.amount.within(_part(new_shares[victim], pool_name))
        if not part:
            continue
        new_shares[victim] = _moved(new_shares[victim], part, pool_name, loan.pool_name)
        new_shares[other] = _moved(
            new_shares.get(other, other_shares), part, loan.pool_name, pool_name
        )
        if loan.pool_name == owner:
            short = short.beyond(part)
    return short


def _moved(
    shares: tuple[Share, ...], amount: Resources, from_pool: str, to_pool: str
) -> tuple[Share, ...]:
    """Shares with so much of one pool less, and of another more."""
    less = Share(pool_name=from_pool, amount=NOTHING - amount)
    return merged((*shares, less, Share(pool_name=to_pool, amount=amount)))


def _part(shares: Iterable[Share], pool_name: str) -> Resources:
    """What of these shares is quota of a pool."""
    return sum_of(share.amount for share in shares if share.pool_name == pool_name)


def _fits(amount: Resources, excess: Resources) -> bool:
    """Whether so much may be taken of a pool with this excess, in the kinds of which it has any."""
    most = dict(amount.items())
    return bool(excess) and all(most.get(kind, 0) <= units for kind, units in excess.items())


def _named(amount: Resources) -> tuple[tuple[str, int], ...]:
    """The amounts by kind, sorted; a kind that is not there counts as zero."""
    kinds = {"cpu": 0, "memory": 0, "gpu": 0, **dict(amount.items())}
    return tuple(sorted(kinds.items()))
