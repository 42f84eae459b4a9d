"""Outcomes and explanations as plain data, in the form in which Python callers and the HTTP API give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from schedulemesh.api.nodes import ExternalJobInfo
from schedulemesh.api.pools import PoolDefinition, lending_definition
from schedulemesh.api.results import (
    CandidateInfo,
    ConsideredInfo,
    DurationInfo,
    EvaluationResult,
    EvictionInfo,
    ExplainResult,
    HolderInfo,
    ReasonInfo,
    Result,
    SentenceInfo,
)
from schedulemesh.api.tasks import row_of_task
from schedulemesh.domain.budgets import public_budget, public_owner_budgets
from schedulemesh.domain.flavors import public_flavors
from schedulemesh.domain.owner_limits import public_owner_limits
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Amounts, Resources
from schedulemesh.domain.sentences import Sentence, Text
from schedulemesh.engine.messages.explanation import (
    Considered,
    DurationEstimate,
    EvictionSummary,
    Explanation,
    ExternalJob,
    Finding,
)
from schedulemesh.engine.messages.outcomes import (
    Candidate,
    Done,
    Evaluation,
    Holder,
    Refused,
    RequestOutcome,
)


def refused(outcome: Refused) -> Result:
    """A refusal: an ordinary answer with ``success`` False."""
    answer: Result = {"success": False, "error": outcome.error, "reason": outcome.reason.value}
    if sentences := _sentences(error=outcome.error_text, hint=outcome.hint_text):
        answer["sentences"] = sentences
    if outcome.short_quota or outcome.short_node:
        answer["short"] = _short(outcome.short_quota, outcome.short_node)
    if outcome.holders:
        answer["holders"] = holders(outcome.holders)
    if outcome.turned_away:
        answer["turned_away"] = counts(outcome.turned_away)
    if outcome.sufficient_priority is not None:
        answer["sufficient_priority"] = outcome.sufficient_priority
    if outcome.earliest_start is not None:
        answer["earliest_start"] = outcome.earliest_start
    if outcome.position is not None:
        answer["position"] = outcome.position
    if outcome.hint:
        answer["hint"] = outcome.hint
    if outcome.detail:
        answer["detail"] = outcome.detail
    if outcome.restarted or outcome.requeued or outcome.not_restarted:
        answer["restarted"] = list(outcome.restarted)
        answer["requeued"] = list(outcome.requeued)
        answer["not_restarted"] = list(outcome.not_restarted)
    return answer


def result_of(outcome: RequestOutcome) -> Result:
    """The answer of a call that has nothing more to say."""
    if isinstance(outcome, Refused):
        return refused(outcome)
    answer: Result = {"success": True}
    if isinstance(outcome, Done) and outcome.change is not None:
        answer["detail"] = outcome.change.value
    return {**answer, **warnings_of(outcome)}


def warnings_of(outcome: RequestOutcome | None) -> Result:
    """The part of an answer that says what its caller may not have intended; empty where there is nothing."""
    if not isinstance(outcome, Done) or not outcome.warning_texts:
        return {}
    texts = [msgspec.to_builtins(text) for text in outcome.warning_texts]
    return {"warnings": list(outcome.warnings), "sentences": {"warnings": texts}}


def _short(of_quota: Resources, of_node: Resources) -> dict[str, Amounts]:
    """What is short of a pool's quota and on the closest node, where anything is."""
    short = {"quota": of_quota.public(), "node": of_node.public()}
    return {where: amounts for where, amounts in short.items() if amounts}


def holders(holding_agents: Iterable[Holder]) -> list[HolderInfo]:
    """Those who hold what is short."""
    return [
        {
            "agent_name": holder.agent_name,
            "pool_name": holder.pool_name,
            "resources": holder.resources.public(),
            "task_ids": list(holder.task_ids),
        }
        for holder in holding_agents
    ]


