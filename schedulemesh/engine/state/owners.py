"""What the tasks of each owner hold in the pools where that matters, and how many more its limits permit.

A pool counts owners if its definition limits them, or orders its queue by what they have used. The claim of
an agent counts for the owner of the task with which it was admitted, whole, from then until its process is
gone: also quota that it borrows, and what its victims have not left yet. Agents without a task are nobody's.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import msgspec

from schedulemesh.domain.owner_limits import OwnerLimit
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.decay import decayed_mean
from schedulemesh.engine.state.fair_order import OwnerRank

#: Owners of one pool that hold nothing, beyond which those that have used least are forgotten.
_IDLE_OWNERS = 1_000


class OwnerUse(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What the tasks of one owner hold in one pool."""

    held: Resources = NOTHING
    #: How many agents hold it.
    running: int = 0
    #: The decayed mean of what they held until ``mean_at``, by kind; see ``mean_until``.
    mean: dict[str, float] = {}
    mean_at: float = 0.0

    def mean_until(self, now: float, half_life_s: float) -> dict[str, float]:
        """The mean of what they held over all time until ``now``, by kind, in which what was held one
        half-life ago counts half as much as what is held now.
        """
        return decayed_mean(self.mean, self.mean_at, self.held, now, half_life_s)

    def change(self, amount: Resources, running: int, at: float, half_life_s: float) -> None:
        """They hold so much more, or less, from now on."""
        self.mean = self.mean_until(at, half_life_s)
        self.mean_at = max(self.mean_at, at)
        self.held = self.held + amount
        self.running += running


