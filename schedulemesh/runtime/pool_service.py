"""The supervisor's calls about pools and their placement groups."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from schedulemesh.config.pools import resized
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Done, Refused
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.errors import JournalError
from schedulemesh.protocol.clients import PoolReply
from schedulemesh.runtime.group_queries import GroupViews
from schedulemesh.runtime.serving import Serving, unavailable, when_ready

#: Seconds beyond the wait limit of a pool's groups after which its definition is answered all the same.
_GRACE_S = 1.0


class PoolService(Serving):
    """Make pools, change them, tell of their groups."""

    @when_ready
    async def define_pool(
        self, stimulus: s.PoolRequested, blobs: Mapping[str, bytes] | None = None
    ) -> PoolReply:
        """A pool is to be like this: answered when its reserved groups are ready, or cannot be."""
        try:
            step = await self._scribe.step(stimulus, blobs)
        except JournalError as error:
            return PoolReply(outcome=unavailable(error))
        outcome, name = step.outcome or Done(), stimulus.spec.name
        if isinstance(outcome, Refused):
            return PoolReply(outcome=outcome)
        if stimulus.spec.groups is None:
            return PoolReply(outcome=outcome, spec=stimulus.spec)
        self._hands.ready.forgive(name)
        self._hands.ready.tend(self._scribe.state)
        await self._reserved(name, stimulus.spec.groups.wait_s + _GRACE_S)
        return PoolReply(
            outcome=outcome,
            spec=stimulus.spec,
            groups=await self._scribe.read(lambda: self._group_views().reserved(name)),
        )

    @when_ready
    async def resize_pool(
        self,
        name: str,
        resources: Resources | None,
        target_agents: int | None,
        pg_pool_config: Mapping[str, Any] | None,
        blobs: Mapping[str, bytes] | None = None,
    ) -> PoolReply:
        """Change what is given of a pool; answered as ``define_pool``."""
        account = self._scribe.state.ledger.accounts.get(name)
        if account is None:
            error = f"there is no pool {name!r}"
            return PoolReply(outcome=Refused(reason="pool_not_found", error=error))
        spec = resized(account.spec, resources, target_agents, pg_pool_config)
        answer: PoolReply = await self.define_pool(s.PoolRequested(at=0.0, spec=spec), blobs)
        return answer

    @when_ready
    async def group_stats(self, pool_name: str | None = None) -> dict[str, Any] | Refused:
        """See GroupViews.stats."""
        if pool_name is not None and pool_name not in self._scribe.state.ledger.accounts:
            return Refused(reason="pool_not_found", error=f"there is no pool {pool_name!r}")
        return await self._scribe.read(lambda: self._group_views().stats(pool_name))

    def _group_views(self) -> GroupViews:
        hands = self._hands
        return GroupViews(self._scribe.state, hands.groups, hands.ready, self._scribe.now())

    async def _reserved(self, name: str, timeout_s: float) -> None:
        """Return once none of the pool's reserved groups is being made, or the time is over."""
        until = time.monotonic() + timeout_s
        while self._is_being_made(name):
            left = until - time.monotonic()
            if left <= 0:
                return
            await self._hands.groups.changed(left)

    def _is_being_made(self, name: str) -> bool:
        return any(
            group.pool_name == name and group.reserved and group.phase is GroupPhase.CREATING
            for group in self._scribe.state.groups.by_id.values()
        )
