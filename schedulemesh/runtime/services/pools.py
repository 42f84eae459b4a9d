"""Handles requests about pools and their placement groups."""

from __future__ import annotations

import time
from collections.abc import Mapping

from schedulemesh.api.pools import (
    CreateCohort,
    CreatePool,
    DeleteCohort,
    DeletePool,
    EnsureCohort,
    EnsurePool,
    GetGroupStats,
    RenameCohort,
    RenamePool,
    ResizePool,
)
from schedulemesh.domain.cohort import CohortSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.engine.admission.refusals import pool_not_found
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Done, Refused
from schedulemesh.engine.state.groups import GroupPhase
from schedulemesh.protocol.answers import Details, PoolResponse, Refusal, Response, details
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.services.group_queries import GroupViews
from schedulemesh.runtime.services.running import Service

#: Seconds beyond the wait limit of a pool's groups after which the request is answered in any case.
_GRACE_S = 1.0


class PoolService(Service):
    """Make pools, change them, tell of their groups."""

    @handler
    async def create_pool(self, request: CreatePool) -> PoolResponse:
        """Create a pool that must be new."""
        stimulus = s.PoolRequested(
            spec=request.spec,
            must_be_new=True,
            must_last=True,
            request_id=request.request_id,
        )
        return await self._define_pool(stimulus, request.blobs)

    @handler
    async def ensure_pool(self, request: EnsurePool) -> PoolResponse:
        """Create a pool, or change the given fields."""
        await self._reactor.until_consistent()
        account = self._reactor.state.ledger.accounts.get(request.name)
        base = PoolSpec(name=request.name) if account is None else account.spec
        return await self._change(base, request)

    @handler
    async def resize_pool(self, request: ResizePool) -> PoolResponse:
        """Change the given fields of a pool."""
        await self._reactor.until_consistent()
        account = self._reactor.state.ledger.accounts.get(request.name)
        if account is None:
            return PoolResponse(outcome=pool_not_found(self._reactor.state, request.name))
        return await self._change(account.spec, request)

    @handler
    async def ensure_cohort(self, request: EnsureCohort) -> Response:
        """Create a cohort, or change the given fields."""
        await self._reactor.until_consistent()
        before = self._reactor.state.ledger.cohorts.specs.get(request.name)
        base = before or CohortSpec(name=request.name)
        spec = request.applied_to(base)
        return await self._decide(s.CohortRequested(spec=spec, request_id=request.request_id))

    @handler
    async def delete_pool(self, request: DeletePool) -> Response:
        """Delete a pool, or have it end."""
        stimulus = s.PoolDeletionRequested(
            pool_name=request.name,
            drain=request.drain,
            deadline_s=request.deadline_s,
            client=request.client,
            request_id=request.request_id,
        )
        return await self._decide(stimulus)

    @handler
    async def rename_pool(self, request: RenamePool) -> Response:
        """Give a pool another name."""
        stimulus = s.PoolRenameRequested(
            pool_name=request.name, new_name=request.new_name, request_id=request.request_id
        )
        return await self._decide(stimulus)

    @handler
    async def create_cohort(self, request: CreateCohort) -> Response:
        """Create a cohort that must be new."""
        stimulus = s.CohortRequested(
            spec=request.spec, must_be_new=True, request_id=request.request_id
        )
        return await self._decide(stimulus)

    @handler
    async def delete_cohort(self, request: DeleteCohort) -> Response:
        """Delete a cohort."""
        stimulus = s.CohortDeletionRequested(name=request.name, request_id=request.request_id)
        return await self._decide(stimulus)

    @handler
    async def rename_cohort(self, request: RenameCohort) -> Response:
        """Give a cohort another name."""
        stimulus = s.CohortRenameRequested(
            name=request.name, new_name=request.new_name, request_id=request.request_id
        )
        return await self._decide(stimulus)

    async def _change(self, base: PoolSpec, request: EnsurePool | ResizePool) -> PoolResponse:
        """Change the definition ``base``, which the caller read from a whole state and has not awaited since:
        the step then decides on the same state, and no change in between is overwritten.
        """
        stimulus = s.PoolRequested(
            spec=request.applied_to(base),
            must_last=isinstance(request, EnsurePool),
            request_id=request.request_id,
        )
        return await self._define_pool(stimulus, request.blobs)

    @handler
    async def group_stats(self, request: GetGroupStats) -> Details | Refusal:
        """See GroupViews.stats."""
        pool_name = request.pool_name
        if pool_name is not None and pool_name not in self._reactor.state.ledger.accounts:
            return Refusal(refused=pool_not_found(self._reactor.state, pool_name))
        return details(await self._reactor.read(lambda: self._group_views().stats(pool_name)))

    async def _define_pool(
        self, stimulus: s.PoolRequested, blobs: Mapping[str, bytes]
    ) -> PoolResponse:
        """Define a pool; returns when its reserved groups are ready or have failed. A repeated request is
        told of the pool as it is now, or as it was defined where it has ended or another name.
        """
        repeated = stimulus.request_id in self._reactor.state.answers
        step = await self._reactor.step(stimulus, blobs)
        outcome, name = step.outcome or Done(), stimulus.spec.name
        if isinstance(outcome, Refused):
            return PoolResponse(outcome=outcome)
        if repeated:
            account = self._reactor.state.ledger.accounts.get(name)
            spec = stimulus.spec if account is None else account.spec
            return PoolResponse(outcome=outcome, spec=spec)
        if stimulus.spec.groups is None:
            return PoolResponse(outcome=outcome, spec=stimulus.spec)
        self._executor.warm_pool.forgive(name)
        self._executor.warm_pool.reconcile(self._reactor.state)
        await self._wait_for_reserved_groups(name, stimulus.spec.groups.wait_s + _GRACE_S)
        return PoolResponse(
            outcome=outcome,
            spec=stimulus.spec,
            groups=await self._reactor.read(lambda: self._group_views().reserved(name)),
        )

    def _group_views(self) -> GroupViews:
        executor = self._executor
        return GroupViews(
            self._reactor.state, executor.groups, executor.warm_pool, self._reactor.now()
        )

    async def _wait_for_reserved_groups(self, name: str, timeout_s: float) -> None:
        """Return once none of the pool's reserved groups is being created, or after the timeout."""
        until = time.monotonic() + timeout_s
        while self._is_being_made(name):
            remaining_s = until - time.monotonic()
            if remaining_s <= 0:
                return
            await self._executor.groups.changed(remaining_s)

    def _is_being_made(self, name: str) -> bool:
        return any(
            group.pool_name == name and group.reserved and group.phase is GroupPhase.CREATING
            for group in self._reactor.state.groups.by_id.values()
        )
