"""Every call that the preemption guide prints, as it prints it; each section on a fresh scheduler."""

from __future__ import annotations

import json
import logging
import time

import pytest
import ray

from schedulemesh.config.policy import PreemptionAggressiveness, PreemptionPolicy
from schedulemesh.core import RayScheduler
from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.runtime.agents.eviction import TaskState
from tests.integration.polling import until


def test_the_printed_policy_is_the_default(scheduler):
    printed = PreemptionPolicy(
        same_pool_priority_threshold=1.0,
        cross_pool_priority_threshold=5.0,
        remaining_time_weight=0.1,
        min_preempt_score=0.5,
        enable_cross_pool_preemption=True,
        protected_pools=[],
        label_preemption_rules={},
        label_priority_threshold=0.5,
        enable_label_preemption=True,
    )
    assert printed == PreemptionPolicy()
    assert scheduler.get_preemption_policy()["policy"] == printed.public()


def test_changing_the_policy(namespace):
    scheduler = RayScheduler("my-scheduler", detached=True, namespace=namespace)
    try:
        policy = scheduler.update_preemption_policy(
            cross_pool_priority_threshold=10.0,
            protected_pools=["critical-pool"],
            enable_cross_pool_preemption=True,
        )
        assert policy["cross_pool_priority_threshold"] == 10.0
        assert policy["protected_pools"] == ["critical-pool"]
        assert policy["same_pool_priority_threshold"] == 1.0
        other = RayScheduler.attach("my-scheduler", namespace=namespace)
        assert other.get_preemption_policy()["policy"] == policy["policy"]
        changes = other.get_preemption_policy()["changes"]
        assert list(changes[-1]["changes"]) == [
            "cross_pool_priority_threshold",
            "protected_pools",
            "enable_cross_pool_preemption",
        ]
        assert changes[-1]["timestamp"] > 0
        assert changes[-1]["client"]
    finally:
        scheduler.shutdown()


THRESHOLDS = {"high": (0.1, 0.5), "medium": (0.5, 1.0), "low": (1.0, 3.0)}


def thresholds(policy):
    return policy["label_priority_threshold"], policy["same_pool_priority_threshold"]


def test_aggressiveness_by_enum_alias_and_environment(scheduler, monkeypatch, caplog):
    update = scheduler.update_preemption_policy
    for level in PreemptionAggressiveness:
        policy = update(preemption_aggressiveness=level)
        assert thresholds(policy) == THRESHOLDS[level.value]
    for alias in ("high", "urgent", "critical", "prod", "Urgent", "PROD"):
        with caplog.at_level(logging.INFO):
            assert thresholds(update(preemption_aggressiveness=alias)) == THRESHOLDS["high"]
        assert f"{alias!r} means HIGH" in caplog.text
    for alias in ("medium", "default", "normal"):
        assert thresholds(update(preemption_aggressiveness=alias)) == THRESHOLDS["medium"]
    for alias in ("low", "background", "batch"):
        assert thresholds(update(preemption_aggressiveness=alias)) == THRESHOLDS["low"]

    monkeypatch.setenv("SCHEDULEMESH_PREEMPTION_LEVEL", "high")
    from_env = "env:SCHEDULEMESH_PREEMPTION_LEVEL"
    assert thresholds(update(preemption_aggressiveness=from_env)) == THRESHOLDS["high"]
    explicit = update(preemption_aggressiveness="low", same_pool_priority_threshold=2.0)
    assert thresholds(explicit) == (1.0, 2.0)
    for bad in (None, "nonsense"):
        if bad is None:
            monkeypatch.delenv("SCHEDULEMESH_PREEMPTION_LEVEL")
        else:
            monkeypatch.setenv("SCHEDULEMESH_PREEMPTION_LEVEL", bad)
        caplog.clear()
        assert thresholds(update(preemption_aggressiveness=from_env)) == (1.0, 2.0)
        assert "SCHEDULEMESH_PREEMPTION_LEVEL" in caplog.text
    with pytest.raises(ValueError, match="urgent, critical, prod, medium"):
        update(preemption_aggressiveness="furious")


def test_aggressiveness_through_the_simple_scheduler(make_simple):
    simple = make_simple()
    policy = simple.configure_preemption(preemption_aggressiveness="urgent")
    assert thresholds(policy) == THRESHOLDS["high"]


