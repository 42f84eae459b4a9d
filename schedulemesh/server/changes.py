"""The calls that change something: which request each makes from its path and its body."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from schedulemesh.api.policies import ChangePolicy, ChangeQueuePolicy
from schedulemesh.api.pools import CreatePool, EnsureCohort, EnsurePool, ResizePool
from schedulemesh.api.preemption import EvaluatePreemption
from schedulemesh.api.tokens import CreateToken, RotateToken
from schedulemesh.config.changes import without_null
from schedulemesh.config.groups import parse_groups
from schedulemesh.config.policy import PreemptionPolicy, changed_policy, resolve_changes
from schedulemesh.config.pools import DEFAULT_STRATEGY, parse_changes, parse_lending
from schedulemesh.config.queueing import QueuePolicy, changed_queue_policy
from schedulemesh.domain.cohort import parse_cohort, parse_weight
from schedulemesh.domain.containers import plain_data
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count, parse_priority
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.tokens import TokenSpec, parse_lifetime, parse_role
from schedulemesh.errors import InvalidRequestError
from schedulemesh.server import bodies, schemas
from schedulemesh.server.change import ChangeRoute, ReceivedChange
from schedulemesh.server.derived import derived_changes
from schedulemesh.server.submissions import SUBMISSIONS

_LENDING = ("cohort", "lending_limit", "borrowing_limit", "weight")


def _pool(received: ReceivedChange) -> dict[str, Any]:
    """The fields of PoolChanges that a body has. Raises InvalidRequestError."""
    fields = {
        name: value
        for name in received.body.__struct_fields__
        if (value := getattr(received.body, name)) is not UNSET
    }
    lending = {name: fields.pop(name) for name in _LENDING if name in fields}
    groups = {}
    if "pg_pool_config" in fields:
        groups["pg_pool_config"] = _groups(fields.pop("pg_pool_config"))
    if fields.get("resources") is not None:
        fields["resources"] = fields["resources"].amounts()
    changes = parse_changes(fields)
    named = parse_name(fields["name"], "the pool's name") if "name" in fields else None
    name = received.name("name") if named is None else named
    return {**changes, **groups, "lending": parse_lending(lending), "name": name}


def _groups(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """A ``pg_pool_config``. Raises InvalidRequestError."""
    if config is None:
        return None
    if "warm" in config:
        raise InvalidRequestError("warm hosts load a class, which is given to the Python call only")
    plain = plain_data(config, "pg_pool_config")
    # What is wrong in itself is reported here; what contradicts the pool, by the supervisor.
    parse_groups(plain, DEFAULT_STRATEGY)
    return dict(plain)


def _created(received: ReceivedChange) -> CreatePool:
    changes = _pool(received)
    spec = EnsurePool(**changes).applied_to(PoolSpec(name=changes["name"]))
    return CreatePool(spec=spec, request_id=received.request_id)


def _resized(received: ReceivedChange) -> ResizePool:
    changes = _pool(received)
    if received.body.labels is not UNSET or received.body.placement_strategy is not UNSET:
        raise InvalidRequestError("labels and placement_strategy are changed by PUT, not by PATCH")
    return ResizePool(**changes)


def _cohort(received: ReceivedChange) -> EnsureCohort:
    body, changes = received.body, dict[str, Any]()
    if body.parent is not UNSET:
        changes["parent"] = parse_cohort(body.parent, "parent")
    if body.weight is not UNSET:
        changes["weight"] = 1.0 if body.weight is None else parse_weight(body.weight)
    return EnsureCohort(name=received.name("name"), **changes)


def _policy(received: ReceivedChange) -> ChangePolicy:
    word = received.body.get("preemption_aggressiveness")
    if isinstance(word, str) and word.startswith("env:"):
        raise InvalidRequestError("only the Python call reads variables of its own process (env:)")
    resolved, level = resolve_changes(without_null(received.body, PreemptionPolicy()), {})
    checked = changed_policy(PreemptionPolicy(), resolved).public()
    changes = {name: checked[name] for name in resolved}
    return ChangePolicy(changes=changes, client=received.client, level=level)


def _queue_policy(received: ReceivedChange) -> ChangeQueuePolicy:
    changes = without_null(received.body, QueuePolicy())
    checked = changed_queue_policy(QueuePolicy(), changes).public()
    return ChangeQueuePolicy(
        changes={name: checked[name] for name in changes}, client=received.client
    )


def _evaluation(received: ReceivedChange) -> EvaluatePreemption:
    body = received.body
    return EvaluatePreemption(
        priority=parse_priority(body.priority),
        pool_name=parse_name(body.pool_name, "pool_name"),
        labels=parse_labels(body.labels),
        resources=None if body.resources is None else parse_resources(body.resources.amounts()),
        limit=parse_count(body.limit, "limit"),
    )


def _token(received: ReceivedChange) -> CreateToken:
    body = received.body
    priority = body.max_priority
    spec = TokenSpec(
        name=parse_name(body.name, "the token's name"),
        role=parse_role(body.role),
        secret_hash=received.secret_hash,
        pools=tuple(parse_name(pool, "the pool's name") for pool in body.pools),
        max_priority=None if priority is None else parse_priority(priority, "max_priority"),
        owner=body.owner,
        evict_pools=None if body.evict_pools is None else tuple(body.evict_pools),
        label_values=_label_values(body.label_values),
        least_max_preemptions=body.least_max_preemptions,
    )
    return CreateToken(
        spec=spec,
        lifetime_s=parse_lifetime(body.expires_in),
        client=received.client,
        request_id=received.request_id,
    )


def _label_values(label_values: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(values) for key, values in label_values.items()}


def _rotation(received: ReceivedChange) -> RotateToken:
    return RotateToken(
        name=received.name("name"),
        secret_hash=received.secret_hash,
        lifetime_s=parse_lifetime(received.body.expires_in),
        client=received.client,
        request_id=received.request_id,
    )


CHANGES = (
    *SUBMISSIONS,
    *derived_changes(),
    ChangeRoute(
        method="POST",
        path="/tokens",
        summary="Issue a token; the answer has its secret, which is not shown again",
        body=bodies.NewToken,
        answer=schemas.IssuedToken,
        asks=CreateToken,
        reveals=True,
        request=_token,
    ),
    ChangeRoute(
        method="POST",
        path="/tokens/{name:name}/rotate",
        summary="Give a token another secret; the former one is accepted no more",
        body=bodies.Rotation,
        answer=schemas.IssuedToken,
        asks=RotateToken,
        reveals=True,
        request=_rotation,
    ),
    ChangeRoute(
        method="POST",
        path="/pools",
        summary="Create a pool that does not exist yet",
        body=bodies.NewPool,
        answer=None,
        asks=CreatePool,
        request=_created,
    ),
    ChangeRoute(
        method="PUT",
        path="/pools/{name:name}",
        summary="Create a pool, or change what is given of it",
        body=bodies.PoolChange,
        answer=None,
        asks=EnsurePool,
        request=lambda received: EnsurePool(**_pool(received)),
    ),
    ChangeRoute(
        method="PATCH",
        path="/pools/{name:name}",
        summary="Change what is given of a pool that exists",
        body=bodies.PoolChange,
        answer=None,
        asks=ResizePool,
        request=_resized,
    ),
    ChangeRoute(
        method="PUT",
        path="/cohorts/{name:name}",
        summary="Create a cohort, or change what is given of it",
        body=bodies.CohortChange,
        asks=EnsureCohort,
        request=_cohort,
    ),
    ChangeRoute(
        method="PATCH",
        path="/policy",
        summary="Change the given fields of the preemption policy",
        body=dict[str, Any],
        answer=None,
        asks=ChangePolicy,
        request=_policy,
    ),
    ChangeRoute(
        method="PATCH",
        path="/queue_policy",
        summary="Change the given fields of the policy of the queue",
        body=dict[str, Any],
        answer=None,
        asks=ChangeQueuePolicy,
        request=_queue_policy,
    ),
    ChangeRoute(
        method="POST",
        path="/evaluations",
        summary="Say which tasks an incoming task may evict; nothing changes",
        body=bodies.IncomingTask,
        answer=None,
        asks=EvaluatePreemption,
        request=_evaluation,
    ),
)
