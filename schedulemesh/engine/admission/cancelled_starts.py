"""Which starts of borrowers are cancelled for an owner: of the sets that suffice, the one that costs least.

With all starts that may be cancelled as few tasks as possible are evicted beside them. From there

1. those are spared without which nobody else has to be evicted, the dearest first;
2. one start alone replaces the rest where it costs less, or the same;
3. further starts are cancelled instead of evictions that cost more, the cheapest first;
4. starts are spared for evictions that cost less.

What costs the same is decided by the number of those who have to go.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from schedulemesh.engine.placement.leaving import revoked_in
from schedulemesh.engine.preemption.search import EvictionPlan
from schedulemesh.engine.preemption.victims import VictimAgent

#: So many starts are looked at one by one in each step.
_FEWER = 16


class Starts(msgspec.Struct, frozen=True, kw_only=True):
    """The starts that may be cancelled for a request."""

    #: The agents, the lowest price first.
    names: tuple[str, ...]
    #: What makes room for the request if these are cancelled; None: nothing does.
    plan_with: Callable[[tuple[str, ...]], EvictionPlan | None]
    #: What the evictions and cancelled starts of a plan cost.
    price_of: Callable[[EvictionPlan], float]

    def cheapest_plan(self) -> EvictionPlan | None:
        """The plan that cancels some of them; None: no plan does, or none need be cancelled."""
        plan = self._with(self.names) if self.names else None
        if plan is None:
            return None
        used = revoked_in((*plan.leaving, *plan.paying), self.names)
        if not used:
            return None
        plan = self._with(tuple(name for name in self.names if name in used)) or plan
        plan = self._fewer(plan, self._evicts_no_more)
        plan = self._more(self._one_alone(plan))
        return self._fewer(plan, self._costs_less)

    def _with(self, names: tuple[str, ...]) -> EvictionPlan | None:
        plan = self.plan_with(names)
        return None if plan is None else msgspec.structs.replace(plan, revoked=names)

    def _fewer(
        self, plan: EvictionPlan, is_better: Callable[[EvictionPlan, EvictionPlan], bool]
    ) -> EvictionPlan:
        """The plan without each start that is not cancelled in a better one; at least one is cancelled."""
        for name in plan.revoked[::-1][:_FEWER]:
            rest = tuple(other for other in plan.revoked if other != name)
            other = self._with(rest) if rest else None
            if other is not None and is_better(other, plan):
                plan = other
        return plan

    def _one_alone(self, plan: EvictionPlan) -> EvictionPlan:
        """The plan, or a better one that cancels one start alone."""
        best = plan
        for name in self.names[:_FEWER]:
            alone = EvictionPlan(victims=(), revoked=(name,))
            if plan.revoked == (name,) or not self._costs_less(alone, best):
                continue
            other = self._with((name,))
            if other is not None and self._costs_less(other, best):
                best = other
        return best

    def _more(self, plan: EvictionPlan) -> EvictionPlan:
        """The plan with each further start with which it costs less, as long as it evicts anybody."""
        for name in self.names[:_FEWER]:
            if not plan.victims:
                break
            other = None if name in plan.revoked else self._with((*plan.revoked, name))
            if other is not None and self._costs_less(other, plan):
                plan = other
        return plan

    def _costs_less(self, plan: EvictionPlan, other: EvictionPlan) -> bool:
        return self._cost(plan) < self._cost(other)

    def _evicts_no_more(self, plan: EvictionPlan, other: EvictionPlan) -> bool:
        return _names(plan.victims) <= _names(other.victims)

    def _cost(self, plan: EvictionPlan) -> tuple[float, int]:
        return self.price_of(plan), len(plan.revoked) + len(plan.victims)


def _names(victims: tuple[VictimAgent, ...]) -> frozenset[str]:
    return frozenset(victim.name for victim in victims)