def test_one_stop_submission(scheduler):
    from examples.training_preemption_demo import TrainingAgentActor

    scheduler.create_pool("pretrain-pool", resources={"cpu": 2.0, "memory": 4096.0})
    result = scheduler.submit_task_with_preemption(
        task_id="critical-train-job",
        pool_name="pretrain-pool",
        resources={"cpu": 2.0, "memory": 4096.0},
        priority=8.0,
        labels={"training_stage": "rlhf"},
        actor_class=TrainingAgentActor,
        actor_kwargs={
            "supervisor": scheduler.supervisor_handle(),
            "report_interval": 1.0,
        },
    )
    assert result["success"], result
    assert result["agent"]["resources"] == {"cpu": 2.0, "memory": 4096.0}
    assert result["agent"]["labels"] == {"pool": "pretrain-pool", "training_stage": "rlhf"}


def test_section_1_the_basic_flow(scheduler):
    scheduler.create_pool(
        name="compute-pool",
        labels={"tier": "standard"},
        resources={"cpu": 4.0, "memory": 8192.0, "gpu": 0.0},
        target_agents=2,
    )
    agent = scheduler.create_agent(
        name="agent-1",
        pool="compute-pool",
        actor_class=AgentActor,
    )
    assert agent["agent"]["resources"] == {"cpu": 2.0, "memory": 4096.0}
    scheduler.register_running_task(
        task_id="low-priority-job",
        agent_name="agent-1",
        pool_name="compute-pool",
        priority=1.0,
        labels={"pool": "compute-pool"},
        estimated_duration=60.0,
        payload={"data": "some work"},
    )
    eval_result = scheduler.evaluate_preemption(
        incoming_task_priority=5.0,
        incoming_task_pool="compute-pool",
    )
    assert eval_result["should_preempt"]
    candidate = eval_result["candidates"][0]
    assert candidate["task_id"] == "low-priority-job"
    # 4 of priority and 0.1 for every second that is left of the 60
    assert 4.0 < candidate["preempt_score"] <= 10.0
    assert candidate["priority_delta"] == candidate["effective_delta"] == 4.0

    preempt_result = scheduler.execute_preemption(
        task_id=candidate["task_id"],
        agent_name=candidate["agent_name"],
    )
    assert preempt_result["success"]
    assert preempt_result["cancel_success"] is True
    assert preempt_result["reason"] == "same_pool_preemption"
    assert preempt_result["saved_state"]["task_id"] == "low-priority-job"
    assert preempt_result["saved_state"]["payload"] == {"data": "some work"}
    # the agent stays, for the task of high priority
    handle = agent["agent"]["handle"]
    done = ray.get(handle.process.remote(payload="urgent", task_id="high"))
    assert (done["status"], done["payload"]) == ("completed", "urgent")

    stats = scheduler.get_preemption_stats()
    assert stats["total_preemptions"] == stats["same_pool_preemptions"] == 1
    assert stats["cross_pool_preemptions"] == stats["running_tasks"] == 0
    (record,) = stats["recent_preemptions"]
    assert record["timestamp"] > 0
    shown = (record["task_id"], record["pool_name"], record["priority"])
    assert shown == ("low-priority-job", "compute-pool", 1.0)


def test_section_2_within_a_pool(scheduler):
    scheduler.register_running_task(
        task_id="batch-job",
        agent_name="agent-1",
        pool_name="compute-pool",
        priority=1.0,
    )
    found = scheduler.evaluate_preemption(
        incoming_task_priority=3.0,
        incoming_task_pool="compute-pool",
    )
    assert found["should_preempt"] is True
    assert found["candidates"][0]["reason"] == "same_pool_preemption"


def test_section_3_across_pools(scheduler):
    scheduler.create_pool(
        name="premium-pool",
        labels={"tier": "premium"},
        resources={"cpu": 2.0, "memory": 4096.0, "gpu": 1.0},
        target_agents=1,
    )
    scheduler.register_running_task(
        task_id="standard-job",
        agent_name="agent-1",
        pool_name="compute-pool",
        priority=2.0,
    )
    found = scheduler.evaluate_preemption(
        incoming_task_priority=10.0,
        incoming_task_pool="premium-pool",
    )
    assert found["should_preempt"]
    assert found["candidates"][0]["reason"] == "cross_pool_preemption"


def test_section_4_protected_pools(scheduler):
    scheduler.update_preemption_policy(
        protected_pools=["production-pool", "critical-services"],
    )
    scheduler.register_running_task(
        task_id="prod-service",
        agent_name="prod-agent",
        pool_name="production-pool",
        priority=5.0,
    )
    found = scheduler.evaluate_preemption(
        incoming_task_priority=100.0,
        incoming_task_pool="other-pool",
    )
    assert found["should_preempt"] is False
    assert found["candidates"] == []
    assert found["turned_away"] == {found["reason"]: 1}


