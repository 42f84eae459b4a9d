"""Pretraining is preempted by an RLHF stage of the same priority, and later continues bit for bit.

``schedulemesh demo`` runs the same scenario with progress bars. Run this one with
``python examples/training_preemption_demo.py``; it needs NumPy.
"""

from __future__ import annotations

import time
from typing import Any

import ray

from schedulemesh.cli.training import TrainingAgentActor
from schedulemesh.simple import SimpleScheduler

__all__ = ["TrainingAgentActor", "main"]

PRETRAIN, RLHF = "llama-70b-pretrain", "llama-7b-rlhf"
STEPS, INTERRUPTED_AT, RLHF_STEPS = 200, 60, 40


def main() -> None:
    mesh = SimpleScheduler("training-preemption-demo")
    try:
        run_demo(mesh)
    finally:
        mesh.shutdown()


def run_demo(mesh: SimpleScheduler) -> None:
    mesh.ensure_pool("pretrain-pool", resources={"cpu": 1.0})
    mesh.configure_preemption(
        label_preemption_rules={
            "training_stage": {
                "rlhf": ["pretraining", "sft"],
                "dpo": ["pretraining"],
                "sft": ["pretraining"],
            }
        },
        preemption_aggressiveness="medium",
    )

    print(f"1. {PRETRAIN} uses the whole pool")
    pretraining = submit(mesh, PRETRAIN, "pretraining")
    pretraining["agent"]["handle"].train.remote(PRETRAIN, STEPS)
    while (step := reported_step(mesh)) < INTERRUPTED_AT:
        time.sleep(0.05)
    print(f"   it is at step {step} of {STEPS}")

    print(f"2. {RLHF} arrives with the same priority")
    rlhf = submit(mesh, RLHF, "rlhf")
    victim = rlhf["preempted"][0]
    assert (victim["task_id"], victim["reason"]) == (PRETRAIN, "label_based_preemption"), victim
    saved = mesh.get_saved_state(PRETRAIN)["saved_state"]
    checkpoint = saved["state"]
    assert saved["consistent"], saved["source"]
    show("saved", checkpoint)
    done = ray.get(rlhf["agent"]["handle"].train.remote(RLHF, RLHF_STEPS))
    assert done["step"] == RLHF_STEPS, done
    mesh.complete(RLHF)
    print(f"   {RLHF} completed: loss {done['loss']:.4f}")

    print(f"3. {PRETRAIN} is restored")
    answer = mesh.restore_task(saved)
    assert answer["success"], answer
    handle = answer["agent"]["handle"]
    restored = ray.get(handle.status.remote())
    show("restored", restored)
    for key in ("step", "loss", "hash"):
        assert restored[key] == checkpoint[key], (key, restored[key], checkpoint[key])
    assert restored["pid"] != checkpoint["pid"], "the process is the same: nothing was evicted"
    final = ray.get(handle.train.remote(PRETRAIN, STEPS))
    assert final["step"] == STEPS, final
    show("at the end", final)


def submit(mesh: SimpleScheduler, task_id: str, stage: str) -> dict[str, Any]:
    answer = mesh.submit(
        task_id=task_id,
        pool="pretrain-pool",
        resources={"cpu": 1.0},
        priority=5.0,
        labels={"training_stage": stage},
        actor_class=TrainingAgentActor,
        actor_kwargs={"report_interval": 0.1},
    )
    assert answer["success"], answer
    return dict(answer)


def reported_step(mesh: SimpleScheduler) -> int:
    return int(mesh.scheduler.list_tasks()["tasks"][0]["last_metrics"].get("step", 0))


def show(what: str, status: dict[str, Any]) -> None:
    print(
        f"   {what}: step {status['step']}, loss {status['loss']:.4f}, "
        f"parameters {status['hash']}, process {status['pid']}"
    )


if __name__ == "__main__":
    main()
