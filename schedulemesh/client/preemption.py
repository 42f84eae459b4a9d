"""The calls about the preemption policy, what it would decide, and the preemptions so far."""

from __future__ import annotations

import os
from collections.abc import Mapping

from typing_extensions import Unpack

from schedulemesh.api.policies import ChangePolicy, GetPolicy
from schedulemesh.api.preemption import (
    MAX_CANDIDATES,
    MAX_PREEMPTIONS,
    EvaluatePreemption,
    GetPreemptionStats,
    ListPreemptions,
)
from schedulemesh.api.results import EvaluationResult
from schedulemesh.api.values import client_name
from schedulemesh.client import results
from schedulemesh.client.arguments import public, public_calls
from schedulemesh.client.asking import ask, details, listed, logged
from schedulemesh.client.listings import (
    PolicyResult,
    PolicyUpdate,
    PreemptionsResult,
    PreemptionStats,
)
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.client.task_fields import DEFAULTS, PreemptionFilter
from schedulemesh.config.policy import (
    PreemptionAggressiveness,
    PreemptionPolicy,
    changed_policy,
    resolve_changes,
)
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count, parse_priority
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.answers import Details, Evaluated
from schedulemesh.protocol.public import evaluated, refused


@public_calls
class PreemptionCalls(SchedulerObject):
    """A scheduler object that evaluates preemptions, lists them, and changes their policy."""

    def evaluate_preemption(
        self,
        incoming_task_priority: float | str,
        incoming_task_pool: str,
        incoming_task_labels: Mapping[str, str] | None = None,
        resources: Mapping[str, object] | None = None,
        limit: int = 100,
    ) -> EvaluationResult:
        """Return the tasks that an incoming task may evict; nothing changes.

        Returns ``should_preempt``, ``candidates`` (at most ``limit``, best first), and where none may be
        evicted ``reason`` and ``turned_away`` (tasks by the rule that protects them). With ``resources`` it
        also decides whether an eviction is needed and makes room; ``victims`` are the tasks that a submission
        would evict, ``cancelled_starts`` those on borrowed quota that do not run yet and would wait again.
        """
        request = EvaluatePreemption(
            priority=parse_priority(incoming_task_priority, "incoming_task_priority"),
            pool_name=parse_name(incoming_task_pool, "incoming_task_pool"),
            labels=parse_labels(incoming_task_labels, "incoming_task_labels"),
            resources=None if resources is None else parse_resources(resources),
            limit=parse_count(limit, "limit", 0, MAX_CANDIDATES),
        )
        answer = ask(self._connection, request, Evaluated)
        if isinstance(answer, Refused):
            return results.not_evaluated(answer)
        return evaluated(answer.evaluation)

    def update_preemption_policy(
        self,
        *,
        preemption_aggressiveness: PreemptionAggressiveness | str | None = None,
        **changes: object,
    ) -> PolicyUpdate:
        """Change the given fields of the policy.

        Takes every field of PreemptionPolicy, and ``preemption_aggressiveness``: a member of
        PreemptionAggressiveness, its name or alias, or "env:NAME" for a variable of this process. Returns the
        whole policy in force, under ``policy`` and beside it.
        """
        all_changes = {"preemption_aggressiveness": preemption_aggressiveness, **changes}
        resolved, level = resolve_changes(all_changes, os.environ)
        checked = changed_policy(PreemptionPolicy(), resolved).public()
        request = ChangePolicy(
            changes={name: checked[name] for name in resolved},
            client=client_name(),
            level=level,
        )
        answer = ask(self._connection, request, Details)
        if isinstance(answer, Refused):
            result = results.combined(PolicyUpdate, refused(answer))
        else:
            parts = ({"success": True}, answer.facts["policy"], answer.facts)
            result = results.combined(PolicyUpdate, *parts)
        return logged("update_preemption_policy", result)

    def get_preemption_policy(self) -> PolicyResult:
        """Return the ``policy`` in force, and its last ``changes``: when, by which client, what."""
        return details(self._connection, GetPolicy(), PolicyResult)

    @public(PreemptionFilter)
    def list_preemptions(self, **which: Unpack[PreemptionFilter]) -> PreemptionsResult:
        """Return the last ``preemptions`` in which a task, pool or owner took part, the newest last: who was
        evicted for whom, by which rule, what was lost, and how long it took.
        """
        names = {
            field: parse_name(value, field)
            for field, value in which.items()
            if field != "limit" and value is not None
        }
        limit = parse_count(which.get("limit", DEFAULTS["limit"]), "limit", 1, MAX_PREEMPTIONS)
        request = ListPreemptions(**names, limit=limit)
        return listed(self._connection, request, "preemptions", PreemptionsResult)

    def get_preemption_stats(self) -> PreemptionStats:
        """Return how many preemptions there were, by kind, how many tasks run, and
        ``recent_preemptions``, the newest last.
        """
        return details(self._connection, GetPreemptionStats(), PreemptionStats)
