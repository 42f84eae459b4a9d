"""Preemption calls: evaluate, preempt, policy, counts. RayScheduler documents each call."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping

from schedulemesh.api.policies import ChangePolicy, GetPolicy
from schedulemesh.api.preemption import (
    MAX_CANDIDATES,
    MAX_PREEMPTIONS,
    EvaluatePreemption,
    ExecutePreemption,
    GetPreemptionStats,
    ListPreemptions,
    PreemptTask,
)
from schedulemesh.config.policy import PreemptionPolicy, changed_policy, resolve_changes
from schedulemesh.core.client import results
from schedulemesh.core.client.asking import ask, details, listed, logged, respond
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.listings import (
    PolicyResult,
    PolicyUpdate,
    PreemptionsResult,
    PreemptionStats,
)
from schedulemesh.core.client.task_fields import DEFAULTS
from schedulemesh.core.client.task_request import client_name
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count, parse_priority
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.outcomes import AgentEvicted, Refused
from schedulemesh.protocol.answers import Details, Evaluated


def evaluate_preemption(
    connection: Connection,
    priority: object,
    pool_name: object,
    labels: object,
    resources: object,
    limit: object,
) -> results.EvaluationResult:
    """The tasks that an incoming task may evict; nothing changes."""
    request = EvaluatePreemption(
        priority=parse_priority(priority, "incoming_task_priority"),
        pool_name=parse_name(pool_name, "incoming_task_pool"),
        labels=parse_labels(labels, "incoming_task_labels"),
        resources=None if resources is None else parse_resources(resources),
        limit=parse_count(limit, "limit", 0, MAX_CANDIDATES),
    )
    answer = ask(connection, request, Evaluated)
    if isinstance(answer, Refused):
        return results.not_evaluated(answer)
    return results.evaluated(answer.evaluation)


def execute_preemption(
    connection: Connection, task_id: object, agent_name: object
) -> results.PreemptionResult:
    """Save and cancel a task; its agent stays."""
    request = ExecutePreemption(
        task_id=parse_name(task_id, "task_id"),
        agent_name=parse_name(agent_name, "agent_name"),
        request_id=uuid.uuid4().hex,
    )
    response = respond(connection, request)
    return results.preempted(response.outcome, response.saved)


def preempt_task(
    connection: Connection, task_id: object, agent_name: object, for_pool: object
) -> results.PreemptionResult:
    """Save and cancel the tasks of an agent, and end it."""
    request = PreemptTask(
        task_id=None if task_id is None else parse_name(task_id, "task_id"),
        agent_name=None if agent_name is None else parse_name(agent_name, "agent_name"),
        for_pool=None if for_pool is None else parse_name(for_pool, "for_pool"),
        client=client_name(),
        request_id=uuid.uuid4().hex,
    )
    response = respond(connection, request)
    if not isinstance(response.outcome, AgentEvicted):
        return results.preempted(response.outcome, response.saved)
    evicted = [results.evicted_task(task) for task in response.evicted]
    return {"success": True, "preempted": evicted}


def update_preemption_policy(connection: Connection, changes: Mapping[str, object]) -> PolicyUpdate:
    """Change these fields of the policy; a variable named ``env:NAME`` is read in this process."""
    resolved, level = resolve_changes(changes, os.environ)
    checked = changed_policy(PreemptionPolicy(), resolved).public()
    request = ChangePolicy(
        changes={name: checked[name] for name in resolved},
        client=client_name(),
        level=level,
    )
    answer = ask(connection, request, Details)
    if isinstance(answer, Refused):
        result = results.combined(PolicyUpdate, results.refused(answer))
    else:
        parts = ({"success": True}, answer.facts["policy"], answer.facts)
        result = results.combined(PolicyUpdate, *parts)
    return logged("update_preemption_policy", result)


def get_preemption_policy(connection: Connection) -> PolicyResult:
    """The policy in force and its last changes."""
    return details(connection, GetPolicy(), PolicyResult)


def get_preemption_stats(connection: Connection) -> PreemptionStats:
    """Counts of preemptions, and the last ones."""
    return details(connection, GetPreemptionStats(), PreemptionStats)


def list_preemptions(connection: Connection, which: Mapping[str, object]) -> PreemptionsResult:
    """The last preemptions in which these took part, as victim or evictor."""
    names = ("task_id", "pool_name", "owner")
    given = {name: parse_name(which[name], name) for name in names if which.get(name) is not None}
    limit = parse_count(which.get("limit", DEFAULTS["limit"]), "limit", 1, MAX_PREEMPTIONS)
    request = ListPreemptions(**given, limit=limit)
    return listed(connection, request, "preemptions", PreemptionsResult)
