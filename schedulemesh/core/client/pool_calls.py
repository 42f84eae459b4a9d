"""Calls about pools and their placement groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from schedulemesh.config.groups import parse_groups, parse_strategy, public_groups
from schedulemesh.config.pools import parse_pool, parse_target
from schedulemesh.core.client import results
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.sending import Client
from schedulemesh.core.client.warm import shipped_config
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.resources import NOTHING, parse_resources
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.answers import PoolResponse
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
        return _answer(self._ask(CreatePool(spec=spec, blobs=shipped.blobs), PoolResponse))

    def ensure_pool(
        self,
        name: str,
        labels: Mapping[str, str] | UnsetType | None = UNSET,
        resources: Mapping[str, Any] | UnsetType | None = UNSET,
        target_agents: int | UnsetType | None = UNSET,
        placement_strategy: str | UnsetType | None = UNSET,
        pg_pool_config: Mapping[str, Any] | UnsetType | None = UNSET,
    ) -> dict[str, Any]:
        """Make a pool, or change what is given of it where what is in use allows (``pool_in_use``).

        What is left out stays as it is, ``pg_pool_config`` key by key; None or an empty value removes it.
        """
        fields = self._changes(labels, resources, target_agents, placement_strategy, pg_pool_config)
        request = EnsurePool(name=parse_name(name, "the pool's name"), **fields)
        return _answer(self._ask(request, PoolResponse))

    def resize_pool(
        self,
        name: str,
        resources: Mapping[str, Any] | UnsetType | None = UNSET,
        target_agents: int | UnsetType | None = UNSET,
        pg_pool_config: Mapping[str, Any] | UnsetType | None = UNSET,
    ) -> dict[str, Any]:
        """Change what is given of a pool, key by key, and make reserved groups again that were destroyed.

        None or an empty value removes what was there. Answered as ``create_pool``; refused with
        ``pool_in_use`` where what is in use does not allow it.
        """
        fields = self._changes(UNSET, resources, target_agents, UNSET, pg_pool_config)
        request = ResizePool(name=parse_name(name, "the pool's name"), **fields)
        return _answer(self._ask(request, PoolResponse))

    def _changes(
        self,
        labels: object,
        resources: object,
        target_agents: object,
        placement_strategy: object,
        pg_pool_config: object,
    ) -> dict[str, Any]:
        """The fields of PoolChanges that were given. Raises InvalidRequestError."""
        fields: dict[str, Any] = {}
        if labels is not UNSET:
            fields["labels"] = parse_labels(labels)
        if resources is not UNSET:
            fields["resources"] = NOTHING if resources is None else parse_resources(resources)
        if target_agents is not UNSET:
            fields["target_agents"] = 0 if target_agents is None else parse_target(target_agents)
        if placement_strategy is not UNSET:
            default = placement_strategy is None or as_text(placement_strategy) == ""
            fields["placement_strategy"] = parse_strategy(
                "STRICT_PACK" if default else placement_strategy
            )
        if pg_pool_config is not UNSET:
            shipped = shipped_config(pg_pool_config, self._caller)
            # What is wrong in itself is told here; what contradicts the pool, there.
            parse_groups(shipped.whole, "STRICT_PACK")
            fields["pg_pool_config"], fields["warm"] = shipped.config, shipped.warm
            fields["blobs"] = shipped.blobs
        return fields

    def list_pools(self) -> dict[str, Any]:
        """Every pool with its quota: total, free, reserved, used, lent and borrowed."""
        return self._listed(ListPools(), "pools")

    def pg_pool_stats(self, pool: str | None = None) -> dict[str, Any]:
        """Placement groups of all pools (of one): how many are ``reserved``, ``dynamic``, ``free``,
        ``in_use``; how many were ``created``, ``reused``, ``destroyed`` so far; how many agents are
        ``waiting`` for one, and how many seconds those that have one waited (``mean_wait``).

        ``pools`` tells the same of each pool, its ``groups`` one by one, the reserved ones that are
        ``unplaced`` and why, and its warm hosts (``warm``: ``ready``, ``starting``, ``errors``).
        """
        name = None if pool is None else parse_name(pool, "the pool's name")
        return self._details(GetGroupStats(pool_name=name))


def _answer(reply: PoolResponse | Refused) -> dict[str, Any]:
    if isinstance(reply, Refused):
        return dict(results.refused(reply))
    answer: dict[str, Any] = dict(results.done(reply.outcome))
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
