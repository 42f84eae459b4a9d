"""The calls that change something: which request each makes from its path and its body."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from schedulemesh.api.agents import DeleteAgent, EnsureAgentHealth
from schedulemesh.api.cluster import EndOrphans
from schedulemesh.api.leases import ReleaseLease, RenewLease, SaveLease
from schedulemesh.api.nodes import CordonNode, Drain
from schedulemesh.api.policies import ChangePolicy, ChangeQueuePolicy
from schedulemesh.api.pools import EnsureCohort, EnsurePool, ResizePool
from schedulemesh.api.preemption import EvaluatePreemption, PreemptTask
from schedulemesh.api.queue import ChangeQueuedTask
from schedulemesh.api.states import SaveTaskState
from schedulemesh.api.tasks import CancelTask, CancelTasks, CompleteTask
from schedulemesh.api.tokens import ChangeToken, CreateToken, RevokeToken, RotateToken
from schedulemesh.config.groups import parse_groups
from schedulemesh.config.policy import PreemptionPolicy, changed_policy, resolve_changes
from schedulemesh.config.pools import DEFAULT_STRATEGY, parse_changes, parse_lending
from schedulemesh.config.queueing import QueuePolicy, changed_queue_policy
from schedulemesh.domain.cohort import parse_cohort, parse_weight
from schedulemesh.domain.containers import plain_data
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count, parse_priority, parse_timeout
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.tokens import TokenSpec, parse_lifetime, parse_role
from schedulemesh.errors import InvalidRequestError
from schedulemesh.server import bodies, schemas
from schedulemesh.server.change import Change, Given
from schedulemesh.server.submissions import SUBMISSIONS

_LENDING = ("cohort", "lending_limit", "borrowing_limit", "weight")


def _pool(given: Given) -> dict[str, Any]:
    """The fields of PoolChanges that a body has. Raises InvalidRequestError."""
    fields = {
        name: value
        for name in given.body.__struct_fields__
        if (value := getattr(given.body, name)) is not UNSET
    }
    lending = {name: fields.pop(name) for name in _LENDING if name in fields}
    groups = {}
    if "pg_pool_config" in fields:
        groups["pg_pool_config"] = _groups(fields.pop("pg_pool_config"))
    if fields.get("resources") is not None:
        fields["resources"] = fields["resources"].amounts()
    changes = parse_changes(fields)
    return {**changes, **groups, "lending": parse_lending(lending), "name": given.name("name")}


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


def _resized(given: Given) -> ResizePool:
    changes = _pool(given)
    if given.body.labels is not UNSET or given.body.placement_strategy is not UNSET:
        raise InvalidRequestError("labels and placement_strategy are changed by PUT, not by PATCH")
    return ResizePool(**changes)


def _cohort(given: Given) -> EnsureCohort:
    body, changes = given.body, dict[str, Any]()
    if body.parent is not UNSET:
        changes["parent"] = parse_cohort(body.parent, "parent")
    if body.weight is not UNSET:
        changes["weight"] = 1.0 if body.weight is None else parse_weight(body.weight)
    return EnsureCohort(name=given.name("name"), **changes)


def _policy(given: Given) -> ChangePolicy:
    word = given.body.get("preemption_aggressiveness")
    if isinstance(word, str) and word.startswith("env:"):
        raise InvalidRequestError("only the Python call reads variables of its own process (env:)")
    resolved, level = resolve_changes(given.body, {})
    checked = changed_policy(PreemptionPolicy(), resolved).public()
    changes = {name: checked[name] for name in resolved}
    return ChangePolicy(changes=changes, client=given.client, level=level)


def _queue_policy(given: Given) -> ChangeQueuePolicy:
    changes = {name: value for name, value in given.body.items() if value is not None}
    checked = changed_queue_policy(QueuePolicy(), changes).public()
    return ChangeQueuePolicy(changes={name: checked[name] for name in changes}, client=given.client)


def _queued_task(given: Given) -> ChangeQueuedTask:
    body = given.body
    if sum((body.held is not None, body.priority is not None, body.to_front)) != 1:
        raise InvalidRequestError("give one of held, priority and to_front")
    return ChangeQueuedTask(
        task_id=given.name("task_id"),
        held=body.held,
        priority=None if body.priority is None else parse_priority(body.priority),
        to_front=body.to_front,
        request_id=given.request_id,
    )


def _preempt(given: Given, key: str) -> PreemptTask:
    for_pool = given.body.for_pool
    return PreemptTask(
        **{key: given.name(key)},
        for_pool=None if for_pool is None else parse_name(for_pool, "for_pool"),
        client=given.client,
        request_id=given.request_id,
    )


def _drain(given: Given, key: str, *, drained: bool) -> Drain:
    deadline = given.body.deadline if drained else None
    return Drain(
        **{key: given.name(key)},
        drained=drained,
        deadline_s=None if deadline is None else parse_timeout(deadline, "deadline"),
        client=given.client,
    )


def _evaluation(given: Given) -> EvaluatePreemption:
    body = given.body
    return EvaluatePreemption(
        priority=parse_priority(body.priority),
        pool_name=parse_name(body.pool_name, "pool_name"),
        labels=parse_labels(body.labels),
        resources=None if body.resources is None else parse_resources(body.resources.amounts()),
        limit=parse_count(body.limit, "limit"),
    )


def _check(given: Given) -> EnsureAgentHealth:
    return EnsureAgentHealth(timeout_s=parse_timeout(given.body.timeout, "timeout"))


def _orphans(given: Given) -> EndOrphans:
    names = given.body.names
    return EndOrphans(
        names=(
            None if names is None else tuple(parse_name(name, "an orphan's name") for name in names)
        )
    )


def _token(given: Given) -> CreateToken:
    body = given.body
    priority = body.max_priority
    spec = TokenSpec(
        name=parse_name(body.name, "the token's name"),
        role=parse_role(body.role),
        secret_hash=given.secret_hash,
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
        client=given.client,
        request_id=given.request_id,
    )


def _label_values(given: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(values) for key, values in given.items()}


def _rotation(given: Given) -> RotateToken:
    return RotateToken(
        name=given.name("name"),
        secret_hash=given.secret_hash,
        lifetime_s=parse_lifetime(given.body.expires_in),
        client=given.client,
        request_id=given.request_id,
    )


def _token_change(given: Given) -> ChangeToken:
    body = given.body
    role = UNSET if body.role is UNSET else parse_role(body.role)
    pools = UNSET if body.pools is UNSET else tuple(body.pools)
    return ChangeToken(
        name=given.name("name"),
        role=role,
        pools=pools,
        max_priority=body.max_priority,
        evict_pools=(
            tuple(body.evict_pools) if isinstance(body.evict_pools, list) else body.evict_pools
        ),
        label_values=UNSET if body.label_values is UNSET else _label_values(body.label_values),
        least_max_preemptions=body.least_max_preemptions,
        owner=body.owner,
        expires_at=body.expires_at,
        client=given.client,
    )


CHANGES = (
    *SUBMISSIONS,
    Change(
        method="POST",
        path="/tokens",
        summary="Issue a token; the answer has its secret, which is not shown again",
        body=bodies.NewToken,
        answer=schemas.IssuedToken,
        asks=CreateToken,
        reveals=True,
        request=_token,
    ),
    Change(
        method="POST",
        path="/tokens/{name:path}/rotate",
        summary="Give a token another secret; the former one is accepted no more",
        body=bodies.Rotation,
        answer=schemas.IssuedToken,
        asks=RotateToken,
        reveals=True,
        request=_rotation,
    ),
    Change(
        method="PATCH",
        path="/tokens/{name:path}",
        summary="Change the role, the limits or the expiry of a token, whose secret stays",
        body=bodies.TokenChange,
        asks=ChangeToken,
        request=_token_change,
    ),
    Change(
        method="DELETE",
        path="/tokens/{name:path}",
        summary="Revoke a token",
        asks=RevokeToken,
        request=lambda given: RevokeToken(name=given.name("name"), client=given.client),
    ),
    Change(
        method="PUT",
        path="/pools/{pool_name:path}/drain",
        summary="Drain a pool: nothing new starts in it, and what runs waits in its queue",
        body=bodies.DrainStart,
        asks=Drain,
        request=lambda given: _drain(given, "pool_name", drained=True),
    ),
    Change(
        method="DELETE",
        path="/pools/{pool_name:path}/drain",
        summary="End the drain of a pool",
        asks=Drain,
        request=lambda given: _drain(given, "pool_name", drained=False),
    ),
    Change(
        method="PUT",
        path="/pools/{name:path}",
        summary="Create a pool, or change what is given of it",
        body=bodies.PoolChange,
        answer=None,
        asks=EnsurePool,
        request=lambda given: EnsurePool(**_pool(given)),
    ),
    Change(
        method="PATCH",
        path="/pools/{name:path}",
        summary="Change what is given of a pool that exists",
        body=bodies.PoolChange,
        answer=None,
        asks=ResizePool,
        request=_resized,
    ),
    Change(
        method="PUT",
        path="/cohorts/{name:path}",
        summary="Create a cohort, or change what is given of it",
        body=bodies.CohortChange,
        asks=EnsureCohort,
        request=_cohort,
    ),
    Change(
        method="PATCH",
        path="/policy",
        summary="Change the given fields of the preemption policy",
        body=dict[str, Any],
        answer=None,
        asks=ChangePolicy,
        request=_policy,
    ),
    Change(
        method="PATCH",
        path="/queue_policy",
        summary="Change the given fields of the policy of the queue",
        body=dict[str, Any],
        answer=None,
        asks=ChangeQueuePolicy,
        request=_queue_policy,
    ),
    Change(
        method="PATCH",
        path="/queue/{task_id:path}",
        summary="Hold or release a queued task, change its priority, or move it to the front",
        body=bodies.QueuedTaskChange,
        asks=ChangeQueuedTask,
        request=_queued_task,
    ),
    Change(
        method="POST",
        path="/tasks/cancel",
        summary="Cancel tasks",
        body=bodies.TaskIds,
        asks=CancelTasks,
        request=lambda given: CancelTasks(task_ids=tuple(dict.fromkeys(given.body.task_ids))),
    ),
    Change(
        method="POST",
        path="/tasks/{task_id:path}/cancel",
        summary="Cancel a task",
        asks=CancelTask,
        request=lambda given: CancelTask(
            task_id=given.name("task_id"), request_id=given.request_id
        ),
    ),
    Change(
        method="POST",
        path="/tasks/{task_id:path}/complete",
        summary="Report that a task is done",
        body=bodies.Completion,
        asks=CompleteTask,
        request=lambda given: CompleteTask(
            task_id=given.name("task_id"),
            end_agent=given.body.end_agent,
            request_id=given.request_id,
        ),
    ),
    Change(
        method="POST",
        path="/tasks/{task_id:path}/preempt",
        summary="Save and cancel a task and the others of its agent, and end the agent",
        body=bodies.ManualPreemption,
        answer=None,
        asks=PreemptTask,
        request=lambda given: _preempt(given, "task_id"),
    ),
    Change(
        method="POST",
        path="/tasks/{task_id:path}/save",
        summary="Save the state of a running task, which continues",
        answer=schemas.Saved,
        asks=SaveTaskState,
        request=lambda given: SaveTaskState(task_id=given.name("task_id")),
    ),
    Change(
        method="POST",
        path="/leases/{task_id:path}/renew",
        summary="Have the time to live of a lease begin again",
        asks=RenewLease,
        request=lambda given: RenewLease(task_id=given.name("task_id")),
    ),
    Change(
        method="POST",
        path="/leases/{task_id:path}/saved",
        summary="Say that the work done in a lease can be restored from what is saved now",
        asks=SaveLease,
        request=lambda given: SaveLease(task_id=given.name("task_id"), request_id=given.request_id),
    ),
    Change(
        method="POST",
        path="/leases/{task_id:path}/release",
        summary="Give a lease up: what runs in its placement groups is ended",
        asks=ReleaseLease,
        request=lambda given: ReleaseLease(
            task_id=given.name("task_id"), request_id=given.request_id
        ),
    ),
    Change(
        method="POST",
        path="/agents/check",
        summary="Check all agents, and rebuild those that are dead or silent",
        body=bodies.HealthCheck,
        answer=None,
        asks=EnsureAgentHealth,
        request=_check,
    ),
    Change(
        method="POST",
        path="/agents/{agent_name:path}/preempt",
        summary="Save and cancel the tasks of an agent, and end it",
        body=bodies.ManualPreemption,
        answer=None,
        asks=PreemptTask,
        request=lambda given: _preempt(given, "agent_name"),
    ),
    Change(
        method="DELETE",
        path="/agents/{agent_name:path}",
        summary="End an agent with its tasks",
        body=bodies.Deletion,
        asks=DeleteAgent,
        request=lambda given: DeleteAgent(
            agent_name=given.name("agent_name"), destroy_group=given.body.destroy_group
        ),
    ),
    Change(
        method="PUT",
        path="/nodes/{node_id:path}/cordon",
        summary="Close a node to new agents",
        asks=CordonNode,
        request=lambda given: CordonNode(node_id=given.name("node_id"), cordoned=True),
    ),
    Change(
        method="DELETE",
        path="/nodes/{node_id:path}/cordon",
        summary="Open a node to new agents again",
        asks=CordonNode,
        request=lambda given: CordonNode(node_id=given.name("node_id"), cordoned=False),
    ),
    Change(
        method="PUT",
        path="/nodes/{node_id:path}/drain",
        summary="Drain a node: nothing new starts on it, and what runs is saved and moved",
        body=bodies.DrainStart,
        asks=Drain,
        request=lambda given: _drain(given, "node_id", drained=True),
    ),
    Change(
        method="DELETE",
        path="/nodes/{node_id:path}/drain",
        summary="End the drain of a node",
        asks=Drain,
        request=lambda given: _drain(given, "node_id", drained=False),
    ),
    Change(
        method="POST",
        path="/orphans/end",
        summary="End orphaned actors",
        body=bodies.OrphanNames,
        answer=None,
        asks=EndOrphans,
        request=_orphans,
    ),
    Change(
        method="POST",
        path="/evaluations",
        summary="Say which tasks an incoming task may evict; nothing changes",
        body=bodies.IncomingTask,
        answer=None,
        asks=EvaluatePreemption,
        request=_evaluation,
    ),
)