TIER_RULES = {
    "tier": {
        "premium": ["standard", "batch"],
        "standard": ["batch"],
    }
}
ALL_RULES = {
    **TIER_RULES,
    "user_tier": {
        "admin": ["vip", "regular"],
        "vip": ["regular"],
    },
    "priority_class": {
        "critical": ["high", "normal", "low"],
        "high": ["normal", "low"],
        "normal": ["low"],
    },
}


def test_section_5_1_and_5_2_label_rules(scheduler):
    for rules in (TIER_RULES, ALL_RULES):
        policy = scheduler.update_preemption_policy(
            label_preemption_rules=rules,
            label_priority_threshold=0.5,
            enable_label_preemption=True,
        )
        assert policy["label_preemption_rules"] == rules


def test_section_5_3_graded_services(scheduler):
    scheduler.update_preemption_policy(label_preemption_rules=ALL_RULES)
    scheduler.register_running_task(
        task_id="batch-job",
        agent_name="worker-1",
        pool_name="compute-pool",
        priority=5.0,
        labels={"tier": "batch"},
    )
    eval_result = scheduler.evaluate_preemption(
        incoming_task_priority=5.0,
        incoming_task_pool="compute-pool",
        incoming_task_labels={"tier": "premium"},
    )
    assert eval_result["should_preempt"] is True
    assert eval_result["candidates"][0]["reason"] == "label_based_preemption"


def test_section_5_3_labels_across_pools(scheduler):
    scheduler.update_preemption_policy(
        label_preemption_rules={
            "tier": {"premium": ["standard"]},
        },
        label_priority_threshold=0.5,
        cross_pool_priority_threshold=10.0,
        enable_label_preemption=True,
    )
    scheduler.register_running_task(
        task_id="standard-in-a",
        agent_name="agent-a",
        pool_name="pool-a",
        priority=5.0,
        labels={"tier": "standard"},
    )
    eval_result = scheduler.evaluate_preemption(
        incoming_task_priority=7.0,
        incoming_task_pool="pool-b",
        incoming_task_labels={"tier": "premium"},
    )
    assert eval_result["should_preempt"] is True
    assert eval_result["candidates"][0]["reason"] == "label_based_preemption"


def test_section_5_3_tenants(scheduler):
    scheduler.update_preemption_policy(
        label_preemption_rules={
            "user_tier": {
                "admin": ["vip", "regular"],
                "vip": ["regular"],
            }
        },
        label_priority_threshold=1.0,
        enable_label_preemption=True,
    )
    scheduler.register_running_task(
        task_id="user-task",
        agent_name="shared-worker",
        pool_name="shared-pool",
        priority=10.0,
        labels={"user_tier": "regular"},
    )
    eval_result = scheduler.evaluate_preemption(
        incoming_task_priority=6.0,
        incoming_task_pool="shared-pool",
        incoming_task_labels={"user_tier": "admin"},
    )
    assert eval_result["should_preempt"] is True
    assert eval_result["candidates"][0]["priority_delta"] == -4.0
    # 5.5: without labels the pool's own rules are left, and a lower priority wins nothing
    scheduler.update_preemption_policy(
        enable_label_preemption=False,
    )
    eval_result = scheduler.evaluate_preemption(
        incoming_task_priority=6.0,
        incoming_task_pool="shared-pool",
        incoming_task_labels={"user_tier": "admin"},
    )
    assert eval_result["should_preempt"] is False


def test_section_6_training_stages(make_scheduler):
    from examples.training_preemption_demo import TrainingAgentActor

    scheduler = make_scheduler("training-preemption")
    scheduler.create_pool("pretrain-pool", resources={"cpu": 2.0, "memory": 4096.0})
    scheduler.update_preemption_policy(
        enable_label_preemption=True,
        label_preemption_rules={
            "training_stage": {
                "rlhf": ["pretraining", "sft"],
                "dpo": ["pretraining"],
                "sft": ["pretraining"],
            }
        },
        preemption_aggressiveness="medium",
    )
    scheduler.submit_task_with_preemption(
        task_id="llama-70b-pretrain",
        pool_name="pretrain-pool",
        priority=5.0,
        resources={"cpu": 2.0, "memory": 4096.0},
        labels={"training_stage": "pretraining"},
        actor_class=TrainingAgentActor,
        actor_kwargs={"supervisor": scheduler.supervisor_handle()},
    )
    rlhf = scheduler.submit_task_with_preemption(
        task_id="llama-7b-rlhf",
        pool_name="pretrain-pool",
        priority=5.0,
        resources={"cpu": 1.0, "memory": 2048.0},
        labels={"training_stage": "rlhf"},
        actor_class=TrainingAgentActor,
        actor_kwargs={"supervisor": scheduler.supervisor_handle()},
    )
    assert rlhf["success"], rlhf
    (victim,) = rlhf["preempted"]
    assert victim["task_id"] == "llama-70b-pretrain"
    assert victim["reason"] == "label_based_preemption"
    assert victim["priority_delta"] == 0.0
    saved = scheduler.get_saved_state("llama-70b-pretrain")["saved_state"]
    assert saved["state"]["step"] == 0
    assert [t["task_id"] for t in scheduler.list_tasks()["tasks"]] == ["llama-7b-rlhf"]


