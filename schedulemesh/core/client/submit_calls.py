"""Calls that start agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from schedulemesh.core.client import results
from schedulemesh.core.client.arguments import public, public_calls
from schedulemesh.core.client.sending import Client
from schedulemesh.core.client.task_request import Submission, parse_task, submission
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_flag
from schedulemesh.domain.task import DEFAULT_PRIORITY

#: Why a submission got no placement group though an eviction for quota and group together may help.
_NO_GROUP = ("insufficient_quota", "group_unplaceable", "no_pg_pool", "preemption_failed")

#: What every submission of a task takes beside task_id, pool and class.
TASK_FIELDS = (
    "resources",
    "priority",
    "labels",
    "actor_args",
    "actor_kwargs",
    "agent_name",
    "estimated_duration",
    "payload",
    "ray_options",
    "pool_selector",
    "dry_run",
    "request_id",
    "bundles",
)


@public_calls
class SubmitCalls(Client):
    """Start an agent, with a task or without."""

    def create_agent(
        self,
        name: str,
        pool: str,
        actor_class: Any,
        resources: Mapping[str, Any] | None = None,
        ray_options: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        actor_args: Sequence[Any] | None = None,
        actor_kwargs: Mapping[str, Any] | None = None,
        bundles: Sequence[Mapping[str, Any]] | None = None,
    ) -> results.SubmitResult:
        """Make an agent without a task, from free resources only; nobody is evicted for it.

        ``resources`` None takes the pool's default. ``bundles`` are those of its placement group, in a pool
        that keeps groups: it lives in the first, and ``resources`` are their sum. It is answered when the
        agent runs.
        """
        found = submission(
            self._caller,
            task=None,
            payload=None,
            pool_name=pool,
            pool_selector=None,
            actor_class=actor_class,
            resources=resources,
            labels=labels,
            actor_args=actor_args,
            actor_kwargs=actor_kwargs,
            agent_name=parse_name(name, "the agent's name"),
            ray_options=ray_options,
            request_id=None,
            bundles=bundles,
        )
        return self._submit(_changed(found, may_preempt=False))

    def submit_task_with_preemption(
        self,
        task_id: str,
        pool_name: str | None = None,
        actor_class: Any = None,
        resources: Mapping[str, Any] | None = None,
        priority: float = 5.0,
        labels: Mapping[str, str] | None = None,
        actor_args: Sequence[Any] | None = None,
        actor_kwargs: Mapping[str, Any] | None = None,
        agent_name: str | None = None,
        estimated_duration: float | None = None,
        payload: Any = None,
        ray_options: Mapping[str, Any] | None = None,
        pool_selector: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        request_id: str | None = None,
        bundles: Sequence[Mapping[str, Any]] | None = None,
    ) -> results.SubmitResult:
        """Start an agent for a task, evicting others where the policy allows and it is needed.

        One transaction: it runs, or everything is as before. The class is built with ``name`` and
        ``labels`` first, then ``actor_args`` and ``actor_kwargs``. ``estimated_duration`` is in seconds.
        With ``pool_selector`` instead of ``pool_name`` the best matching pool is chosen. ``dry_run`` tells
        where it would run and who would go. The same ``request_id`` again gets the first answer.
        ``bundles`` are those of its placement group, in a pool that keeps groups: the agent lives in the
        first, its own tasks and actors in all, and ``resources`` are their sum.
        """
        found = self._task(
            task_id=task_id,
            pool_name=pool_name,
            actor_class=actor_class,
            resources=resources,
            priority=priority,
            labels=labels,
            actor_args=actor_args,
            actor_kwargs=actor_kwargs,
            agent_name=agent_name,
            estimated_duration=estimated_duration,
            payload=payload,
            ray_options=ray_options,
            pool_selector=pool_selector,
            dry_run=dry_run,
            request_id=request_id,
            bundles=bundles,
        )
        return self._submit(found)

    @public(TASK_FIELDS)
    def submit_with_pg_preemption(
        self,
        task_id: str,
        pool_name: str | None = None,
        actor_class: Any = None,
        *,
        fallback: bool = False,
        **fields: Any,
    ) -> results.SubmitResult:
        """Start an agent for a task in a placement group of a pool that keeps them.

        Takes the fields of ``submit_task_with_preemption``. Quota comes first: where it is short, the answer
        is ``insufficient_quota`` and nobody is evicted. For a group others are evicted where the policy
        allows; the group stays and the newcomer moves in. With ``fallback`` a refusal for want of quota or
        group is followed by an ordinary submission, which may evict for both; ``path`` says which way it
        went: "pg" or "fallback".
        """
        fallback = parse_flag(fallback, "fallback")
        found = self._task(task_id=task_id, pool_name=pool_name, actor_class=actor_class, **fields)
        answer = self._submit(_changed(found, for_group=True))
        if answer["success"]:
            return {**answer, "path": "pg"}
        if not fallback or answer["reason"] not in _NO_GROUP:
            return answer
        # An id of its own, so that a repeated call gets both answers again.
        second = f"{found.request.request_id}:fallback"
        return {**self._submit(_changed(found, request_id=second)), "path": "fallback"}

    def _task(
        self,
        *,
        task_id: object,
        pool_name: object,
        actor_class: object,
        resources: object = None,
        priority: object = DEFAULT_PRIORITY,
        labels: object = None,
        actor_args: object = None,
        actor_kwargs: object = None,
        agent_name: object = None,
        estimated_duration: object = None,
        payload: object = None,
        ray_options: object = None,
        pool_selector: object = None,
        dry_run: object = False,
        request_id: object = None,
        bundles: object = None,
    ) -> Submission:
        """The submission of a task. Raises InvalidRequestError."""
        task, data = parse_task(task_id, pool_name, priority, labels, estimated_duration, payload)
        return submission(
            self._caller,
            task=task,
            payload=data,
            pool_name=pool_name,
            pool_selector=pool_selector,
            actor_class=actor_class,
            resources=resources,
            labels=labels,
            actor_args=actor_args,
            actor_kwargs=actor_kwargs,
            agent_name=agent_name,
            ray_options=ray_options,
            request_id=request_id,
            dry_run=dry_run,
            bundles=bundles,
        )


def _changed(found: Submission, **fields: Any) -> Submission:
    request = msgspec.structs.replace(found.request, **fields)
    return msgspec.structs.replace(found, request=request)
