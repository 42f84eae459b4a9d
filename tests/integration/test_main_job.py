"""The main job: a real training is preempted, saved, restored, and goes on bit for bit the same."""

from __future__ import annotations

import pytest
import ray

from schedulemesh.cli.training import TrainingAgentActor
from tests.integration.polling import until


@pytest.mark.smoke
def test_the_training_resumes_where_it_was(scheduler):
    scheduler.create_pool("training", labels={"team": "llm"}, resources={"cpu": 2.0})
    scheduler.update_preemption_policy(
        label_preemption_rules={"training_stage": {"rlhf": ["pretraining", "sft"]}},
    )

    def submit(task_id, stage):
        answer = scheduler.submit_task_with_preemption(
            task_id=task_id,
            pool_name="training",
            resources={"cpu": 2.0},
            priority=5.0,
            labels={"training_stage": stage},
            actor_class=TrainingAgentActor,
            actor_kwargs={"supervisor": scheduler.supervisor_handle(), "report_interval": 0.0},
        )
        assert answer["success"], answer
        return answer

    def metrics(task_id):
        tasks = {t["task_id"]: t for t in scheduler.list_tasks()["tasks"]}
        return tasks[task_id]["last_metrics"]

    first = submit("pretrain", "pretraining")["agent"]["handle"]
    first.train.remote("pretrain", 1_000_000)
    until(lambda: metrics("pretrain").get("step", 0) >= 5, "the training does not report")

    rlhf = submit("rlhf", "rlhf")
    (victim,) = rlhf["preempted"]
    assert victim["task_id"] == "pretrain"
    assert victim["reason"] == "label_based_preemption"
    assert victim["priority_delta"] == 0.0
    saved = scheduler.get_saved_state("pretrain")["saved_state"]
    assert saved["consistent"] is True
    checkpoint = saved["state"]
    assert checkpoint["step"] >= 5
    assert saved["last_metrics"]["step"] <= checkpoint["step"]

    done = ray.get(rlhf["agent"]["handle"].train.remote("rlhf", 3))
    assert done["step"] == 3
    scheduler.complete_task("rlhf", end_agent=True)

    answer = scheduler.restore_task(saved)
    assert answer["success"], answer
    assert answer["resubmitted"]
    assert answer["state_restored"]
    third = answer["agent"]["handle"]
    restored = ray.get(third.status.remote())
    for key in ("step", "loss", "hash"):
        assert restored[key] == checkpoint[key], key
    assert restored["pid"] != checkpoint["pid"]

    # the same as a training that was never interrupted
    until_step = checkpoint["step"] + 3
    final = ray.get(third.train.remote("pretrain", until_step))
    straight = TrainingAgentActor("straight", {"training_stage": "pretraining"})
    undisturbed = straight.train("straight", until_step)
    for key in ("step", "loss", "hash"):
        assert final[key] == undisturbed[key], key