def custom_state_preserver(task_state: TaskState) -> dict:
    return {
        "task_id": task_state.task_id,
        "checkpoint_path": f"/checkpoints/{task_state.task_id}.ckpt",
        "custom_data": "my_serialized_data",
    }


def custom_state_restorer(saved_state: dict) -> None:
    checkpoint_path = saved_state["checkpoint_path"]
    print(f"从 {checkpoint_path} 恢复任务...")


def test_section_7_state_handlers(scheduler):
    scheduler.ensure_pool("custom-pool")
    scheduler.register_state_handlers(
        pool_name="custom-pool",
        preserver=custom_state_preserver,
        restorer=custom_state_restorer,
    )
    scheduler.register_running_task(
        task_id="job", agent_name="elsewhere", pool_name="custom-pool", priority=1.0
    )
    preempt_result = scheduler.execute_preemption("job", "elsewhere")
    assert preempt_result["success"]
    saved_state = preempt_result["saved_state"]
    assert saved_state == {
        "task_id": "job",
        "checkpoint_path": "/checkpoints/job.ckpt",
        "custom_data": "my_serialized_data",
    }
    assert scheduler.restore_task(saved_state)["success"]


class Unbuildable:
    def __init__(self, name, labels):
        raise ValueError("no dataset")


def test_what_user_code_raises_is_a_sentence_with_the_traceback_as_its_detail(scheduler):
    def restorer(saved_state: dict) -> None:
        raise KeyError("checkpoint_path")

    scheduler.ensure_pool("custom-pool", resources={"cpu": 1.0})
    scheduler.register_state_handlers("custom-pool", restorer=restorer)
    failed = scheduler.restore_task({"task_id": "job", "pool_name": "custom-pool"})
    assert failed["error"] == (
        "the restorer of pool 'custom-pool' failed for task 'job': KeyError: 'checkpoint_path'"
    )
    assert 'raise KeyError("checkpoint_path")' in failed["detail"]
    refused = scheduler.create_agent("a", "custom-pool", Unbuildable, resources={"cpu": 1.0})
    assert refused["error"] == "agent 'a': ValueError: no dataset"
    assert 'raise ValueError("no dataset")' in refused["detail"]


def test_handlers_that_are_registered_before_their_pool_is_created_save_its_tasks(
    scheduler, caplog
):
    answer = scheduler.register_state_handlers("custom-pool", custom_state_preserver)
    assert answer["success"]
    assert "no pool 'custom-pool' as yet" in answer["warnings"][0]
    assert "no pool 'custom-pool' as yet" in caplog.text
    scheduler.ensure_pool("custom-pool")
    scheduler.register_running_task("job", "elsewhere", "custom-pool", priority=1.0)
    saved_state = scheduler.execute_preemption("job", "elsewhere")["saved_state"]
    assert saved_state["checkpoint_path"] == "/checkpoints/job.ckpt"


def test_a_refused_registration_is_a_warning_in_the_log(scheduler, caplog):
    scheduler.register_running_task("job", "one", "pool", priority=1.0)
    scheduler.register_running_task("job", "another", "pool", priority=1.0)
    assert "register_running_task was refused: task 'job' already exists" in caplog.text


def test_section_6_again_states_in_files(scheduler, tmp_path):
    checkpoint_dir = tmp_path / "checkpoints"
    checkpoint_dir.mkdir(parents=True, exist_ok=True)
    replayed = tmp_path / "replayed.json"

    def file_state_preserver(task_state: TaskState) -> dict:
        data = {
            "task_id": task_state.task_id,
            "pool": task_state.pool_name,
            "payload": task_state.payload,
        }
        path = checkpoint_dir / f"{task_state.task_id}.json"
        path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
        return {"task_id": task_state.task_id, "checkpoint_path": str(path)}

    def file_state_restorer(saved_state: dict) -> None:
        from pathlib import Path

        path = Path(saved_state["checkpoint_path"])
        payload = json.loads(path.read_text(encoding="utf-8"))
        replayed.write_text(json.dumps(payload), encoding="utf-8")

    scheduler.ensure_pool("file-pool")
    scheduler.register_state_handlers(
        pool_name="file-pool",
        preserver=file_state_preserver,
        restorer=file_state_restorer,
    )
    scheduler.register_running_task(
        task_id="job-1",
        agent_name="worker",
        pool_name="file-pool",
        payload={"文": 1},
    )
    saved_state = scheduler.execute_preemption("job-1", "worker")["saved_state"]
    path = checkpoint_dir / "job-1.json"
    assert saved_state == {"task_id": "job-1", "checkpoint_path": str(path)}
    written = {"task_id": "job-1", "pool": "file-pool", "payload": {"文": 1}}
    assert json.loads(path.read_text(encoding="utf-8")) == written
    assert scheduler.restore_task(saved_state)["success"]
    assert json.loads(replayed.read_text(encoding="utf-8")) == written


