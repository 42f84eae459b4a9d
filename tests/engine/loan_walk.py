"""Lending by plain walks: what a pool may borrow now, from whom it may reclaim, and what is enough."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from schedulemesh.domain.cohort import LoanLimit
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.state.agents import Running
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.tasks import RunningTask
from tests.engine import walk


class LoanWalk:
    """What a need lacks in its pool, its cohort and on the nodes, by plain walks over the present state."""

    def __init__(self, state: MeshState, pool_name: str, need: Resources) -> None:
        self.state, self.pool_name, self.need = state, pool_name, dict(need.items())
        self.account = state.ledger.accounts[pool_name]
        self.seats = walk.Seats(state, pool_name, need, anywhere=not state.cluster.nodes)

    def borrowable(self, kind: str) -> int:
        """How much of a kind the cohort lends now."""
        ledger = self.state.ledger
        if self.pool_name in self.state.policy.protected_pools:
            return 0
        idle = sum(
            within(
                ledger.accounts[name].spec.lending_limit,
                kind,
                dict(ledger.accounts[name].free.items()).get(kind, 0),
                ledger.accounts[name].lent + ledger.promised_by(name),
            )
            for name in ledger.cohorts.neighbours(self.pool_name).names
        )
        held = self.account.borrowed + ledger.promised_to(self.pool_name)
        return within(self.account.spec.borrowing_limit, kind, idle, held)

    def has_quota(self) -> bool:
        """Whether own free quota and what is idle in the cohort are enough."""
        own = dict(self.account.free.items())
        return all(
            units <= max(0, own.get(kind, 0)) + self.borrowable(kind)
            for kind, units in self.need.items()
        )

    def fits(self) -> bool:
        """Whether a single agent starts without any eviction."""
        return self.has_quota() and self.has_room(())

    def has_room(self, gone: Collection[str]) -> bool:
        """Whether some node has room once these agents are gone, gangs with their placement groups."""
        keys = [*gone, *(key for name in gone for key in self.keys_of_gang(name))]
        return self.seats.anywhere or any(
            self.seats.room(node_id, keys) for node_id in self.seats.open_nodes()
        )

    def keys_of_gang(self, name: str) -> list[str]:
        """The names of the allocations that the members of a gang have on nodes; none for a single agent."""
        group = self.state.groups.by_id.get(self.state.agents[name].group_id or "")
        return [] if group is None else [group.key(rank) for rank in range(len(group.node_ids))]

    def gives_back(self, labels: Mapping[str, str]) -> list[str]:
        """The names of the running borrowers that the pool may reclaim from: of its cohort, and those that
        hold its quota since before it left theirs.
        """
        state, found = self.state, []
        for name, agent in state.agents.items():
            tasks = [state.running.by_id[t] for t in state.running.on_agent(name)]
            borrows = any(share.pool_name != agent.spec.pool_name for share in agent.shares)
            near = agent.spec.pool_name in state.ledger.cohorts.neighbours(self.pool_name).names
            near = near or self.pool_name in agent.former_lenders
            alive = isinstance(agent.phase, Running) and tasks
            if alive and borrows and near and not any(self.is_spared(t, labels) for t in tasks):
                found.append(name)
        return found

    def is_spared(self, task: RunningTask, labels: Mapping[str, str]) -> bool:
        """Whether a borrower stays whatever the owner needs."""
        policy = self.state.policy
        if task.phase is not TaskPhase.RUNNING or task.spec.pool_name in policy.protected_pools:
            return True
        above = walk.rank(policy, task.spec.labels, labels)
        below = walk.rank(policy, labels, task.spec.labels)
        return policy.enable_label_preemption and bool(above) and not below

    def lacking(self) -> set[str]:
        """The kinds of which own free quota and what is idle in the cohort are not enough: only these have to
        be the owner's. All where it lacks none.
        """
        own = dict(self.account.free.items())
        lacking = {
            kind
            for kind, units in self.need.items()
            if units > max(0, own.get(kind, 0)) + self.borrowable(kind)
        }
        return lacking or set(self.need)

    def is_enough(self, gone: Collection[str], kinds: Collection[str] | None = None) -> bool:
        """Whether the owner has quota of these kinds (None: of all), its own alone, and room once these are
        gone.
        """
        own = dict(self.account.free.items())
        for name in gone:
            for share in self.state.agents[name].shares:
                if share.pool_name == self.pool_name:
                    for kind, units in share.amount.items():
                        own[kind] = own.get(kind, 0) + units
        quota = all(
            units <= own.get(kind, 0)
            for kind, units in self.need.items()
            if kinds is None or kind in kinds
        )
        return quota and self.has_room(gone)

    def beyond(self, pool_name: str) -> dict[str, int]:
        """By kind, what all tasks of a pool hold beyond its quota, whoever of them holds the loans; negative:
        what the quota would still allow.
        """
        found = {kind: -units for kind, units in self.quota_of(pool_name).items()}
        for agent in self.state.agents.values():
            if agent.spec.pool_name == pool_name:
                for share in agent.shares:
                    for kind, units in share.amount.items():
                        found[kind] = found.get(kind, 0) + units
        return found

    def quota_of(self, pool_name: str) -> dict[str, int]:
        """A pool's quota by kind."""
        return dict(self.state.ledger.accounts[pool_name].spec.resources.items())

    def may_exchange(self, victims: Collection[str]) -> bool:
        """Whether these may make room by taking over loans: their pools use at least that much beyond their
        quota, and the owner stays within its own, both in the kinds that it gets back.
        """
        own, kinds = self.beyond(self.pool_name), self.lacking()
        if any(units + own.get(kind, 0) > 0 for kind, units in self.need.items() if kind in kinds):
            return False
        held: dict[tuple[str, str], int] = {}
        for name in victims:
            agent = self.state.agents[name]
            for share in agent.shares:
                for kind, units in share.amount.items():
                    key = (agent.spec.pool_name, kind)
                    held[key] = held.get(key, 0) + units
        return all(
            units <= self.beyond(pool_name).get(kind, 0)
            for (pool_name, kind), units in held.items()
            if kinds == set(self.need) or kind in kinds
        )

    def is_surely_enough(self, gone: Collection[str]) -> bool:
        """Whether an eviction of these by the rules leaves quota and room: what they hold of the pool's own
        quota counts, and of others' quota what limits on loans leave even if all idle quota that is borrowed
        besides counts against each of these limits.
        """
        own = dict(self.account.free.items())
        return self.has_room(gone) and all(
            units <= max(0, own.get(kind, 0)) + self.gained(kind, units, gone)
            for kind, units in self.need.items()
        )

    def gained(self, kind: str, units: int, gone: Collection[str]) -> int:
        """How much of a kind comes from idle quota, and from what these agents hold."""
        ledger = self.state.ledger
        free = max(0, dict(self.account.free.items()).get(kind, 0))
        idle = min(self.borrowable(kind), max(0, units - free))
        mine, loans = 0, 0
        held: dict[str, int] = {}
        for name in gone:
            agent = self.state.agents[name]
            for share in agent.shares:
                amount = dict(share.amount.items()).get(kind, 0)
                if share.pool_name == self.pool_name:
                    mine += amount
                elif share.pool_name == agent.spec.pool_name:
                    held[share.pool_name] = held.get(share.pool_name, 0) + amount
                else:
                    loans += amount  # a loan that passes on: its owner lends no more than before
        for lender, amount in held.items():
            used = ledger.accounts[lender].lent + ledger.promised_by(lender)
            limit = ledger.accounts[lender].spec.lending_limit
            loans += (
                amount if limit is None else max(0, within(limit, kind, amount + idle, used) - idle)
            )
        borrowed = self.account.borrowed + ledger.promised_to(self.pool_name)
        limit = self.account.spec.borrowing_limit
        if limit is not None:
            loans = max(0, within(limit, kind, loans + idle, borrowed) - idle)
        return idle + mine + loans


def within(limit: LoanLimit | None, kind: str, amount: int, used: Resources) -> int:
    """The part of an amount of one kind that a limit on loans leaves."""
    amount = max(0, amount)
    if limit is None:
        return amount
    if limit.nothing:
        return 0
    named = dict(limit.named)
    if kind not in named:
        return amount
    return max(0, min(amount, named[kind] - dict(used.items()).get(kind, 0)))
