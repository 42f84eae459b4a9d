"""Outcomes and explanations as plain data, in the form in which Python callers and the HTTP API give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from schedulemesh.api.nodes import ExternalJobInfo
from schedulemesh.config.pools import public_lending
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import task_row
from schedulemesh.engine.messages.explanation import (
    Considered,
    DurationEstimate,
    EvictionSummary,
    Explanation,
    ExternalJob,
)
from schedulemesh.engine.messages.outcomes import (
    Candidate,
    Done,
    Evaluation,
    Holder,
    Refused,
    RequestOutcome,
)

Plain = dict[str, object]


def refused(outcome: Refused) -> Plain:
    """A refusal: an ordinary answer with ``success`` False."""
    answer: Plain = {"success": False, "error": outcome.error, "reason": outcome.reason.value}
    short = {"quota": outcome.short_quota.public(), "node": outcome.short_node.public()}
    if outcome.short_quota or outcome.short_node:
        answer["short"] = {where: amounts for where, amounts in short.items() if amounts}
    if outcome.holders:
        answer["holders"] = holders(outcome.holders)
    if outcome.turned_away:
        answer["turned_away"] = counts(outcome.turned_away)
    if outcome.sufficient_priority is not None:
        answer["sufficient_priority"] = outcome.sufficient_priority
    if outcome.earliest_start is not None:
        answer["earliest_start"] = outcome.earliest_start
    if outcome.hint:
        answer["hint"] = outcome.hint
    if outcome.detail:
        answer["detail"] = outcome.detail
    if outcome.restarted or outcome.requeued or outcome.not_restarted:
        answer["restarted"] = list(outcome.restarted)
        answer["requeued"] = list(outcome.requeued)
        answer["not_restarted"] = list(outcome.not_restarted)
    return answer


def done(outcome: RequestOutcome) -> Plain:
    """The answer of a call that has nothing more to say."""
    if isinstance(outcome, Refused):
        return refused(outcome)
    answer: Plain = {"success": True}
    if isinstance(outcome, Done) and outcome.change is not None:
        answer["detail"] = outcome.change.value
    if isinstance(outcome, Done) and outcome.warnings:
        answer["warnings"] = list(outcome.warnings)
    return answer


def holders(holding_agents: Iterable[Holder]) -> list[Plain]:
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


def candidate(victim: Candidate) -> Plain:
    """A candidate or victim."""
    shown = msgspec.structs.asdict(victim)
    shown = {**task_row(shown.pop("task")), **shown}
    shown.pop("lost_work")
    shown["reason"] = victim.reason.value
    if shown["state_saved"] is None:
        del shown["state_saved"]
    if not shown["save_error"]:
        del shown["save_error"]
    return shown


def evaluated(evaluation: Evaluation) -> Plain:
    """The answer of a dry run of the preemption decision."""
    return {
        "success": True,
        "should_preempt": evaluation.should_preempt,
        "candidates": [candidate(c) for c in evaluation.candidates],
        "victims": list(evaluation.victims),
        "reason": None if evaluation.reason is None else evaluation.reason.value,
        "turned_away": counts(evaluation.turned_away),
    }


def pool_definition(spec: PoolSpec) -> Plain:
    """What a pool is defined as, without its placement groups."""
    return {
        "name": spec.name,
        "labels": spec.labels,
        "resources": spec.resources.public(),
        "target_agents": spec.target_agents,
        "placement_strategy": spec.placement_strategy,
        "on_preempted": spec.on_preempted,
        "queueing": spec.queueing,
        **public_lending(spec),
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


def explained(explanation: Explanation) -> Plain:
    """What is known of a task."""
    short = {"quota": explanation.short_quota.public(), "node": explanation.short_node.public()}
    return {
        "success": True,
        **task_row(explanation.task),
        "kind": explanation.kind,
        "state": explanation.state,
        "reason": explanation.reason,
        "error": explanation.error,
        "hint": explanation.hint,
        "detail": explanation.detail,
        "others": [
            {"reason": other.reason.value, "error": other.error, "hint": other.hint}
            for other in explanation.others
        ],
        "agent_name": explanation.agent_name,
        "node_ids": list(explanation.node_ids),
        "since": explanation.since,
        "ends_at": explanation.ends_at,
        "end_measured": explanation.end_measured,
        "expected_duration": _duration(explanation.expected_duration),
        "idle_since": explanation.idle_since,
        "saved_at": explanation.saved_at,
        "waits_for": list(explanation.waits_for),
        "position": explanation.position,
        "queue_length": explanation.queue_length,
        "before": list(explanation.before),
        "weight_raised_by": explanation.weight_raised_by,
        "short": {where: amounts for where, amounts in short.items() if amounts},
        "holders": holders(explanation.holders),
        "external_usage": [
            {
                "node_id": usage.node_id,
                "resources": usage.resources.public(),
                "jobs": [external_job(job) for job in usage.jobs],
            }
            for usage in explanation.external
        ],
        "considered": None
        if explanation.considered is None
        else _considered(explanation.considered),
        "earliest_start": explanation.earliest_start,
        "start_rests_on": _duration(explanation.start_rests_on),
        "start_waits_for_overdue": explanation.start_waits_for_overdue,
        "no_estimate": explanation.no_estimate,
        "preemptions": explanation.preemptions,
        "failures": explanation.failures,
        "eviction": None if explanation.eviction is None else _eviction(explanation.eviction),
    }


def _duration(estimate: DurationEstimate | None) -> Plain | None:
    return None if estimate is None else estimate.public()


def _considered(considered: Considered) -> Plain:
    return {**_fields(considered), "turned_away": counts(considered.turned_away)}


def _eviction(eviction: EvictionSummary) -> Plain:
    return _fields(eviction)


def _fields(struct: msgspec.Struct) -> Plain:
    """The fields of a struct, with tuples as lists."""
    fields = msgspec.structs.asdict(struct)
    return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
