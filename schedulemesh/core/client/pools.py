"""Pool calls: parse the arguments, send the request, shape the result. RayScheduler documents each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from msgspec import UNSET, UnsetType

from schedulemesh.config.groups import parse_groups, parse_strategy, public_groups
from schedulemesh.config.pools import parse_lending, parse_pool, parse_queueing, parse_target
from schedulemesh.core.client import results
from schedulemesh.core.client.asking import ask, details, listed, respond
from schedulemesh.core.client.cohort_listings import CohortsResult
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.listings import (
    GroupsResult,
    PoolDefinition,
    PoolResult,
    PoolsResult,
    ReservedGroups,
)
from schedulemesh.core.client.task_fields import LendingFields
from schedulemesh.core.client.warm import shipped_config
from schedulemesh.domain.cohort import parse_cohort, parse_weight
from schedulemesh.domain.labels import Labels, parse_labels
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.placement import WarmSpec
from schedulemesh.domain.pool import QUEUEING, PoolSpec
from schedulemesh.domain.resources import NOTHING, Resources, parse_resources
from schedulemesh.domain.task import parse_on_preempted
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.answers import PoolResponse
from schedulemesh.protocol.requests import (
    CreatePool,
    EnsureCohort,
    EnsurePool,
    GetGroupStats,
    ListCohorts,
    ListPools,
    ResizePool,
)

_DEFAULT_STRATEGY = "STRICT_PACK"


class _Changes(TypedDict, total=False):
    """The fields of PoolChanges that a caller gave."""

    labels: Labels
    resources: Resources
    target_agents: int
    placement_strategy: str
    pg_pool_config: dict[str, object] | None
    warm: WarmSpec | UnsetType | None
    blobs: dict[str, bytes]
    on_preempted: str
    queueing: str


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
    )
    return _result(ask(connection, CreatePool(spec=spec, blobs=shipped.blobs), PoolResponse))


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
    changes = _changes(
        connection, labels, resources, target_agents, placement_strategy, pg_pool_config
    )
    changes.update(_waiting(waiting))
    request = EnsurePool(
        name=parse_name(name, "the pool's name"), **changes, lending=parse_lending(_given(lending))
    )
    return _result(ask(connection, request, PoolResponse))


def resize_pool(
    connection: Connection,
    name: object,
    resources: object,
    target_agents: object,
    pg_pool_config: object,
    waiting: Mapping[str, object],
) -> PoolResult:
    """Change what is given of a pool that exists."""
    changes = _changes(connection, UNSET, resources, target_agents, UNSET, pg_pool_config)
    changes.update(_waiting(waiting))
    request = ResizePool(name=parse_name(name, "the pool's name"), **changes)
    return _result(ask(connection, request, PoolResponse))


def _given(lending: LendingFields) -> dict[str, object]:
    """The arguments about lending that are not left out."""
    return {field: value for field, value in lending.items() if value is not UNSET}


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
    return results.done(respond(connection, request).outcome)


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
    connection: Connection,
    labels: object,
    resources: object,
    target_agents: object,
    placement_strategy: object,
    pg_pool_config: object,
) -> _Changes:
    """What was given; None and empty values stand for the default. Raises InvalidRequestError."""
    changes: _Changes = {}
    if labels is not UNSET:
        changes["labels"] = parse_labels(labels)
    if resources is not UNSET:
        changes["resources"] = NOTHING if resources is None else parse_resources(resources)
    if target_agents is not UNSET:
        changes["target_agents"] = 0 if target_agents is None else parse_target(target_agents)
    if placement_strategy is not UNSET:
        is_default = placement_strategy is None or as_text(placement_strategy) == ""
        changes["placement_strategy"] = parse_strategy(
            _DEFAULT_STRATEGY if is_default else placement_strategy
        )
    if pg_pool_config is not UNSET:
        shipped = shipped_config(pg_pool_config, connection.caller)
        # What is wrong in itself is reported here; what contradicts the pool, by the supervisor.
        parse_groups(shipped.whole, _DEFAULT_STRATEGY)
        changes["pg_pool_config"], changes["warm"] = shipped.config, shipped.warm
        changes["blobs"] = shipped.blobs
    return changes


def _waiting(given: Mapping[str, object]) -> _Changes:
    """What was given of ``on_preempted`` and ``queueing``; None and empty values stand for the default."""
    changes: _Changes = {}
    on_preempted, queueing = given["on_preempted"], given["queueing"]
    if on_preempted is not UNSET:
        changes["on_preempted"] = parse_on_preempted(on_preempted or "drop")
    if queueing is not UNSET:
        changes["queueing"] = parse_queueing(queueing or QUEUEING[0])
    return changes


def _result(response: PoolResponse | Refused) -> PoolResult:
    if isinstance(response, Refused):
        return results.combined(PoolResult, results.refused(response))
    result = results.combined(PoolResult, results.done(response.outcome))
    if response.spec is None:
        return result
    result["pool"] = _definition(response.spec)
    if response.groups is not None:
        result["pool"]["pg_pool_config"] = public_groups(response.spec.groups)
        result["placement_groups"] = results.combined(ReservedGroups, response.groups)
    return result


def _definition(spec: PoolSpec) -> PoolDefinition:
    return {
        "name": spec.name,
        "labels": spec.labels,
        "resources": spec.resources.public(),
        "target_agents": spec.target_agents,
        "placement_strategy": spec.placement_strategy,
        "on_preempted": spec.on_preempted,
        "queueing": spec.queueing,
        "cohort": spec.cohort,
        "lending_limit": None if spec.lending_limit is None else spec.lending_limit.public(),
        "borrowing_limit": None if spec.borrowing_limit is None else spec.borrowing_limit.public(),
        "weight": spec.weight,
    }
