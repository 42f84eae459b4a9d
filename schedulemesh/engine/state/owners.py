"""What the tasks of each owner hold in the pools where that matters, and how many more its limits permit.

A pool counts owners if its definition limits them, or orders its queue by what they have used. The claim of
an agent counts for the owner of the task with which it was admitted, whole, from then until its process is
gone: also quota that it borrows, and what its victims have not left yet. Agents without a task are nobody's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial

import msgspec

from schedulemesh.domain.owner_limits import OwnerLimit
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.decay import decayed_mean
from schedulemesh.engine.state.fair_order import OwnerRank, RankedPool, ShareParts

#: Owners of one pool that hold nothing, beyond which those that have used least are forgotten.
_IDLE_OWNERS = 1_000
#: Owners whose limits are kept, so that they are not made of their entry and the default each time.
_LIMITS = 10_000
#: Ranks of one pool, beyond twice as many as there are owners whose tasks wait: then others are forgotten.
_SPARE_RANKS = 64


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

    def remember(self, at: float, half_life_s: float) -> None:
        """Have the mean include what they have held until this time."""
        if at == self.mean_at and half_life_s > 0:
            return  # nothing was held since, for no time at all
        self.mean = decayed_mean(self.mean, self.mean_at, self.held, at, half_life_s)
        if at > self.mean_at:
            self.mean_at = at


class Owners:
    """What owners hold, in the pools that count them."""

    def __init__(self) -> None:
        #: The definitions of the pools that count owners.
        self.pools: dict[str, PoolSpec] = {}
        #: Their quotas, each kind with its units.
        self.quotas: dict[str, tuple[tuple[str, int], ...]] = {}
        #: Those of them in which the owner comes first who has used least.
        self.fair: set[str] = set()
        #: Those that limit what owners hold, or how many of their tasks run or wait.
        self.limited: set[str] = set()
        #: By pool and owner.
        self.uses: dict[str, dict[str, OwnerUse]] = {}
        #: Of fair pools: when what their owners hold has changed last, and the ranks of owners by that time.
        self.changed_at: dict[str, float] = {}
        self.ranks: dict[str, dict[str, OwnerRank]] = {}
        self._ranked: dict[str, RankedPool] = {}
        #: What limits each owner, by pool and owner; found out as it is asked for.
        self._limits: dict[tuple[str, str], OwnerLimit] = {}
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
        self.pools[spec.name], self.quotas[spec.name] = spec, spec.resources.items()
        (self.fair.add if spec.is_fair else self.fair.discard)(spec.name)
        (self.limited.add if spec.owner_limits else self.limited.discard)(spec.name)
        self._limits.clear()
        if before is None:
            self.uses[spec.name] = {}
            for agent in agents:
                self.admitted(agent, at)
        if before is None or before.is_fair != spec.is_fair:
            self._begin_to_remember(spec, at)
        if before is not None and _seen_by_queue(before) == _seen_by_queue(spec):
            return False
        self._forget_ranks(spec.name)
        return True

    def _begin_to_remember(self, spec: PoolSpec, at: float) -> None:
        """Past use counts from now on in a fair pool, and in others not at all."""
        self.changed_at.pop(spec.name, None)
        if spec.is_fair:
            self.changed_at[spec.name] = at
        for use in self.uses[spec.name].values():
            use.mean, use.mean_at = {}, at

    def forget(self, pool_name: str) -> None:
        """Count the owners of a pool no more."""
        self.pools.pop(pool_name, None)
        self.quotas.pop(pool_name, None)
        self.fair.discard(pool_name)
        self.limited.discard(pool_name)
        self._limits.clear()
        self.uses.pop(pool_name, None)
        self.changed_at.pop(pool_name, None)
        self._forget_ranks(pool_name)

    def _forget_ranks(self, pool_name: str) -> None:
        self.ranks.pop(pool_name, None)
        self._ranked.pop(pool_name, None)

    def is_fair(self, pool_name: str) -> bool:
        """Whether in this pool the owner comes first who has used least."""
        return pool_name in self.fair

    def share(self, pool_name: str, owner: str, now: float) -> float:
        """The dominant share of an owner: over all kinds of which the pool has quota the largest part of that
        which its tasks hold, or have held on average where that is more.
        """
        use = self.uses.get(pool_name, {}).get(owner)
        return 0.0 if use is None else self._share_of(use, pool_name, now)

    def _share_of(self, use: OwnerUse, pool_name: str, now: float) -> float:
        parts = self._parts_of(use, pool_name, now)
        if not parts.is_past:
            return parts.share
        past: float = 0.5 ** (max(0.0, now - parts.at) / self.half_life_s)
        return parts.share * past

    def _parts_of(self, use: OwnerUse, pool_name: str, now: float) -> ShareParts:
        quota, amounts = self.quotas[pool_name], dict(use.held.items())
        is_steady, half_life_s = True, self.half_life_s
        # Of no kind more was held on average than is held now: the share stays the same until that changes.
        for kind, units in use.mean.items() if half_life_s > 0 else ():
            if units > amounts.get(kind, 0):
                is_steady = False
        if is_steady:
            return ShareParts(dominant_part(amounts, quota), now, True, False)
        if not amounts:
            return ShareParts(dominant_part(use.mean, quota), use.mean_at, False, True)
        mean = use.mean_until(now, half_life_s)
        most = {kind: max(units, mean.pop(kind, 0.0)) for kind, units in amounts.items()}
        return ShareParts(dominant_part({**mean, **most}, quota), now, False, False)

    def rank_of(self, pool_name: str, owner: str) -> OwnerRank:
        """The rank that all tasks of an owner have which wait in a fair pool."""
        ranks = self.ranks.setdefault(pool_name, {})
        rank = ranks.get(owner)
        if rank is None:
            pool = self._ranked.get(pool_name)
            if pool is None:
                parts_of, at = partial(self._parts_when_changed, pool_name), self.changed_at
                pool = self._ranked[pool_name] = RankedPool(
                    pool_name, parts_of, at.get(pool_name, 0.0), self.half_life_s
                )
            rank = ranks[owner] = OwnerRank(pool, owner)
        return rank

    def _parts_when_changed(self, pool_name: str, owner: str) -> ShareParts:
        """How the share of an owner develops, when what any owner of the pool holds has changed last."""
        at = self.changed_at.get(pool_name, 0.0)
        use = self.uses.get(pool_name, {}).get(owner)
        if use is None:
            return ShareParts(0.0, at, True, False)
        return self._parts_of(use, pool_name, at)

    def rank_anew(self, pool_name: str, owner: str, waiting: Collection[str]) -> None:
        """What an owner holds has changed: shares in its pool are compared at another time. ``waiting``: the
        owners whose tasks wait there.
        """
        pool = self._ranked.get(pool_name)
        if pool is None:
            return
        pool.version += 1
        pool.at = self.changed_at.get(pool_name, 0.0)
        ranks = self.ranks[pool_name]
        rank = ranks.get(owner)
        if rank is not None:
            rank.parts, rank.version = None, -1
        if len(ranks) > 2 * len(waiting) + _SPARE_RANKS:
            self.ranks[pool_name] = {o: rank for o, rank in ranks.items() if o in waiting}

    def rank_all_anew(self, pool_name: str) -> None:
        """Past use counts in another way."""
        if (pool := self._ranked.get(pool_name)) is not None:
            pool.version, pool.half_life_s = pool.version + 1, self.half_life_s
        for rank in self.ranks.get(pool_name, {}).values():
            rank.parts, rank.version = None, -1

    def admitted(self, agent: Agent, at: float) -> None:
        """Count the claim of an agent."""
        owner, spec = agent.owner, agent.spec
        if owner is None:
            return
        uses = self.uses[spec.pool_name]
        use = uses.get(owner)
        if use is None:
            use = uses[owner] = OwnerUse(mean_at=at)
        if spec.pool_name in self.fair:
            self.changed_at[spec.pool_name] = at
            use.remember(at, self.half_life_s)
        use.held = use.held + (spec.resources if spec.flavor is None else spec.counted)
        use.running += 1

    def ended(self, agent: Agent, at: float) -> None:
        """The claim of an agent is released."""
        owner, spec = agent.owner, agent.spec
        if owner is None:
            return
        uses = self.uses[spec.pool_name]
        use = uses[owner]
        if spec.pool_name in self.fair:
            self.changed_at[spec.pool_name] = at
            use.remember(at, self.half_life_s)
        use.held = use.held - (spec.resources if spec.flavor is None else spec.counted)
        use.running -= 1
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
        limit = self._limits.get((pool_name, owner)) or self.limit_of(pool_name, owner)
        if not limit.named and limit.running is None:
            return None
        use = self.uses[pool_name].get(owner)
        if use is None:
            return _room(limit, NOTHING, 0, need)
        return _room(limit, use.held, use.running, need)

    def limit_of(self, pool_name: str, owner: str) -> OwnerLimit:
        """What limits an owner in a pool that counts owners."""
        key = (pool_name, owner)
        limit = self._limits.get(key)
        if limit is None:
            if len(self._limits) >= _LIMITS:
                self._limits.clear()
            limit = self._limits[key] = self.pools[pool_name].owner_limit(owner)
        return limit

    def short(self, pool_name: str, owner: str, need: Resources) -> OwnerLimit | None:
        """The limits that an owner would exceed with one more task that needs this; None: none."""
        if pool_name not in self.limited or self.room(pool_name, owner, need) != 0:
            return None
        use = self.use_of(pool_name, owner)
        return _exceeded(self.limit_of(pool_name, owner), use.held, use.running, need)

    def is_short_after(
        self, pool_name: str, owner: str, need: Resources, freed: Resources, agents: int
    ) -> bool:
        """Whether an owner would exceed a limit with one more task that needs this, also when so many of
        their agents have ended, which hold so much.
        """
        if pool_name not in self.limited:
            return False
        use, limit = self.use_of(pool_name, owner), self.limit_of(pool_name, owner)
        return _exceeded(limit, use.held - freed, use.running - agents, need) is not None

    def exceeds(self, pool_name: str, owner: str, need: Resources) -> OwnerLimit | None:
        """The limits that one task alone would exceed if its owner held nothing; None: none."""
        if pool_name not in self.limited:
            return None
        limit = self._limits.get((pool_name, owner)) or self.limit_of(pool_name, owner)
        for kind, most in limit.named:
            if (need.gpu if kind == "gpu" else _units(need, kind)) > most:
                return _exceeded(limit, NOTHING, 0, need)
        return _exceeded(limit, NOTHING, 0, need) if limit.running == 0 else None

    def rename(self, name: str, new_name: str) -> None:
        """A pool has another name."""
        if name in self.pools:
            spec = self.pools.pop(name)
            self.pools[new_name] = msgspec.structs.replace(spec, name=new_name)
            self.quotas[new_name] = self.quotas.pop(name)
            self.uses[new_name] = self.uses.pop(name)
            if name in self.changed_at:
                self.changed_at[new_name] = self.changed_at.pop(name)
            self._forget_ranks(name)
            self._limits.clear()
            for names in (self.fair, self.limited):
                if name in names:
                    names.discard(name)
                    names.add(new_name)


def dominant_part(amounts: Mapping[str, float], quota: Iterable[tuple[str, int]]) -> float:
    """The largest part that these amounts are of a quota, over all kinds of which it has any."""
    largest = 0.0
    for kind, units in quota:
        part = amounts.get(kind, 0) / units
        if part > largest:
            largest = part
    return largest


def _room(limit: OwnerLimit, in_use: Resources, running: int, need: Resources) -> int | None:
    """How many tasks with this need a limit permits beside what is in use; None: any number."""
    room = None if limit.running is None else limit.running - running
    for kind, most in limit.named:
        if kind == "gpu":  # what most limits are about
            units, used = need.gpu, in_use.gpu
        else:
            units, used = _units(need, kind), _units(in_use, kind)
        if units:
            further = (most - used) // units
            room = further if room is None or further < room else room
    return 0 if room is not None and room < 0 else room


def _units(amount: Resources, kind: str) -> int:
    """The units of one kind."""
    if kind == "gpu":
        return amount.gpu
    if kind == "cpu":
        return amount.cpu
    return amount.memory if kind == "memory" else dict(amount.custom).get(kind, 0)


def _exceeded(
    limit: OwnerLimit, in_use: Resources, running: int, need: Resources
) -> OwnerLimit | None:
    """Which of the limits one more task with this need would exceed; None: none."""
    named = tuple(
        (kind, most)
        for kind, most in limit.named
        if (units := _units(need, kind)) and _units(in_use, kind) + units > most
    )
    too_many = limit.running is not None and running >= limit.running
    if not named and not too_many:
        return None
    return OwnerLimit(named=named, running=limit.running if too_many else None)


def _seen_by_queue(spec: PoolSpec) -> tuple[object, ...]:
    return (spec.owner_limits, spec.owner_order, spec.default_agent(), spec.resources, spec.flavors)