def test_section_8_statistics_of_a_fresh_scheduler(scheduler):
    stats = scheduler.get_preemption_stats()
    assert stats["total_preemptions"] == 0
    assert stats["same_pool_preemptions"] == 0
    assert stats["cross_pool_preemptions"] == 0
    assert stats["label_preemptions"] == 0
    assert stats["running_tasks"] == 0
    assert stats["recent_preemptions"] == []


def test_best_practice(scheduler):
    scheduler.update_preemption_policy(
        same_pool_priority_threshold=1.0,
        cross_pool_priority_threshold=8.0,
    )
    scheduler.update_preemption_policy(
        protected_pools=[
            "production-api",
            "real-time-inference",
            "critical-services",
        ],
    )
    began = time.time()
    scheduler.register_running_task(
        task_id="training-job",
        agent_name="gpu-agent",
        pool_name="ml-pool",
        priority=2.0,
        estimated_duration=3600.0,
    )
    found = scheduler.evaluate_preemption(5.0, "ml-pool")
    (candidate,) = found["candidates"]
    assert 3600.0 - (time.time() - began) <= candidate["remaining_time"] <= 3600.0
    assert candidate["preempt_score"] == pytest.approx(3.0 + 0.1 * candidate["remaining_time"])


def test_failures_keep_the_state_and_name_the_cause(scheduler):
    scheduler.register_running_task(
        task_id="lost-job", agent_name="unknown", pool_name="nowhere", payload=[1, 2]
    )
    preempt_result = scheduler.execute_preemption("lost-job", "unknown")
    assert preempt_result["success"]
    assert not preempt_result["cancel_success"]
    assert "unknown" in preempt_result["error"]
    saved_state = preempt_result["saved_state"]
    assert saved_state["payload"] == [1, 2]
    assert scheduler.get_saved_state("lost-job")["saved_state"] == saved_state

    result = scheduler.restore_task(saved_state)
    assert not result["success"]
    assert "lost-job" in result["error"]
    again = scheduler.execute_preemption("lost-job", "unknown")
    assert (again["success"], again["reason"]) == (False, "task_not_found")
    assert again["saved_state"] is None


def test_a_restorer_that_raises_is_a_refusal(scheduler):
    def restorer(saved_state: dict) -> None:
        raise LookupError(f"no checkpoint of {saved_state['task_id']}")

    scheduler.ensure_pool("custom-pool")
    scheduler.register_state_handlers(pool_name="custom-pool", restorer=restorer)
    scheduler.register_running_task(task_id="job", agent_name="a", pool_name="custom-pool")
    saved_state = scheduler.execute_preemption("job", "a")["saved_state"]
    result = scheduler.restore_task(saved_state)
    assert not result["success"]
    assert "no checkpoint of job" in result["error"]


def test_section_7_again_cancelling_a_task(scheduler):
    class MyAgent(AgentActor):
        @ray.method(num_returns=1)
        def cancel(self, task_id: str) -> dict:
            return super().cancel(task_id)

    scheduler.create_pool("pool", resources={"cpu": 1.0})
    agent = scheduler.create_agent("agent", "pool", MyAgent)["agent"]["handle"]
    scheduler.register_running_task(task_id="job-1", agent_name="agent", pool_name="pool")
    working = agent.process.remote(payload={}, task_id="job-1", simulated_duration=30.0)
    until(lambda: not ray.wait([working], timeout=0.1)[0], "the work does not begin")
    result = scheduler.execute_preemption("job-1", "agent")
    assert result["cancel_success"] is True
    done = ray.get(working)
    assert done["status"] == "cancelled"
    assert done["duration"] < 30.0
    # and by the handle, as callers do
    assert ray.get(agent.cancel.remote("job-2")) == {
        "success": True,
        "task_id": "job-2",
        "agent": "agent",
    }