def counts(turned_away: Mapping[Reason, int]) -> dict[str, int]:
    """Counts by code, as plain strings."""
    return {reason.value: count for reason, count in turned_away.items()}


def candidate(victim: Candidate) -> CandidateInfo:
    """A candidate or victim."""
    row = row_of_task(CandidateInfo, victim.task)
    row |= {
        "agent_name": victim.agent_name,
        "preempt_score": victim.preempt_score,
        "priority_delta": victim.priority_delta,
        "effective_delta": victim.effective_delta,
        "remaining_time": victim.remaining_time,
        "reason": victim.reason.value,
    }
    if victim.state_saved is not None:
        row["state_saved"] = victim.state_saved
    if victim.save_error:
        row["save_error"] = victim.save_error
    return row


def evaluated(evaluation: Evaluation) -> EvaluationResult:
    """The answer of a dry run of the preemption decision."""
    return {
        "success": True,
        "should_preempt": evaluation.should_preempt,
        "candidates": [candidate(c) for c in evaluation.candidates],
        "victims": list(evaluation.victims),
        "cancelled_starts": list(evaluation.cancelled_starts),
        "reason": None if evaluation.reason is None else evaluation.reason.value,
        "turned_away": counts(evaluation.turned_away),
    }


def pool_definition(spec: PoolSpec) -> PoolDefinition:
    """What a pool is defined as, without its placement groups."""
    lending = lending_definition(spec)
    return {
        "name": spec.name,
        "labels": spec.labels,
        "resources": spec.resources.public(),
        "target_agents": spec.target_agents,
        "placement_strategy": spec.placement_strategy,
        "on_preempted": spec.on_preempted,
        "queueing": spec.queueing,
        "max_run_s": spec.max_run_s,
        "default_max_run_s": spec.default_max_run_s,
        "idle_s": spec.idle_s,
        "min_priority": spec.min_priority,
        "max_priority": spec.max_priority,
        "owner_limits": public_owner_limits(spec.owner_limits),
        "owner_order": spec.owner_order,
        "budget": public_budget(spec.budget),
        "owner_budgets": public_owner_budgets(spec.owner_budgets),
        "flavors": public_flavors(spec.flavors),
        "cohort": lending["cohort"],
        "lending_limit": lending["lending_limit"],
        "borrowing_limit": lending["borrowing_limit"],
        "weight": lending["weight"],
    }


def external_job(job: ExternalJob) -> ExternalJobInfo:
    """What a job holds of a node."""
    return {
        "job_id": job.job_id,
        "task_id": job.task_id,
        "namespace": job.namespace,
        "entrypoint": job.entrypoint,
        "resources": job.resources.public(),
    }


