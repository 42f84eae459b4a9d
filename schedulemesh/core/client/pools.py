"""Pool calls: parse the arguments, send the request, shape the result. RayScheduler documents each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, cast

from msgspec import UNSET, UnsetType

from schedulemesh.api.pools import (
    CreatePool,
    EnsureCohort,
    EnsurePool,
    GetGroupStats,
    ListCohorts,
    ListPools,
    PoolDefinition,
    ResizePool,
)
from schedulemesh.config.groups import parse_groups, public_groups
from schedulemesh.config.pools import (
    DEFAULT_STRATEGY,
    PoolFields,
    parse_changes,
    parse_lending,
    parse_pool,
)
from schedulemesh.core.client import results
from schedulemesh.core.client.asking import ask, details, listed, logged, respond
from schedulemesh.core.client.cohort_listings import CohortsResult
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.listings import GroupsResult, PoolResult, PoolsResult, ReservedGroups
from schedulemesh.core.client.task_fields import LendingFields
from schedulemesh.core.client.warm import shipped_config
from schedulemesh.domain.cohort import parse_cohort, parse_weight
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.placement import WarmSpec
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.answers import PoolResponse
from schedulemesh.protocol.public import pool_definition


class _Changes(PoolFields, total=False):
    """The fields of PoolChanges that a caller gave."""

    pg_pool_config: dict[str, object] | None
    warm: WarmSpec | UnsetType | None
    blobs: dict[str, bytes]


class _CohortChanges(TypedDict, total=False):
    """The fields of a cohort that a caller gave."""

    parent: str | None
    weight: float


def create_pool(
    connection: Connection,
    name: object,
    labels: object,
    resources: object,
    target_agents: object,
    placement_strategy: object,
    pg_pool_config: object,
    waiting: Mapping[str, object],
    lending: LendingFields,
) -> PoolResult:
    """Create a pool that must not exist with another definition."""
    shipped = shipped_config(pg_pool_config, connection.caller)
    spec = parse_pool(
        name,
        labels,
        {} if resources is None else resources,
        target_agents,
        placement_strategy,
        shipped.whole,
        **waiting,
        **parse_lending(_given(lending)),
    )
    request = CreatePool(spec=spec, blobs=shipped.blobs)
    return logged("create_pool", _result(ask(connection, request, PoolResponse)))


def ensure_pool(
    connection: Connection,
    name: object,
    labels: object,
    resources: object,
    target_agents: object,
    placement_strategy: object,
    pg_pool_config: object,
    waiting: Mapping[str, object],
    lending: LendingFields,
) -> PoolResult:
    """Create a pool, or change what is given of it."""
    own = {
        "labels": labels,
        "resources": resources,
        "target_agents": target_agents,
        "placement_strategy": placement_strategy,
    }
    changes = _changes(connection, pg_pool_config, {**own, **waiting})
    request = EnsurePool(
        name=parse_name(name, "the pool's name"), **changes, lending=parse_lending(_given(lending))
    )
    return logged("ensure_pool", _result(ask(connection, request, PoolResponse)))


def resize_pool(
    connection: Connection,
    name: object,
    resources: object,
    target_agents: object,
    pg_pool_config: object,
    waiting: Mapping[str, object],
) -> PoolResult:
    """Change what is given of a pool that exists."""
    own = {"resources": resources, "target_agents": target_agents, **waiting}
    changes = _changes(connection, pg_pool_config, own)
    request = ResizePool(name=parse_name(name, "the pool's name"), **changes)
    return logged("resize_pool", _result(ask(connection, request, PoolResponse)))


def _given(fields: Mapping[str, object]) -> dict[str, object]:
    """The arguments that are not left out."""
    return {field: value for field, value in fields.items() if value is not UNSET}


def ensure_cohort(
    connection: Connection, name: object, parent: object, weight: object
) -> results.Result:
    """Create a cohort, or change what is given of it."""
    changes: _CohortChanges = {}
    if parent is not UNSET:
        changes["parent"] = parse_cohort(parent, "parent")
    if weight is not UNSET:
        changes["weight"] = 1.0 if weight is None else parse_weight(weight)
    request = EnsureCohort(name=parse_name(name, "the cohort's name"), **changes)
    return logged("ensure_cohort", results.done(respond(connection, request).outcome))


def list_cohorts(connection: Connection) -> CohortsResult:
    """Every cohort."""
    return listed(connection, ListCohorts(), "cohorts", CohortsResult)


def list_pools(connection: Connection) -> PoolsResult:
    """Every pool."""
    return listed(connection, ListPools(), "pools", PoolsResult)


def pg_pool_stats(connection: Connection, pool: object) -> GroupsResult:
    """The placement groups of every pool, or of one."""
    name = None if pool is None else parse_name(pool, "the pool's name")
    return details(connection, GetGroupStats(pool_name=name), GroupsResult)


def _changes(
    connection: Connection, pg_pool_config: object, definition: Mapping[str, object]
) -> _Changes:
    """What was given; None and empty values stand for the default. Raises InvalidRequestError."""
    changes = cast("_Changes", parse_changes(_given(definition)))
    if pg_pool_config is not UNSET:
        shipped = shipped_config(pg_pool_config, connection.caller)
        # What is wrong in itself is reported here; what contradicts the pool, by the supervisor.
        parse_groups(shipped.whole, DEFAULT_STRATEGY)
        changes["pg_pool_config"], changes["warm"] = shipped.config, shipped.warm
        changes["blobs"] = shipped.blobs
    return changes


def _result(response: PoolResponse | Refused) -> PoolResult:
    if isinstance(response, Refused):
        return results.combined(PoolResult, results.refused(response))
    result = results.combined(PoolResult, results.done(response.outcome))
    if response.spec is None:
        return result
    result["pool"] = cast("PoolDefinition", pool_definition(response.spec))
    if response.groups is not None:
        result["pool"]["pg_pool_config"] = public_groups(response.spec.groups)
        result["placement_groups"] = results.combined(ReservedGroups, response.groups)
    return result
