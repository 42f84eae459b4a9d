"""Calls that need one step, or one look at the state: nodes, policy, tokens, lists, the scheduler itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property, partial
from typing import TypeVar

import msgspec

from schedulemesh.api.cluster import (
    EndOrphans,
    GetAbout,
    GetStats,
    ListOrphans,
    ListStrategies,
    SchedulerFigures,
)
from schedulemesh.api.nodes import CordonNode, Drain, GetDrainStatus
from schedulemesh.api.policies import ChangePolicy, GetPolicy
from schedulemesh.api.pools import ListBudgets, ListCohorts, ListPools, ListShares
from schedulemesh.api.preemption import GetPreemptionStats
from schedulemesh.api.states import RegisterStateHandlers
from schedulemesh.api.tokens import (
    ChangeToken,
    CreateToken,
    GetTokenHashes,
    ListTokens,
    RevokeToken,
    RotateToken,
    TokenInfo,
    token_info,
)
from schedulemesh.api.windows import CreateWindow, DeleteWindow, ListWindows
from schedulemesh.config.policy import changed_policy
from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Refused, RequestOutcome
from schedulemesh.protocol.answers import Details, Listed, Refusal, Response, details, listed
from schedulemesh.protocol.public import warnings_of
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.journal_opening import journal_address
from schedulemesh.runtime.queries import StateView
from schedulemesh.runtime.services.decision_log import log_unchanged_policy
from schedulemesh.runtime.services.running import RunningSupervisor, Service
from schedulemesh.runtime.threads import in_thread
from schedulemesh.version import VERSION

Row = dict[str, object]
Value = TypeVar("Value")

_HOUR_S = 3600.0


class ClusterService(Service):
    """Answers calls about the cluster and the scheduler."""

    def __init__(self, running: RunningSupervisor) -> None:
        super().__init__(running)
        self._began_at = running.reactor.now()

    # nodes, pools and what is not known

    @handler
    async def cordon(self, request: CordonNode) -> Response:
        """Close a node to new agents, or open it again."""
        stimulus = s.CordonRequested(
            node_id=request.node_id, cordoned=request.cordoned, request_id=request.request_id
        )
        return await self._decide(stimulus)

    @handler
    async def drain(self, request: Drain) -> Response:
        """Drain a node or a pool, or end its drain."""
        stimulus = s.DrainRequested(
            node_id=request.node_id,
            pool_name=request.pool_name,
            drained=request.drained,
            deadline_s=request.deadline_s,
            client=request.client,
            request_id=request.request_id,
        )
        return await self._decide(stimulus)

    @handler
    async def drains(self, _: GetDrainStatus) -> Listed:
        """The drains in progress."""
        return listed(await self._viewed(StateView.drains))

    @handler
    async def create_window(self, request: CreateWindow) -> Response:
        """Create a maintenance window."""
        stimulus = s.WindowRequested(
            window=request.window,
            replace=request.replace,
            client=request.client,
            request_id=request.request_id,
        )
        return await self._decide(stimulus)

    @handler
    async def delete_window(self, request: DeleteWindow) -> Response:
        """Delete a maintenance window."""
        stimulus = s.WindowDeletionRequested(
            name=request.name, client=request.client, request_id=request.request_id
        )
        return await self._decide(stimulus)

    @handler
    async def windows(self, _: ListWindows) -> Listed:
        """The maintenance windows that are open or to come."""
        return listed(await self._viewed(StateView.windows))

    @handler
    async def pools(self, _: ListPools) -> Listed:
        """All pools with their quota."""
        return listed(await self._viewed(StateView.pools))

    @handler
    async def cohorts(self, _: ListCohorts) -> Listed:
        """The cohorts."""
        return listed(await self._viewed(StateView.cohorts))

    @handler
    async def shares(self, _: ListShares) -> Listed:
        """What pools and their owners use."""
        return listed(await self._viewed(StateView.shares))

    @handler
    async def budgets(self, _: ListBudgets) -> Listed:
        """The budgets of pools and owners."""
        return listed(await self._viewed(StateView.budgets))

    @handler
    async def orphans(self, _: ListOrphans) -> Listed:
        """Actors and placement groups that the journal does not know."""
        return listed(await self._viewed(StateView.orphans))

    @handler
    async def end_orphans(self, request: EndOrphans) -> Details:
        """End actors that the journal does not know."""
        return details({"ended": await self._orphans.end(request.names)})

    @handler
    async def register_state_handlers(self, request: RegisterStateHandlers) -> Response:
        """Save and restore the states of a pool's tasks with these functions."""
        stimulus = s.StateHandlersGiven(
            pool_name=request.pool_name,
            preserver_key=request.preserver_key,
            restorer_key=request.restorer_key,
            request_id=request.request_id,
        )
        return await self._decide(stimulus, request.blobs)

    # the policy

    @handler
    async def policy(self, _: GetPolicy) -> Details:
        """The policy, and its most recent changes."""
        return Details(
            facts=await self._viewed(
                lambda view: {"policy": view.policy(), "changes": view.policy_changes()}
            )
        )

    @handler
    async def change_policy(self, request: ChangePolicy) -> Details | Refusal:
        """Change these fields of the policy; returns the complete policy."""
        before = self._reactor.state.policy
        # Many label rules take their time, during which others are served; no other change comes between.
        policy = await in_thread(partial(changed_policy, before, request.changes))
        outcome: RequestOutcome | None = None
        if request.changes:
            step = await self._reactor.step(
                s.PolicyChangeRequested(
                    policy=policy,
                    client=request.client,
                    changes=tuple(request.changes),
                    level=request.level,
                    request_id=request.request_id,
                )
            )
            outcome = step.outcome
            if isinstance(outcome, Refused):
                return Refusal(refused=outcome)
            if policy == before:
                log_unchanged_policy(policy, request.changes, request.level)
        facts: Row = {"policy": self._reactor.state.policy.public()}
        return details({**facts, **warnings_of(outcome)})

    # tokens

    @handler
    async def create_token(self, request: CreateToken) -> Response:
        """Issue a token."""
        stimulus = s.TokenRequested(
            spec=request.spec,
            lifetime_s=request.lifetime_s,
            client=request.client,
            request_id=request.request_id,
        )
        return await self._decide(stimulus)

    @handler
    async def rotate_token(self, request: RotateToken) -> Response:
        """Give a token another secret."""
        # The role of the token that is there stays.
        spec = TokenSpec(name=request.name, role=Role.VIEWER, secret_hash=request.secret_hash)
        stimulus = s.TokenRequested(
            spec=spec,
            rotate=True,
            lifetime_s=request.lifetime_s,
            client=request.client,
            request_id=request.request_id,
        )
        return await self._decide(stimulus)

    @handler
    async def change_token(self, request: ChangeToken) -> Response:
        """Change the role, the limits or the expiry of a token."""
        stimulus = s.TokenChangeRequested(
            name=request.name,
            role=request.role,
            pools=request.pools,
            max_priority=request.max_priority,
            evict_pools=request.evict_pools,
            label_values=request.label_values,
            least_max_preemptions=request.least_max_preemptions,
            owner=request.owner,
            expires_at=request.expires_at,
            client=request.client,
            request_id=request.request_id,
        )
        return await self._decide(stimulus)

    @handler
    async def revoke_token(self, request: RevokeToken) -> Response:
        """Accept a token no more."""
        stimulus = s.TokenRevocationRequested(
            name=request.name, client=request.client, request_id=request.request_id
        )
        return await self._decide(stimulus)

    @handler
    async def tokens(self, _: ListTokens) -> Listed:
        """The tokens, without anything of their secrets."""

        def look() -> list[TokenInfo]:
            return [token_info(spec) for spec in self._reactor.state.tokens.values()]

        return listed(await self._reactor.read(look))

    @handler
    async def token_hashes(self, _: GetTokenHashes) -> Details:
        """The valid tokens with the hashes of their secrets."""

        def look() -> list[object]:
            now, tokens = self._reactor.now(), self._reactor.state.tokens.values()
            return [msgspec.to_builtins(token) for token in tokens if token.valid(now)]

        valid = await self._reactor.read(look)
        return details({"tokens": valid, "time": self._reactor.now()})

    # the scheduler itself

    @handler
    async def preemption_stats(self, _: GetPreemptionStats) -> Details:
        """Preemption statistics."""
        return details(await self._viewed(StateView.preemption_stats))

    @handler
    async def stats(self, _: GetStats) -> Details:
        """Preemption statistics, pools, and the numbers of agents and nodes."""
        return details(await self._viewed(StateView.stats))

    @handler
    async def strategies(self, _: ListStrategies) -> Listed:
        """The supplied scheduling strategies."""
        return listed(self._plugins.status())

    @handler
    async def about(self, _: GetAbout) -> Details:
        """What describes the supervisor."""
        return details(await self._reactor.read(self._about))

    @cached_property
    def _journal(self) -> str:
        """Where the journal is: the same for as long as this process lives."""
        return str(journal_address(self._settings, self._backend.session_folder()))

    def _about(self) -> SchedulerFigures:
        state, now = self._reactor.state, self._reactor.now()
        return {
            "name": self._settings.name,
            "namespace": self._settings.namespace,
            "detached": self._settings.detached,
            "version": VERSION,
            "started_at": self._began_at,
            "node_id": self._backend.own_node_id(),
            "pid": os.getpid(),
            "journal": self._journal,
            "epoch": state.epoch,
            "time": now,
            "http": self._http.url,
            "pools": len(state.ledger.accounts),
            "agents": len(state.agents),
            "running_tasks": len(state.running),
            "queued_tasks": len(state.queue),
            "failed_last_hour": state.past.failed_since(now - _HOUR_S),
        }

    # how

    async def _viewed(self, look: Callable[[StateView], Value]) -> Value:
        """What a look at the durable state shows."""

        def on_state() -> Value:
            state, now = self._reactor.state, self._reactor.now()
            return look(StateView(state, self._agents, self._groups, now))

        return await self._reactor.read(on_state)