def explained(explanation: Explanation) -> ExplainResult:
    """What is known of a task."""
    answer = row_of_task(ExplainResult, explanation.task, explanation.own_class)
    answer |= {
        "success": True,
        "kind": explanation.kind,
        "state": explanation.state,
        "reason": explanation.reason,
        "error": explanation.error,
        "hint": explanation.hint,
        "detail": explanation.detail,
        "sentences": _sentences(
            error=explanation.error_text,
            hint=explanation.hint_text,
            detail=explanation.detail_text,
            no_estimate=explanation.no_estimate_text,
        ),
        "others": [_finding(other) for other in explanation.others],
        "alternatives": [
            {
                "alternative": one.alternative,
                "number": one.number,
                "flavor": one.flavor,
                "reason": one.reason.value,
                "error": one.error,
                "sentences": _sentences(alternative=one.alternative_text, error=one.error_text),
                "short": _short(one.short_quota, one.short_node),
                "victims": list(one.victims),
            }
            for one in explanation.alternatives
        ],
        "alternative": explanation.alternative,
        "flavor": explanation.flavor,
        "agent_name": explanation.agent_name,
        "node_ids": list(explanation.node_ids),
        "links": explanation.links,
        "since": explanation.since,
        "ends_at": explanation.ends_at,
        "end_measured": explanation.end_measured,
        "expected_duration": _duration(explanation.expected_duration),
        "idle_since": explanation.idle_since,
        "run_limit_s": explanation.run_limit_s,
        "limit_at": explanation.limit_at,
        "idle_limit_s": explanation.idle_limit_s,
        "idle_ends_at": explanation.idle_ends_at,
        "gpus_measured": explanation.gpus_measured,
        "saved_at": explanation.saved_at,
        "waits_for": list(explanation.waits_for),
        "position": explanation.position,
        "queue_length": explanation.queue_length,
        "before": list(explanation.before),
        "order": [
            {
                "factor": one.factor,
                "value": one.value,
                "detail": one.detail,
                "sentences": _sentences(detail=one.detail_text),
            }
            for one in explanation.order
        ],
        "weight_raised_by": explanation.weight_raised_by,
        "short": _short(explanation.short_quota, explanation.short_node),
        "holders": holders(explanation.holders),
        "external_usage": [
            {
                "node_id": usage.node_id,
                "resources": usage.resources.public(),
                "jobs": [external_job(job) for job in usage.jobs],
            }
            for usage in explanation.external
        ],
        "considered": _considered(explanation.considered),
        "earliest_start": explanation.earliest_start,
        "start_rests_on": _duration(explanation.start_rests_on),
        "start_waits_for_overdue": explanation.start_waits_for_overdue,
        "start_waits_for_limit": explanation.start_waits_for_limit,
        "no_estimate": explanation.no_estimate,
        "preemptions": explanation.preemptions,
        "failures": explanation.failures,
        "eviction": _eviction(explanation.eviction),
    }
    return answer


def _finding(finding: Finding) -> ReasonInfo:
    return {
        "reason": finding.reason.value,
        "error": finding.error,
        "hint": finding.hint,
        "sentences": _sentences(error=finding.error_text, hint=finding.hint_text),
    }


def _sentences(**texts: Text) -> dict[str, SentenceInfo]:
    """The codes and parameters of those of an answer's texts that are sentences, by their fields."""
    return {
        field: msgspec.to_builtins(text)
        for field, text in texts.items()
        if isinstance(text, Sentence)
    }


def _duration(estimate: DurationEstimate | None) -> DurationInfo | None:
    if estimate is None:
        return None
    return {
        "task_id": estimate.task_id,
        "seconds": estimate.seconds,
        "low_s": estimate.low_s,
        "high_s": estimate.high_s,
        "runs": estimate.runs,
        "owner": estimate.owner,
        "pool_name": estimate.pool_name,
        "pattern": estimate.pattern,
        "gpus": estimate.gpus,
        "cpus": estimate.cpus,
    }


def _considered(considered: Considered | None) -> ConsideredInfo | None:
    if considered is None:
        return None
    return {
        "tasks": considered.tasks,
        "searched": considered.searched,
        "evictable": considered.evictable,
        "victims": list(considered.victims),
        "turned_away": counts(considered.turned_away),
        "sufficient_priority": considered.sufficient_priority,
    }


def _eviction(eviction: EvictionSummary | None) -> EvictionInfo | None:
    if eviction is None:
        return None
    return {
        "at": eviction.at,
        "rule": eviction.rule,
        "score": eviction.score,
        "agent_name": eviction.agent_name,
        "by_task": eviction.by_task,
        "by_agent": eviction.by_agent,
        "by_pool": eviction.by_pool,
        "by_owner": eviction.by_owner,
        "by_client": eviction.by_client,
        "state_saved": eviction.state_saved,
        "saved_at": eviction.saved_at,
        "save_error": eviction.save_error,
        "lost_s": eviction.lost_s,
        "freed_at": eviction.freed_at,
        "used": eviction.used,
        "ran_again_at": eviction.ran_again_at,
        "idle_since": eviction.idle_since,
    }
