"""Calls about pools and their placement groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from schedulemesh.config.groups import parse_groups, public_groups
from schedulemesh.config.pools import parse_pool, parse_target
from schedulemesh.core.client import results as replies
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.sending import Client
from schedulemesh.core.client.warm import shipped_config
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.answers import PoolReply
from schedulemesh.protocol.requests import (
    CreatePool,
    EnsurePool,
    GetGroupStats,
    ListPools,
    ResizePool,
)


@public_calls
class PoolCalls(Client):
    """Make, change and list pools."""

    def create_pool(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, Any] | None = None,
        target_agents: int = 0,
        placement_strategy: str = "STRICT_PACK",
        pg_pool_config: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Make a pool with this total quota. The same definition again changes nothing; another one is
        refused with ``pool_exists``. The resources need not exist.

        ``pg_pool_config`` has every agent of the pool live in a placement group. Then it is answered when
        the reserved groups are ready, or when it is known that they cannot be: ``placement_groups`` tells
        ``reserved``, ``ready`` and ``unplaced``.
        """
        shipped = shipped_config(pg_pool_config, self._caller)
        spec = parse_pool(
            name,
            labels,
            {} if resources is None else resources,
            target_agents,
            placement_strategy,
            shipped.whole,
        )
        return _answer(self._ask(CreatePool(spec=spec, blobs=shipped.blobs), PoolReply))

    def ensure_pool(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, Any] | None = None,
        target_agents: int = 0,
        placement_strategy: str = "STRICT_PACK",
        pg_pool_config: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Make a pool, or change it to this definition where what is in use allows (``pool_in_use``)."""
        shipped = shipped_config(pg_pool_config, self._caller)
        spec = parse_pool(
            name,
            labels,
            {} if resources is None else resources,
            target_agents,
            placement_strategy,
            shipped.whole,
        )
        request = EnsurePool(
            name=spec.name,
            labels=spec.labels,
            resources=spec.resources,
            target_agents=spec.target_agents,
            placement_strategy=spec.placement_strategy,
            pg_pool_config=shipped.config,
            warm=shipped.warm,
            blobs=shipped.blobs,
        )
        return _answer(self._ask(request, PoolReply))

    def resize_pool(
        self,
        name: str,
        resources: Mapping[str, Any] | None = None,
        target_agents: int | None = None,
        pg_pool_config: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Change what is given of a pool, key by key, and make reserved groups again that were destroyed.

        Answered as ``create_pool``; refused with ``pool_in_use`` where what is in use does not allow it.
        """
        shipped = shipped_config(pg_pool_config, self._caller)
        # What is wrong in itself is told here; what contradicts the pool, there.
        parse_groups(shipped.whole, "STRICT_PACK")
        request = ResizePool(
            name=parse_name(name, "the pool's name"),
            resources=UNSET if resources is None else parse_resources(resources),
            target_agents=UNSET if target_agents is None else parse_target(target_agents),
            pg_pool_config=UNSET if pg_pool_config is None else shipped.config,
            warm=shipped.warm,
            blobs=shipped.blobs,
        )
        return _answer(self._ask(request, PoolReply))

    def list_pools(self) -> dict[str, Any]:
        """Every pool with its quota: total, free, reserved, used, lent and borrowed."""
        return self._listed(ListPools(), "pools")

    def pg_pool_stats(self, pool: str | None = None) -> dict[str, Any]:
        """Placement groups of all pools (of one): how many are ``reserved``, ``dynamic``, ``free``,
        ``in_use``; how many were ``created``, ``reused``, ``destroyed`` so far; how many agents are
        ``waiting`` for one, and how many seconds those that have one waited (``mean_wait``).

        ``pools`` tells the same of each pool, its ``groups`` one by one, the reserved ones that are
        ``unplaced`` and why, and its ready hosts (``warm``: ``ready``, ``starting``, ``errors``).
        """
        name = None if pool is None else parse_name(pool, "the pool's name")
        return self._told(GetGroupStats(pool_name=name))


def _answer(reply: PoolReply | Refused) -> dict[str, Any]:
    if isinstance(reply, Refused):
        return dict(replies.refused(reply))
    answer: dict[str, Any] = dict(replies.done(reply.outcome))
    spec = reply.spec
    if spec is None:
        return answer
    answer["pool"] = {
        "name": spec.name,
        "labels": spec.labels,
        "resources": spec.resources.public(),
        "target_agents": spec.target_agents,
        "placement_strategy": spec.placement_strategy,
    }
    if reply.groups is not None:
        answer["pool"]["pg_pool_config"] = public_groups(spec.groups)
        answer["placement_groups"] = reply.groups
    return answer
