"""Calls about tasks and their preemption."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from schedulemesh.config.policy import (
    PreemptionAggressiveness,
    PreemptionPolicy,
    changed_policy,
    resolve_changes,
)
from schedulemesh.config.pools import parse_name
from schedulemesh.core.client import results as replies
from schedulemesh.core.client.sending import Client
from schedulemesh.core.client.task_request import (
    parse_number,
    parse_task,
)
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import AgentEvicted, Evaluation, Refused
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.agents import key_of, pack


class PreemptionCalls(Client):
    """Register, evaluate, evict, and the policy behind it."""

    def register_running_task(
        self,
        task_id: str,
        agent_name: str,
        pool_name: str,
        priority: float = 5.0,
        labels: Mapping[str, str] | None = None,
        estimated_duration: float | None = None,
        payload: Any = None,
    ) -> replies.Result:
        """Say that a task runs on an agent, so that it can be evaluated and preempted.

        Agent and pool may be unknown; then the task holds no quota. The same again changes nothing; another
        task of the same id is ``duplicate_task``.
        """
        task, data = parse_task(task_id, pool_name, priority, labels, estimated_duration, payload)
        stimulus = s.TaskAnnounced(
            at=0.0, task=task, agent_name=parse_name(agent_name, "agent_name")
        )
        blobs = {} if data is None else {key_of(data): data}
        return replies.done(self._connection.call("act", stimulus, blobs).outcome)

    def complete_task(self, task_id: str, end_agent: bool = False) -> replies.Result:
        """Say that a task is done; ``end_agent`` ends its agent too and gives the quota back."""
        stimulus = s.TaskFinished(
            at=0.0,
            task_id=parse_name(task_id, "task_id"),
            end_agent=end_agent,
            request_id=uuid.uuid4().hex,
        )
        return replies.done(self._connection.call("end", stimulus).outcome)

    def list_tasks(self) -> dict[str, Any]:
        """Every task on the book, with phase, remaining time and last metrics."""
        return {"success": True, "tasks": self._connection.call("view", "tasks")}

    def evaluate_preemption(
        self,
        incoming_task_priority: float,
        incoming_task_pool: str,
        incoming_task_labels: Mapping[str, str] | None = None,
        resources: Mapping[str, Any] | None = None,
        limit: int = 100,
    ) -> replies.EvaluationResult:
        """Whom an incoming task may evict, best first; a dry run that changes nothing.

        With ``resources`` it also says whether an eviction is needed and would make room (``victims``).
        """
        query = s.PreemptionQuery(
            at=0.0,
            priority=parse_number(incoming_task_priority, "incoming_task_priority"),
            pool_name=parse_name(incoming_task_pool, "incoming_task_pool"),
            labels=parse_labels(incoming_task_labels, "incoming_task_labels"),
            resources=None if resources is None else parse_resources(resources),
            limit=int(parse_number(limit, "limit", least=0)),
        )
        found = self._connection.call("evaluate", pack(query))
        return replies.evaluated(msgspec.msgpack.decode(found, type=Evaluation))

    def execute_preemption(self, task_id: str, agent_name: str) -> replies.PreemptionResult:
        """Save a task's state and cancel it; its agent stays, for another task."""
        stimulus = s.PreemptionRequested(
            at=0.0,
            task_id=parse_name(task_id, "task_id"),
            agent_name=parse_name(agent_name, "agent_name"),
        )
        reply = self._connection.call("preempt", stimulus, uuid.uuid4().hex)
        return replies.preempted(reply.outcome, reply.saved)

    def preempt_task(
        self,
        task_id: str | None = None,
        agent_name: str | None = None,
        for_pool: str | None = None,
    ) -> replies.PreemptionResult:
        """Evict by hand: save the agent's tasks, cancel them and end the agent.

        Name the task or the agent. ``for_pool`` holds the freed quota for that pool for 60 s.
        """
        if task_id is None and agent_name is None:
            raise InvalidRequestError("preempt_task needs a task_id or an agent_name")
        stimulus = s.PreemptionRequested(
            at=0.0, task_id=task_id, agent_name=agent_name, end_agent=True, for_pool=for_pool
        )
        reply = self._connection.call("preempt", stimulus, uuid.uuid4().hex)
        if not isinstance(reply.outcome, AgentEvicted):
            return replies.preempted(reply.outcome, reply.saved)
        return {
            "success": True,
            "preempted": [
                {"task_id": tid, "reason": why, "saved_state": replies.saved_state(saved)}
                for tid, why, saved in reply.evicted
            ],
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
        changed_policy(PreemptionPolicy(), resolved)
        client = f"{socket.gethostname()}:{os.getpid()}"
        policy = self._connection.call("change_policy", resolved, client, level)
        if isinstance(policy, Refused):
            return dict(replies.refused(policy))
        return {"success": True, "policy": policy, **policy}

    def get_preemption_policy(self) -> dict[str, Any]:
        """The policy in force, and the last changes of it: when, by which client, what."""
        return {
            "success": True,
            "policy": self._connection.call("view", "policy"),
            "changes": self._connection.call("view", "policy_changes"),
        }

    def get_preemption_stats(self) -> dict[str, Any]:
        """Preemptions so far, by kind, running tasks, and the last preemptions, newest last."""
        return {"success": True, **self._connection.call("view", "preemption_stats")}
