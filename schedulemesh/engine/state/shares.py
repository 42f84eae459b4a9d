"""The weighted dominant share of a pool: how much of its cohorts' quota it uses beyond its own.

A pool's net loans are what it has borrowed less what it has lent; those of a cohort are the sum over the
pools below it, so that loans among them count nothing outside. The share of either is

    max over kinds of (loans / total quota of the whole tree of cohorts) / weight

and at least 0. The loans are the present net loans, or their decayed mean over time where that is more: a
pool that has borrowed for long comes after one that has waited, also when it holds nothing at the moment.
The half-life of the mean is the policy's ``usage_half_life_s``. The share is dominant as in Ghodsi et al.,
"Dominant Resource Fairness" (NSDI 2011), and weighted and hierarchical as in Kueue's fair sharing. Pools are
compared where their paths in the tree part: first by the shares of the cohorts there, then of those below.
"""

from __future__ import annotations

from collections.abc import Iterable

from schedulemesh.domain.resources import sum_of
from schedulemesh.engine.state.mesh_state import MeshState

#: The shares of the cohorts below the root that a pool is in, outermost first, and then its own.
ShareKey = tuple[float, ...]


def share_key(state: MeshState, pool_name: str, now: float) -> ShareKey:
    """The shares by which pools are compared, ascending: the one with the lower key may borrow first, the one
    with the higher key is reclaimed first. (0.0,) for a pool without a cohort.
    """
    return Shares(state, now).key(pool_name)


class Shares:
    """The shares of all pools at one time; what several of them need is computed once."""

    def __init__(self, state: MeshState, now: float) -> None:
        self._ledger = state.ledger
        self._now = now
        self._of_cohort: dict[str, float] = {}

    def keys(self, pools: Iterable[str]) -> dict[str, ShareKey]:
        """The keys of these pools."""
        return {name: self.key(name) for name in pools}

    def key(self, pool_name: str) -> ShareKey:
        """See ``share_key``."""
        path = self._ledger.cohorts.path(pool_name)
        if not path:
            return (0.0,)
        total = self._ledger.quota_of_tree(path[-1])
        above = (self._cohort_share(cohort, total) for cohort in reversed(path[:-1]))
        weight = self._ledger.accounts[pool_name].spec.weight
        return (*above, self._share((pool_name,), total) / weight)

    def _cohort_share(self, cohort: str, total: dict[str, int]) -> float:
        if cohort not in self._of_cohort:
            weight = self._ledger.cohorts.specs[cohort].weight
            below = self._ledger.cohorts.pools_below(cohort)
            self._of_cohort[cohort] = self._share(below, total) / weight
        return self._of_cohort[cohort]

    def _share(self, pools: Iterable[str], total: dict[str, int]) -> float:
        """The share of these pools together, before it is divided by the weight."""
        present: dict[str, float] = {}
        mean: dict[str, float] = {}
        for name in pools:
            account = self._ledger.accounts[name]
            for kind, units in account.net_loans.items():
                present[kind] = present.get(kind, 0.0) + units
            for kind, value in account.mean_loans(self._now, self._ledger.half_life_s).items():
                mean[kind] = mean.get(kind, 0.0) + value
        parts = [max(present.get(k, 0.0), mean.get(k, 0.0)) / units for k, units in total.items()]
        return max(0.0, *parts, 0.0)


def dominant_usage(state: MeshState, pool_name: str) -> float:
    """The largest part, over all kinds, of the quota of all pools that the tasks of this pool hold, whoever
    lends it, divided by the pool's weight.
    """
    account = state.ledger.accounts[pool_name]
    usage = account.reserved + account.used + account.net_loans
    total = sum_of(each.spec.resources for each in state.ledger.accounts.values())
    amounts = dict(usage.items())
    parts = (amounts.get(kind, 0) / units for kind, units in total.items() if units)
    return max(parts, default=0.0) / account.spec.weight


def raised_weight(state: MeshState, pool_name: str, now: float) -> float:
    """By which factor the weight of a pool is raised among those that wait, for the wait of its first task;
    see ``QueuePolicy.raise_of``.
    """
    first = state.queue.first_of(pool_name)
    return 1.0 if first is None else state.queue.policy.raise_of(now - first.queued_at)
