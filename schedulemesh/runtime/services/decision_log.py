"""Logs decisions: shortages as warnings; victims, preemptions and policy changes as information.

Fields are written as ``name=value``, so that all messages about a task are found with one search. Where the
scheduler speaks Chinese the words are Chinese; the fields, which programs read, stay the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.language import Language
from schedulemesh.domain.reasons import SHORTAGES, Reason
from schedulemesh.domain.sentences import in_words
from schedulemesh.engine.messages.facts import (
    AgentAdmitted,
    AnyFact,
    EvictionStarted,
    PolicyChanged,
    TaskPreempted,
)
from schedulemesh.engine.messages.outcomes import Done, Refused, RequestOutcome
from schedulemesh.engine.messages.queue_facts import QueuePolicyChanged, TaskCancelled, TaskQueued
from schedulemesh.engine.messages.stimuli import CohortRequested, PoolRequested, TaskSubmitted
from schedulemesh.engine.transaction import Step

logger = logging.getLogger(__name__)

#: The messages in English, and the words that they begin with in Chinese.
_CHINESE = {
    "short of resources:": "资源不足",
    "victim chosen:": "找到抢占目标",
    "preempting by request:": "按请求抢占",
    "preempted:": "已抢占",
    "refused:": "提交被拒绝",
    "waits again:": "重新排队",
    "cancelled:": "任务已取消",
    "policy:": "抢占策略",
    "pools changed:": "资源池已更改",
    "preemption policy changed by": "抢占策略已更新",
    "queue policy changed by": "排队策略已更新",
}
#: The language of the messages; ``speak`` sets it.
_language: Language = "en"


def speak(language: Language) -> None:
    """Write all messages of this process in a language from now on."""
    global _language  # noqa: PLW0603  # a process has one log
    _language = language


def _log(level: int, words: str, fields: str, *values: object) -> None:
    """Log these words, translated, and the fields."""
    begin = _CHINESE[words] if _language == "zh" else words
    logger.log(level, f"{begin} {fields}", *values)  # noqa: G004  # the words are constants


def log_step(step: Step) -> None:
    """Log what became durable; subscribes to the reactor."""
    log_facts(step.facts)
    if isinstance(step.outcome, Done) and isinstance(
        step.stimulus, (CohortRequested, PoolRequested)
    ):
        for warning in step.outcome.warning_texts:
            _log(logging.WARNING, "pools changed:", "%s", in_words(warning, _language))


def log_facts(facts: Iterable[AnyFact]) -> None:
    """Log these facts, as far as an operator cares."""
    for fact in facts:
        if isinstance(fact, AgentAdmitted):
            if fact.evicting:
                _log_victims(fact)
        elif isinstance(fact, EvictionStarted):
            if fact.for_agent is None:
                _log(logging.INFO, "preempting by request:", "victim_task=%s", fact.task_id)
        elif isinstance(fact, TaskPreempted):
            _log(
                logging.INFO,
                "preempted:",
                "task_id=%s agent=%s reason=%s",
                fact.task.task_id,
                fact.agent_name,
                fact.reason,
            )
        elif isinstance(fact, PolicyChanged):
            _log_policy(fact)
        elif isinstance(fact, TaskQueued):
            _log_return(fact)
        elif isinstance(fact, TaskCancelled) and fact.reason is not Reason.CANCELLED:
            _log(logging.INFO, "cancelled:", "task_id=%s reason=%s", fact.task_id, fact.reason)
        elif isinstance(fact, QueuePolicyChanged):
            shown = fact.policy.public()
            changes = " ".join(f"{name}={shown[name]}" for name in fact.changes)
            _log(logging.INFO, "queue policy changed by", "%s: %s", fact.client, changes)


def log_refusal(stimulus: TaskSubmitted, outcome: RequestOutcome) -> None:
    """Log a submission refused because of a shortage, except for dry runs."""
    if isinstance(outcome, Refused) and outcome.reason in SHORTAGES and not stimulus.dry_run:
        name = stimulus.agent.name if stimulus.task is None else stimulus.task.task_id
        short = outcome.short_quota or outcome.short_node
        lacks = f" lacks=({short})" if short else ""
        _log(logging.WARNING, "refused:", "task_id=%s reason=%s%s", name, outcome.reason, lacks)


def _log_victims(fact: AgentAdmitted) -> None:
    name = fact.agent.name if fact.task is None else fact.task.task_id
    _log(
        logging.WARNING, "short of resources:", "task_id=%s needs=(%s)", name, fact.agent.resources
    )
    for victim in fact.evicting:
        _log(
            logging.INFO,
            "victim chosen:",
            "victim_task=%s for=%s score=%.2f reason=%s",
            victim.task_id,
            name,
            victim.preempt_score,
            victim.reason,
        )


def _log_return(fact: TaskQueued) -> None:
    """Log a task that joins the queue again. Those that join it first are not logged: thousands may do."""
    task, attempts = fact.submission.task, fact.attempts
    if task is None or not (attempts.preemptions or attempts.failures):
        return
    _log(
        logging.INFO,
        "waits again:",
        "task_id=%s pool=%s preemptions=%d failures=%d",
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
    _log(logging.INFO, "preemption policy changed by", "%s", fact.client)
    _log_fields(fact.policy, fact.changes, fact.level)


def _log_fields(policy: PreemptionPolicy, changes: Iterable[str], level: str | None) -> None:
    shown = policy.public()
    if level is not None:
        _log(logging.INFO, "policy:", "preemption_aggressiveness=%s", level)
    for name in changes:
        _log(logging.INFO, "policy:", "%s=%s", name, shown[name])