class Owners:
    """What owners hold, in the pools that count them."""

    def __init__(self) -> None:
        #: The definitions of the pools that count owners.
        self.pools: dict[str, PoolSpec] = {}
        #: By pool and owner.
        self.uses: dict[str, dict[str, OwnerUse]] = {}
        #: Of fair pools: when what their owners hold has changed last, and the ranks of owners by that time.
        self.changed_at: dict[str, float] = {}
        self.ranks: dict[str, dict[str, OwnerRank]] = {}
        #: The half-life of past use; 0: only what is held now counts.
        self.half_life_s = 0.0

    def define(self, spec: PoolSpec, agents: Iterable[Agent], at: float) -> bool:
        """Note the definition of a pool; whether what its queue has to know of owners has changed."""
        before = self.pools.get(spec.name)
        if before is None and not spec.counts_owners:
            return False
        if not spec.counts_owners:
            self.forget(spec.name)
            return True
        self.pools[spec.name] = spec
        if before is None:
            self.uses[spec.name] = {}
            for agent in agents:
                self.admitted(agent, at)
        if before is not None and _seen_by_queue(before) == _seen_by_queue(spec):
            return False
        self.ranks.pop(spec.name, None)
        return True

    def forget(self, pool_name: str) -> None:
        """Count the owners of a pool no more."""
        self.pools.pop(pool_name, None)
        self.uses.pop(pool_name, None)
        self.changed_at.pop(pool_name, None)
        self.ranks.pop(pool_name, None)

    def is_fair(self, pool_name: str) -> bool:
        """Whether in this pool the owner comes first who has used least."""
        spec = self.pools.get(pool_name)
        return spec is not None and spec.is_fair

    def share(self, pool_name: str, owner: str, now: float) -> float:
        """The dominant share of an owner: over all kinds of which the pool has quota the largest part of that
        which its tasks hold, or have held on average where that is more.
        """
        use = self.uses.get(pool_name, {}).get(owner)
        if use is None:
            return 0.0
        mean = use.mean_until(now, self.half_life_s)
        most = {kind: max(units, mean.pop(kind, 0.0)) for kind, units in use.held.items()}
        return dominant_part({**mean, **most}, self.pools[pool_name].resources)

    def rank_of(self, pool_name: str, owner: str) -> OwnerRank:
        """The rank that all tasks of an owner have which wait in a fair pool."""
        ranks = self.ranks.setdefault(pool_name, {})
        if owner not in ranks:
            at = self.changed_at.get(pool_name, 0.0)
            ranks[owner] = OwnerRank(pool_name, self.share(pool_name, owner, at))
        return ranks[owner]

    def rank(self, pool_name: str, waiting: Container[str]) -> bool:
        """Compute the ranks anew, and forget those of owners none of whose tasks wait; whether the order of
        the others may have changed.
        """
        if not self.is_fair(pool_name):
            return False
        ranks = self.ranks.get(pool_name, {})
        waiting_ranks = {owner: rank for owner, rank in ranks.items() if owner in waiting}
        self.ranks[pool_name] = waiting_ranks
        at = self.changed_at.get(pool_name, 0.0)
        before = [rank.share for rank in waiting_ranks.values()]
        shares = [self.share(pool_name, owner, at) for owner in waiting_ranks]
        for rank, share in zip(waiting_ranks.values(), shares, strict=True):
            rank.share = share
        return _order(before) != _order(shares)

    def admitted(self, agent: Agent, at: float) -> None:
        """Count the claim of an agent."""
        if agent.owner is None:
            return
        uses = self.uses[agent.spec.pool_name]
        self.changed_at[agent.spec.pool_name] = at
        use = uses.setdefault(agent.owner, OwnerUse(mean_at=at))
        use.change(agent.spec.resources, 1, at, self.half_life_s)

    def ended(self, agent: Agent, at: float) -> None:
        """The claim of an agent is released."""
        if agent.owner is None:
            return
        uses = self.uses[agent.spec.pool_name]
        self.changed_at[agent.spec.pool_name] = at
        uses[agent.owner].change(NOTHING - agent.spec.resources, -1, at, self.half_life_s)
        if len(uses) > _IDLE_OWNERS:
            self._forget_idle(uses, at)

    def _forget_idle(self, uses: dict[str, OwnerUse], at: float) -> None:
        """Forget half of the owners that hold nothing, of whose use least is left."""
        idle = sorted(
            (max(use.mean_until(at, self.half_life_s).values(), default=0.0), owner)
            for owner, use in uses.items()
            if not use.running
        )
        for _, owner in idle[: _IDLE_OWNERS // 2]:
            del uses[owner]

    def use_of(self, pool_name: str, owner: str) -> OwnerUse:
        """What an owner holds in a pool; not to be changed."""
        return self.uses.get(pool_name, {}).get(owner) or OwnerUse()

    def room(self, pool_name: str, owner: str, need: Resources) -> int | None:
        """How many more tasks with this need an owner may start in a pool by its limits; None: any number."""
        limit = self.pools[pool_name].owner_limit(owner)
        if not limit.limits_running:
            return None
        use = self.use_of(pool_name, owner)
        rooms = [] if limit.running is None else [limit.running - use.running]
        amounts, needs = dict(use.held.items()), dict(need.items())
        rooms += [
            (most - amounts.get(kind, 0)) // needs[kind]
            for kind, most in limit.named
            if needs.get(kind, 0)
        ]
        return max(0, min(rooms)) if rooms else None

    def short(self, pool_name: str, owner: str, need: Resources) -> OwnerLimit | None:
        """The limits that an owner would exceed with one more task that needs this; None: none."""
        if pool_name not in self.pools:
            return None
        limit, use = self.pools[pool_name].owner_limit(owner), self.use_of(pool_name, owner)
        return _exceeded(limit, use.held, use.running, need)

    def exceeds(self, pool_name: str, owner: str, need: Resources) -> OwnerLimit | None:
        """The limits that one task alone would exceed if its owner held nothing; None: none."""
        if pool_name not in self.pools:
            return None
        return _exceeded(self.pools[pool_name].owner_limit(owner), NOTHING, 0, need)

    def rename(self, name: str, new_name: str) -> None:
        """A pool has another name."""
        if name in self.pools:
            spec = self.pools.pop(name)
            self.pools[new_name] = msgspec.structs.replace(spec, name=new_name)
            self.uses[new_name] = self.uses.pop(name)
            if name in self.changed_at:
                self.changed_at[new_name] = self.changed_at.pop(name)
            self.ranks.pop(name, None)


def dominant_part(amounts: Mapping[str, float], quota: Resources) -> float:
    """The largest part that these amounts are of a quota, over all kinds of which it has any."""
    return max((amounts.get(kind, 0) / units for kind, units in quota.items()), default=0.0)


def _exceeded(
    limit: OwnerLimit, in_use: Resources, running: int, need: Resources
) -> OwnerLimit | None:
    amounts, needs = dict(in_use.items()), dict(need.items())
    named = tuple(
        (kind, most)
        for kind, most in limit.named
        if needs.get(kind, 0) and amounts.get(kind, 0) + needs[kind] > most
    )
    too_many = limit.running is not None and running >= limit.running
    if not named and not too_many:
        return None
    return OwnerLimit(named=named, running=limit.running if too_many else None)


def _order(shares: list[float]) -> list[int]:
    """The place of each of these in their order; equal ones have the same."""
    places = {share: place for place, share in enumerate(sorted(set(shares)))}
    return [places[share] for share in shares]


def _seen_by_queue(spec: PoolSpec) -> tuple[object, ...]:
    return (spec.owner_limits, spec.owner_order, spec.default_agent(), spec.resources)
