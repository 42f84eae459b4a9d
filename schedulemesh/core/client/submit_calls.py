"""Calls that start agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from typing_extensions import Unpack

from schedulemesh.core.client import results
from schedulemesh.core.client.arguments import public, public_calls
from schedulemesh.core.client.sending import Client
from schedulemesh.core.client.task_fields import AgentFields, OptionalFields, SubmitFields
from schedulemesh.core.client.task_request import Submission, submission, task_submission
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_flag
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import DEFAULT_PRIORITY

#: Reasons for a refusal that an eviction for quota and group together may avoid.
_NO_GROUP = (
    Reason.INSUFFICIENT_QUOTA,
    Reason.GROUP_UNPLACEABLE,
    Reason.NO_PG_POOL,
    Reason.PREEMPTION_FAILED,
)


@public_calls
class SubmitCalls(Client):
    """Start an agent, with a task or without."""

    @public(AgentFields)
    def create_agent(
        self,
        name: str,
        pool: str,
        actor_class: Any,
        resources: Mapping[str, Any] | None = None,
        ray_options: Mapping[str, Any] | None = None,
        **fields: Unpack[AgentFields],
    ) -> results.SubmitResult:
        """Start an agent without a task, from free resources only; nothing is evicted for it.

        ``resources`` None takes the pool's default. ``bundles`` are those of its placement group, in a pool
        that keeps groups: the agent runs in the first, and ``resources`` are their sum. It is answered when
        the agent runs.
        """
        given = {
            "agent_name": parse_name(name, "the agent's name"),
            "pool_name": pool,
            "actor_class": actor_class,
            "resources": resources,
            "ray_options": ray_options,
            **fields,
        }
        return self._submit(_changed(submission(self._caller, given), may_preempt=False))

    @public(OptionalFields)
    def submit_task_with_preemption(
        self,
        task_id: str,
        pool_name: str | None = None,
        actor_class: Any = None,
        resources: Mapping[str, Any] | None = None,
        priority: float = DEFAULT_PRIORITY,
        **fields: Unpack[OptionalFields],
    ) -> results.SubmitResult:
        """Start an agent for a task, evicting others where the policy allows and it is needed.

        One transaction: it runs, or everything is as before. The class is built with ``name`` and
        ``labels`` first, then ``actor_args`` and ``actor_kwargs``. ``estimated_duration`` is in seconds.
        With ``pool_selector`` instead of ``pool_name`` the best matching pool is chosen. ``dry_run`` answers
        where it would run and what would be evicted. The same ``request_id`` again gets the first answer.
        ``bundles`` are those of its placement group, in a pool that keeps groups: the agent runs in the
        first, its own tasks and actors in all, and ``resources`` are their sum.
        """
        every: SubmitFields = {**fields, "resources": resources, "priority": priority}
        return self._submit(self._task(task_id, pool_name, actor_class, every))

    @public(SubmitFields)
    def submit_with_pg_preemption(
        self,
        task_id: str,
        pool_name: str | None = None,
        actor_class: Any = None,
        *,
        fallback: bool = False,
        **fields: Unpack[SubmitFields],
    ) -> results.SubmitResult:
        """Start an agent for a task in a placement group of a pool that keeps them.

        Takes the fields of ``submit_task_with_preemption``. Quota comes first: where it is short, the answer
        is ``insufficient_quota`` and nothing is evicted. For a group others are evicted where the policy
        allows; the group is kept for the incoming task. With ``fallback`` a refusal for want of quota or
        group is followed by an ordinary submission, which may evict for both; ``path`` says which one
        succeeded: "pg" or "fallback".
        """
        fallback = parse_flag(fallback, "fallback")
        request = self._task(task_id, pool_name, actor_class, fields)
        answer = self._submit(_changed(request, for_group=True))
        if answer["success"]:
            return {**answer, "path": "pg"}
        if not fallback or answer["reason"] not in _NO_GROUP:
            return answer
        # An id of its own, so that a repeated call gets both answers again.
        second = f"{request.request.request_id}:fallback"
        return {**self._submit(_changed(request, request_id=second)), "path": "fallback"}

    def _task(
        self, task_id: str, pool_name: str | None, actor_class: Any, fields: SubmitFields
    ) -> Submission:
        own = {"task_id": task_id, "pool_name": pool_name, "actor_class": actor_class}
        return task_submission(self._caller, {**own, **fields})


def _changed(submitted: Submission, **fields: Any) -> Submission:
    request = msgspec.structs.replace(submitted.request, **fields)
    return msgspec.structs.replace(submitted, request=request)
