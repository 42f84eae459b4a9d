"""Outcomes as the documented dicts."""

from __future__ import annotations

import msgspec
import pytest
from ray import cloudpickle

from schedulemesh.client import results, saved_results
from schedulemesh.core.client.scheduler import standing_scheduler
from schedulemesh.domain.reasons import Change, PreemptionReason, Reason
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import (
    Accepted,
    Candidate,
    Done,
    Evaluation,
    Evicted,
    Holder,
    Pending,
    Refused,
)
from schedulemesh.protocol import public
from schedulemesh.protocol.agents import pack
from schedulemesh.protocol.answers import EvictedState, Response
from schedulemesh.protocol.wording import translated

CPU = parse_resources({"cpu": 1})
VICTIM = Candidate(
    task=TaskSpec(task_id="v", pool_name="p", priority=1.0, labels={"tier": "gold"}),
    agent_name="on-v",
    preempt_score=5.5,
    priority_delta=4.0,
    effective_delta=4.0,
    remaining_time=15.0,
    reason=PreemptionReason.SAME_POOL,
    lost_work=3.0,
)
SHOWN = {
    "task_id": "v",
    "agent_name": "on-v",
    "pool_name": "p",
    "priority": 1.0,
    "priority_class": "normal",
    "labels": {"tier": "gold"},
    "estimated_duration": None,
    "owner": "",
    "parent": "",
    "on_preempted": "",
    "max_preemptions": None,
    "max_run_s": None,
    "idle_s": None,
    "after": [],
    "array": "",
    "array_id": "",
    "array_index": None,
    "topology": "",
    "preempt_score": 5.5,
    "priority_delta": 4.0,
    "effective_delta": 4.0,
    "remaining_time": 15.0,
    "reason": "same_pool_preemption",
}
ACCEPTED = Accepted(
    agent_name="p-agent-abc123",
    pool_name="p",
    resources=CPU,
    labels={"pool": "p", "tier": "gold"},
    task_id="t",
    preempted=(VICTIM,),
    node_id="n",
)


def test_a_success():
    handle = object()
    assert results.submitted(Response(outcome=ACCEPTED), [handle], dry_run=False) == {
        "success": True,
        "agent": {
            "name": "p-agent-abc123",
            "handle": handle,
            "resources": {"cpu": 1.0},
            "labels": {"pool": "p", "tier": "gold"},
            "node_id": "n",
        },
        "task_id": "t",
        "preempted": [SHOWN],
    }


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ({"restartable": False}, "restartable", False),
        ({"state_restored": False}, "state_restored", False),
        ({"state_restored": True}, "state_restored", True),
    ],
)
def test_a_success_with_additional_fields(change, key, value):
    accepted = Accepted(agent_name="a", pool_name="p", resources=CPU, **change)
    assert results.submitted(Response(outcome=accepted), [], dry_run=False)[key] is value
    assert key not in results.submitted(Response(outcome=ACCEPTED), [], dry_run=False)


def test_a_dry_run_is_marked_as_such():
    assert results.submitted(Response(outcome=ACCEPTED), [], dry_run=True)["dry_run"] is True


def test_a_refusal():
    refused = Refused(
        reason=Reason.PREEMPTION_FAILED,
        error_text="Insufficient resources and no available preemption candidates",
        short_quota=CPU,
        holders=(Holder(agent_name="a", pool_name="p", resources=CPU, task_ids=("x", "y")),),
        turned_away={Reason.BELOW_SAME_POOL_THRESHOLD: 2},
        restarted=("v",),
        requeued=("w",),
    )
    assert results.submitted(Response(outcome=refused), [], dry_run=False) == {
        "success": False,
        "error": "Insufficient resources and no available preemption candidates",
        "reason": "preemption_failed",
        "short": {"quota": {"cpu": 1.0}},
        "holders": [
            {
                "agent_name": "a",
                "pool_name": "p",
                "resources": {"cpu": 1.0},
                "task_ids": ["x", "y"],
            }
        ],
        "turned_away": {"below_same_pool_threshold": 2},
        "restarted": ["v"],
        "requeued": ["w"],
        "not_restarted": [],
    }
    bare = Refused(reason=Reason.POOL_NOT_FOUND, error_text="no")
    assert public.refused(bare) == {"success": False, "error": "no", "reason": "pool_not_found"}


def test_an_evaluation():
    found = Evaluation(
        should_preempt=True, candidates=(VICTIM,), victims=("v",), cancelled_starts=("w",)
    )
    assert public.evaluated(found) == {
        "success": True,
        "should_preempt": True,
        "candidates": [SHOWN],
        "victims": ["v"],
        "cancelled_starts": ["w"],
        "reason": None,
        "turned_away": {},
    }


def test_ends():
    assert public.result_of(Done()) == {"success": True}
    assert public.result_of(Done(change=Change.UNCHANGED)) == {
        "success": True,
        "detail": "unchanged",
    }
    assert results.deleted(Done()) == {"success": True}
    assert results.deleted(Done(change=Change.ALREADY_GONE)) == {
        "success": True,
        "already_gone": True,
    }


