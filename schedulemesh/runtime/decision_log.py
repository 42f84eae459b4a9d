"""Logs decisions: shortages as warnings; victims, preemptions and policy changes as information.

Fields are written as ``name=value``, so that all messages about a task are found with one search.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.facts import (
    AgentAdmitted,
    AnyFact,
    EvictionStarted,
    PolicyChanged,
    TaskPreempted,
)
from schedulemesh.engine.messages.outcomes import Refused, RequestOutcome
from schedulemesh.engine.messages.queue_facts import QueuePolicyChanged, TaskCancelled, TaskQueued
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.transaction import Step

logger = logging.getLogger(__name__)

#: Refusals because of a shortage; all others are errors of the caller.
SHORTAGES = frozenset(
    {
        Reason.CLUSTER_OUT_OF_RESOURCES,
        Reason.GROUP_UNPLACEABLE,
        Reason.INSUFFICIENT_QUOTA,
        Reason.PREEMPTION_FAILED,
    }
)


def log_step(step: Step) -> None:
    """Log what became durable; subscribes to the reactor."""
    log_facts(step.facts)


def log_facts(facts: Iterable[AnyFact]) -> None:
    """Log these facts, as far as an operator cares."""
    for fact in facts:
        if isinstance(fact, AgentAdmitted):
            if fact.evicting:
                _log_victims(fact)
        elif isinstance(fact, EvictionStarted):
            if fact.for_agent is None:
                logger.info("preempting by request: victim_task=%s", fact.task_id)
        elif isinstance(fact, TaskPreempted):
            logger.info(
                "preempted: task_id=%s agent=%s reason=%s",
                fact.task.task_id,
                fact.agent_name,
                fact.reason,
            )
        elif isinstance(fact, PolicyChanged):
            _log_policy(fact)
        elif isinstance(fact, TaskQueued):
            _log_return(fact)
        elif isinstance(fact, TaskCancelled) and fact.reason is not Reason.CANCELLED:
            logger.info("cancelled: task_id=%s reason=%s", fact.task_id, fact.reason)
        elif isinstance(fact, QueuePolicyChanged):
            shown = fact.policy.public()
            changes = " ".join(f"{name}={shown[name]}" for name in fact.changes)
            logger.info("queue policy changed by %s: %s", fact.client, changes)


def log_refusal(stimulus: TaskSubmitted, outcome: RequestOutcome) -> None:
    """Log a submission refused because of a shortage, except for dry runs."""
    if isinstance(outcome, Refused) and outcome.reason in SHORTAGES and not stimulus.dry_run:
        name = stimulus.agent.name if stimulus.task is None else stimulus.task.task_id
        short = outcome.short_quota or outcome.short_node
        lacks = f" lacks=({short})" if short else ""
        logger.warning("refused: task_id=%s reason=%s%s", name, outcome.reason, lacks)


def _log_victims(fact: AgentAdmitted) -> None:
    name = fact.agent.name if fact.task is None else fact.task.task_id
    logger.warning("short of resources: task_id=%s needs=(%s)", name, fact.agent.resources)
    for victim in fact.evicting:
        logger.info(
            "victim chosen: victim_task=%s for=%s score=%.2f reason=%s",
            victim.task_id,
            name,
            victim.preempt_score,
            victim.reason,
        )


def _log_return(fact: TaskQueued) -> None:
    """Log a task that joins the queue again; not one that joins it first, of which there may be thousands."""
    task, attempts = fact.submission.task, fact.attempts
    if task is None or not (attempts.preemptions or attempts.failures):
        return
    logger.info(
        "waits again: task_id=%s pool=%s preemptions=%d failures=%d",
        task.task_id,
        task.pool_name,
        attempts.preemptions,
        attempts.failures,
    )


def log_unchanged_policy(
    policy: PreemptionPolicy, changes: Iterable[str], level: str | None
) -> None:
    """Log what a level was resolved to, where it was the policy in force already."""
    if level is not None:
        _log_fields(policy, changes, level)


def _log_policy(fact: PolicyChanged) -> None:
    logger.info("preemption policy changed by %s", fact.client)
    _log_fields(fact.policy, fact.changes, fact.level)


def _log_fields(policy: PreemptionPolicy, changes: Iterable[str], level: str | None) -> None:
    shown = policy.public()
    if level is not None:
        logger.info("policy: preemption_aggressiveness=%s", level)
    for name in changes:
        logger.info("policy: %s=%s", name, shown[name])
