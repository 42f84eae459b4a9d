"""Calls about tasks and their preemption."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

from typing_extensions import Unpack

from schedulemesh.config.policy import (
    PreemptionAggressiveness,
    PreemptionPolicy,
    changed_policy,
    resolve_changes,
)
from schedulemesh.core.client import results
from schedulemesh.core.client.arguments import public, public_calls
from schedulemesh.core.client.sending import Client
from schedulemesh.core.client.task_fields import TaskFields
from schedulemesh.core.client.task_request import client_name, described_task
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count, parse_flag, parse_priority
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import DEFAULT_PRIORITY
from schedulemesh.engine.messages.outcomes import AgentEvicted, Refused
from schedulemesh.protocol.answers import Details, Evaluated
from schedulemesh.protocol.requests import (
    ChangePolicy,
    CompleteTask,
    EvaluatePreemption,
    ExecutePreemption,
    GetPolicy,
    GetPreemptionStats,
    ListTasks,
    PreemptTask,
    RegisterTask,
)


@public_calls
class PreemptionCalls(Client):
    """Register, evaluate, evict, and the policy behind it."""

    @public(TaskFields)
    def register_running_task(
        self,
        task_id: str,
        agent_name: str,
        pool_name: str,
        priority: float = DEFAULT_PRIORITY,
        **fields: Unpack[TaskFields],
    ) -> results.Result:
        """Say that a task runs on an agent, so that it can be evaluated and preempted.

        Agent and pool may be unknown; then the task holds no quota. The same again changes nothing; another
        task of the same id is ``duplicate_task``.
        """
        named = {"task_id": task_id, "pool_name": pool_name, "priority": priority}
        task, blobs = described_task({**named, **fields})
        agent = parse_name(agent_name, "agent_name")
        request = RegisterTask(task=task, agent_name=agent, blobs=blobs)
        return results.done(self._reply(request).outcome)

    def complete_task(self, task_id: str, end_agent: bool = False) -> results.Result:
        """Say that a task is done; ``end_agent`` ends its agent too and gives the quota back."""
        request = CompleteTask(
            task_id=parse_name(task_id, "task_id"),
            end_agent=parse_flag(end_agent, "end_agent"),
            request_id=uuid.uuid4().hex,
        )
        return results.done(self._reply(request).outcome)

    def list_tasks(self) -> dict[str, Any]:
        """Every task on the book, with phase, remaining time and last metrics."""
        return self._listed(ListTasks(), "tasks")

    def evaluate_preemption(
        self,
        incoming_task_priority: float,
        incoming_task_pool: str,
        incoming_task_labels: Mapping[str, str] | None = None,
        resources: Mapping[str, Any] | None = None,
        limit: int = 100,
    ) -> results.EvaluationResult:
        """Whom an incoming task may evict, best first; a dry run that changes nothing.

        With ``resources`` it also says whether an eviction is needed and would make room (``victims``).
        """
        query = EvaluatePreemption(
            priority=parse_priority(incoming_task_priority, "incoming_task_priority"),
            pool_name=parse_name(incoming_task_pool, "incoming_task_pool"),
            labels=parse_labels(incoming_task_labels, "incoming_task_labels"),
            resources=None if resources is None else parse_resources(resources),
            limit=parse_count(limit, "limit"),
        )
        found = self._ask(query, Evaluated)
        if isinstance(found, Refused):
            return results.not_evaluated(found)
        return results.evaluated(found.evaluation)

    def execute_preemption(self, task_id: str, agent_name: str) -> results.PreemptionResult:
        """Save a task's state and cancel it; its agent stays, for another task."""
        request = ExecutePreemption(
            task_id=parse_name(task_id, "task_id"),
            agent_name=parse_name(agent_name, "agent_name"),
            request_id=uuid.uuid4().hex,
        )
        reply = self._reply(request)
        return results.preempted(reply.outcome, reply.saved)

    def preempt_task(
        self,
        task_id: str | None = None,
        agent_name: str | None = None,
        for_pool: str | None = None,
    ) -> results.PreemptionResult:
        """Evict by hand: save the agent's tasks, cancel them and end the agent.

        Name the task or the agent; a single name may be either's. ``for_pool`` holds the freed quota for
        that pool for 60 s; else it is held for 10 s for this process, whatever pool it submits to.
        """
        request = PreemptTask(
            task_id=None if task_id is None else parse_name(task_id, "task_id"),
            agent_name=None if agent_name is None else parse_name(agent_name, "agent_name"),
            for_pool=None if for_pool is None else parse_name(for_pool, "for_pool"),
            client=client_name(),
            request_id=uuid.uuid4().hex,
        )
        reply = self._reply(request)
        if not isinstance(reply.outcome, AgentEvicted):
            return results.preempted(reply.outcome, reply.saved)
        return {
            "success": True,
            "preempted": [results.evicted_task(*evicted) for evicted in reply.evicted],
        }

    def update_preemption_policy(
        self,
        *,
        preemption_aggressiveness: PreemptionAggressiveness | str | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """Change what is given of the policy, and return the whole policy in force.

        Takes every field of PreemptionPolicy, and ``preemption_aggressiveness``: a member of
        PreemptionAggressiveness, a name or alias, or ``env:NAME``, which is read here.
        """
        given = {"preemption_aggressiveness": preemption_aggressiveness, **changes}
        resolved, level = resolve_changes(given, os.environ)
        checked = changed_policy(PreemptionPolicy(), resolved).public()
        request = ChangePolicy(
            changes={name: checked[name] for name in resolved},
            client=client_name(),
            level=level,
        )
        told = self._ask(request, Details)
        if isinstance(told, Refused):
            return dict(results.refused(told))
        return {"success": True, **told.facts["policy"], **told.facts}

    def get_preemption_policy(self) -> dict[str, Any]:
        """The policy in force, and the last changes of it: when, by which client, what."""
        return self._details(GetPolicy())

    def get_preemption_stats(self) -> dict[str, Any]:
        """Preemptions so far, by kind, running tasks, and the last preemptions, newest last."""
        return self._details(GetPreemptionStats())