def test_a_preemption():
    saved = pack(
        SavedState(
            task=TaskSpec(task_id="v", pool_name="p", priority=1.0),
            agent_name="a",
            source="preserver",
            saved_at=0.0,
            state=cloudpickle.dumps({"path": "/x"}),
        )
    )
    evicted = Evicted(
        task_id="v",
        agent_name="a",
        reason=PreemptionReason.MANUAL,
        cancel_success=True,
        state_saved=True,
    )
    assert saved_results.preempted(evicted, saved, cloudpickle.loads) == {
        "success": True,
        "task_id": "v",
        "agent_name": "a",
        "saved_state": {"task_id": "v", "path": "/x"},
        "cancel_success": True,
        "state_saved": True,
        "reason": "manual",
    }
    late = Evicted(
        task_id="v", agent_name="a", reason=PreemptionReason.MANUAL, save_error="too large"
    )
    answer = saved_results.preempted(late, saved, cloudpickle.loads)
    assert (answer["state_saved"], answer["save_error"]) == (False, "too large")
    gone = Evicted(
        task_id="v", agent_name="a", reason=PreemptionReason.MANUAL, error="cannot be reached"
    )
    assert saved_results.preempted(gone, None, cloudpickle.loads)["error"] == "cannot be reached"
    runs_on = Evicted(
        task_id="v",
        agent_name="a",
        reason=PreemptionReason.MANUAL,
        runs_on=True,
        error="no cancel()",
    )
    answer = saved_results.preempted(runs_on, saved, cloudpickle.loads)
    assert (answer["success"], answer["reason"]) == (False, "not_cancelled")
    assert answer["saved_state"] == {"task_id": "v", "path": "/x"}
    assert "runs on: no cancel()" in answer["error"]
    both = msgspec.structs.replace(runs_on, save_error="too large")
    assert "state was not saved" in saved_results.preempted(both, saved, cloudpickle.loads)["error"]
    refused = saved_results.preempted(
        Refused(reason=Reason.TASK_NOT_FOUND, error_text="no task"), None, cloudpickle.loads
    )
    assert refused == {
        "success": False,
        "error": "no task",
        "reason": "task_not_found",
        "saved_state": None,
        "cancel_success": False,
    }


def test_a_success_may_have_warnings():
    warnings = (say("agent_kept", agent="a", count=1, tasks=["t"]), "of an old journal")
    done = public.result_of(Done(change=Change.AGENT_KEPT, warning_texts=warnings))
    encoded = {"code": "agent_kept", "parameters": {"agent": "a", "count": 1, "tasks": ("t",)}}
    assert done == {
        "success": True,
        "detail": "agent_kept",
        "warnings": [
            "agent 'a' was not ended: 1 of its tasks go on (t)",
            "of an old journal",
        ],
        "sentences": {"warnings": [encoded, "of an old journal"]},
    }
    assert translated(done, "zh")["warnings"] == [
        "Agent 'a' 没有结束：它还有 1 个任务在运行（t）",
        "of an old journal",
    ]


def test_a_manually_evicted_task_has_the_result_of_saving():
    task = TaskSpec(task_id="t", pool_name="p", priority=1.0)
    known = SavedState(task=task, agent_name="a", source="payload", saved_at=0.0)
    evicted = EvictedState(task_id="t", reason=PreemptionReason.MANUAL, saved=pack(known))
    answer = saved_results.evicted_task(evicted, cloudpickle.loads)
    assert (answer["state_saved"], answer["saved_state"]["source"]) == (False, "payload")
    assert "save_error" not in answer
    failed = msgspec.structs.replace(evicted, save_error="too large")
    answer = saved_results.evicted_task(failed, cloudpickle.loads)
    assert (answer["state_saved"], answer["save_error"]) == (False, "too large")
    saved = msgspec.structs.replace(evicted, state_saved=True)
    assert saved_results.evicted_task(saved, cloudpickle.loads)["state_saved"]


def test_an_outcome_that_cannot_be_is_an_error():
    with pytest.raises(TypeError, match="Pending"):
        results.submitted(Response(outcome=Pending(agent_name="a")), [], dry_run=False)
    with pytest.raises(TypeError, match="Done"):
        saved_results.preempted(Done(), None, cloudpickle.loads)


#: A task that was evicted by request.
EVICTED = EvictedState(
    task_id="t",
    reason=PreemptionReason.MANUAL,
    saved=pack(SavedState(task=TaskSpec(task_id="t"), agent_name="a", source="x", saved_at=0.0)),
)


def test_codes_are_plain_strings_for_users():
    refusal = Refused(
        reason=Reason.PREEMPTION_FAILED, error_text="no", turned_away={Reason.PROTECTED_POOL: 1}
    )
    evaluation = Evaluation(should_preempt=False, reason=Reason.NO_RUNNING_TASKS)
    given = [
        public.refused(refusal)["reason"],
        *public.refused(refusal)["turned_away"],
        saved_results.preempted(refusal, None, cloudpickle.loads)["reason"],
        results.not_evaluated(refusal)["reason"],
        public.evaluated(evaluation)["reason"],
        public.candidate(VICTIM)["reason"],
        saved_results.evicted_task(EVICTED, cloudpickle.loads)["reason"],
        public.result_of(Done(change=Change.UNCHANGED))["detail"],
        standing_scheduler("head")["reason"],
    ]
    assert {type(code) for code in given} == {str}
