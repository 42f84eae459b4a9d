"""The catalogue of alert rules: every rule once, with its condition, duration, severity and texts.

The evaluation in the scheduler, the rules file for Prometheus and the page ``docs/alert_rules.md`` are made
from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from schedulemesh.config.alerts import AlertSettings, RuleSettings, Severity
from schedulemesh.errors import InvalidRequestError, nearest
from schedulemesh.metrics.alert_conditions import (
    Comparator,
    Condition,
    Expression,
    LabelSet,
    Ratio,
    Value,
)

#: Where the value of a label stands in a text.
_PLACE = re.compile(r"\{(\w+)\}")


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """An alert rule. It fires for each set of labels for which its condition holds."""

    #: The same in the scheduler and in Prometheus.
    id: str
    condition: Condition
    #: Seconds for which the condition has to hold before the alert fires.
    for_s: float
    severity: Severity
    #: What is wrong, in one sentence; ``{pool}`` stands for the value of the label ``pool``.
    summary: str
    #: What to do about it.
    action: str


def filled_in(template: str, labels: LabelSet) -> str:
    """A summary or an action with the values of labels."""
    values = dict(labels)
    return _PLACE.sub(lambda place: values.get(place[1], place[0]), template)


#: Every rule by its id.
RULES: dict[str, Rule] = {}


def _rule(
    rule_id: str,
    expression: Expression | str,
    comparison: Comparator,
    threshold: float,
    for_s: float,
    severity: Severity,
    summary: str,
    action: str,
) -> None:
    if isinstance(expression, str):
        expression = Value(metric=expression)
    condition = Condition(expression=expression, comparison=comparison, threshold=threshold)
    RULES[rule_id] = Rule(
        id=rule_id,
        condition=condition,
        for_s=for_s,
        severity=severity,
        summary=summary,
        action=action,
    )


_QUOTA_IN_USE = Ratio(
    parts=("schedulemesh_pool_quota_used", "schedulemesh_pool_quota_reserved"),
    whole="schedulemesh_pool_quota",
)

_rule(
    "supervisor_restarted",
    "schedulemesh_supervisor_restart_age_seconds",
    Comparator.BELOW,
    600.0,
    0.0,
    Severity.WARNING,
    "The supervisor was restarted.",
    "Read the log of the supervisor's actor for the reason: the process was killed, ran out of memory, or "
    "its node was lost. No task is lost by a restart; one that repeats needs attention.",
)
_rule(
    "quota_nearly_full",
    _QUOTA_IN_USE,
    Comparator.AT_LEAST,
    0.9,
    900.0,
    Severity.INFO,
    "Pool {pool} has used nearly all of its {resource} quota.",
    "Expect tasks to wait or to preempt others. See `schedulemesh usage --by owner` for who uses it; "
    "increase the quota, or let the pool borrow.",
)
_rule(
    "quota_exceeded",
    _QUOTA_IN_USE,
    Comparator.ABOVE,
    1.0,
    300.0,
    Severity.WARNING,
    "Pool {pool} uses more {resource} than its quota.",
    "This happens when a pool in use is made smaller. Nothing starts in it until enough tasks have ended; "
    "preempt some, or increase the quota.",
)
_rule(
    "starvation",
    "schedulemesh_queue_oldest_wait_seconds",
    Comparator.ABOVE,
    3600.0,
    0.0,
    Severity.WARNING,
    "A task of pool {pool} has been waiting in the queue for too long.",
    "Find it with `schedulemesh queue --pool {pool}` and ask `schedulemesh explain` why it waits. Tasks "
    "on hold count, too: release or cancel those that were forgotten.",
)
_rule(
    "stuck_admission",
    "schedulemesh_admission_oldest_seconds",
    Comparator.ABOVE,
    900.0,
    0.0,
    Severity.WARNING,
    "An agent of pool {pool} was admitted and has not started.",
    "See `schedulemesh agents -f pool={pool}` for agents that wait or start, and `schedulemesh explain` for "
    "what they wait for: an eviction, a placement group, or a slow start of the process.",
)
_rule(
    "preemption_storm",
    "schedulemesh_recent_preemptions",
    Comparator.ABOVE,
    20.0,
    0.0,
    Severity.WARNING,
    "Many tasks of pool {pool} were preempted within 5 minutes.",
    "See `schedulemesh preemptions` for who evicts whom. Limit it with `preemption_cooldown`, `min_runtime` "
    "or `lost_work_budget` of the policy, or give the evicting work a quota of its own.",
)
_rule(
    "slow_preemption",
    "schedulemesh_preemption_oldest_seconds",
    Comparator.ABOVE,
    120.0,
    0.0,
    Severity.WARNING,
    "The preemption of a task of pool {pool} has been in progress for too long.",
    "Its agent does not save its state or does not end in time. See `schedulemesh preemptions`; lower "
    "`save_timeout` or `cancel_timeout` of the policy, or make saving faster.",
)
_rule(
    "lost_state",
    "schedulemesh_recent_lost_states",
    Comparator.ABOVE,
    0.0,
    0.0,
    Severity.WARNING,
    "Tasks of pool {pool} lost their work: there is no saved state.",
    "See `schedulemesh history --pool {pool}` for which tasks. Register state handlers for the pool, or save "
    "states periodically with `save_task_state`.",
)
_rule(
    "stale_heartbeat",
    "schedulemesh_agent_heartbeat_age_seconds",
    Comparator.ABOVE,
    240.0,
    0.0,
    Severity.WARNING,
    "Agent {agent} of pool {pool} has not contacted the supervisor.",
    "Its process hangs, or the network between its node and the supervisor fails. `schedulemesh health` asks "
    "Ray for it, and creates it again if it is gone.",
)
_rule(
    "group_leak",
    Value(metric="schedulemesh_orphans", labels=(("kind", "placement_group"),)),
    Comparator.ABOVE,
    0.0,
    600.0,
    Severity.WARNING,
    "There are placement groups that the scheduler's journal does not know.",
    "They hold resources that nobody uses. `schedulemesh orphans` lists them; end them if no agent runs in "
    "them.",
)
_rule(
    "journal_errors",
    "schedulemesh_recent_journal_errors",
    Comparator.ABOVE,
    0.0,
    0.0,
    Severity.CRITICAL,
    "The journal cannot be written, or could not within the last 5 minutes.",
    "While it cannot be written, nothing is admitted, preempted or changed. `schedulemesh doctor` checks the "
    "disk or the database of the journal.",
)
_rule(
    "loop_overdue",
    "schedulemesh_loop_overdue_seconds",
    Comparator.ABOVE,
    60.0,
    0.0,
    Severity.CRITICAL,
    "The loop {loop} of the supervisor fails or hangs.",
    "What it watches is not noticed meanwhile: `cluster_monitor` finds dead agents and lost nodes, `health` "
    "rebuilds agents, `leases` ends those that nobody holds. The log of the supervisor's actor has the "
    "errors; if it hangs, end the process of that actor: Ray starts it again, and nothing is lost.",
)
_rule(
    "idle_gpus",
    "schedulemesh_gpus_idle",
    Comparator.ABOVE,
    0.0,
    0.0,
    Severity.INFO,
    "Agents of pool {pool} hold GPUs and do not use them.",
    "The policy says for how long a GPU has to be idle. See `schedulemesh agents -f pool={pool}` for the "
    "agents; end them, or run them with fewer GPUs.",
)
_POOL_BUDGET = Ratio(
    parts=("schedulemesh_pool_budget_used_gpu_hours",), whole="schedulemesh_pool_budget_gpu_hours"
)
_OWNER_BUDGET = Ratio(
    parts=("schedulemesh_owner_budget_used_gpu_hours",), whole="schedulemesh_owner_budget_gpu_hours"
)
_rule(
    "pool_budget_nearly_spent",
    _POOL_BUDGET,
    Comparator.AT_LEAST,
    0.8,
    0.0,
    Severity.INFO,
    "Pool {pool} has used most of its budget.",
    "See `schedulemesh budgets` for when it will be spent, and `schedulemesh usage --by owner` for who uses "
    "it. Raise the budget, or save what is left for what matters.",
)
_rule(
    "pool_budget_spent",
    _POOL_BUDGET,
    Comparator.AT_LEAST,
    1.0,
    0.0,
    Severity.WARNING,
    "The budget of pool {pool} is spent.",
    "`schedulemesh budgets` says what happens then, and when the period turns. Raise the budget, or let "
    "tasks wait until then.",
)
_rule(
    "owner_budget_nearly_spent",
    _OWNER_BUDGET,
    Comparator.AT_LEAST,
    0.8,
    0.0,
    Severity.INFO,
    "Owner {owner} has used most of the budget in pool {pool}.",
    "See `schedulemesh budgets` for when it will be spent.",
)
_rule(
    "owner_budget_spent",
    _OWNER_BUDGET,
    Comparator.AT_LEAST,
    1.0,
    0.0,
    Severity.INFO,
    "The budget of owner {owner} in pool {pool} is spent.",
    "`schedulemesh budgets` says what happens then, and when the period turns. An operator raises it with "
    "owner_budgets of the pool.",
)
_rule(
    "job_over_claim",
    "schedulemesh_jobs_beyond_claim",
    Comparator.ABOVE,
    0.0,
    60.0,
    Severity.WARNING,
    "Jobs of pool {pool} hold more {resource} in Ray than they claim.",
    "See `schedulemesh jobs -o wide` for which, and submit them with what they need. `over_claim` of the "
    "policy ends such jobs.",
)


def effective_rules(settings: AlertSettings) -> tuple[Rule, ...]:
    """The rules that are switched on, with the settings' own values. Raises InvalidRequestError for an
    unknown id.
    """
    check_rule_ids(settings.rules)
    changed = [_changed(rule, settings.rules.get(rule.id)) for rule in RULES.values()]
    return tuple(rule for rule in changed if rule is not None)


def check_rule_ids(settings: Mapping[str, RuleSettings]) -> None:
    """Raise InvalidRequestError for an id that no rule has."""
    for rule_id in settings:
        if rule_id not in RULES:
            raise InvalidRequestError(
                f"there is no alert rule {rule_id!r}{nearest(rule_id, RULES)}; there are {', '.join(RULES)}"
            )


def _changed(rule: Rule, settings: RuleSettings | None) -> Rule | None:
    """The rule with the values that settings replace; None: it is switched off."""
    if settings is None:
        return rule
    if not settings.enabled:
        return None
    condition = rule.condition
    if settings.threshold is not None:
        condition = msgspec.structs.replace(condition, threshold=settings.threshold)
    return msgspec.structs.replace(
        rule,
        condition=condition,
        for_s=rule.for_s if settings.for_s is None else settings.for_s,
        severity=rule.severity if settings.severity is None else settings.severity,
    )
