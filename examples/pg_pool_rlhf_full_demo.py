"""Three roles of an RLHF job share one pool of placement groups: train > reward > rollout.

Scene 1: two rollouts start in dynamic groups. Scene 2: a reward model takes a reserved group. Scene 3: the
trainer lacks quota, so the submission for a placement group is refused, and an ordinary submission evicts the
running task with the highest score. Scene 4: one more rollout evicts an older one and takes over its group.
The pool is scaled down if the cluster is small. Run it with ``python examples/pg_pool_rlhf_full_demo.py``.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Mapping
from typing import Any

import ray

from schedulemesh.config.policy import PreemptionAggressiveness
from schedulemesh.simple import SimpleScheduler, SimpleTaskSpec

POOL = "rlhf-pg-pool"
#: What each role requests on a cluster that has 7 CPUs and 6 GiB free.
SIZES = {
    "train": {"cpu": 2.0, "memory": 2048.0},
    "reward": {"cpu": 2.0, "memory": 2048.0},
    "rollout": {"cpu": 1.5, "memory": 1024.0},
}
#: CPUs and MB of two reserved groups and two dynamic ones.
REQUIRED = {"cpu": 7.0, "memory": 6144.0}
QUOTA = {"cpu": 6.0, "memory": 8192.0}
#: Used if no Ray is found; its dashboard shows the actors.
LOCAL_RAY = {"num_cpus": 8, "object_store_memory": 80_000_000, "include_dashboard": True}
#: Priority and estimated seconds. The reward model has the longest remaining time, so that it scores highest.
ROLES = {"train": (9.0, 25.0), "reward": (7.0, 90.0), "rollout": (3.0, 12.0)}
#: Seconds within which Ray forwards what workers print: an evicted one's line then comes before the answer.
FORWARDED_S = 1.0


class RLHFWorker:
    """A worker of any role; ``run`` simulates its work."""

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        self.name = name
        self.role = labels["role"]
        self.cancelled = False

    def run(self, steps: int) -> str:
        """Work for some steps, or until it is cancelled."""
        done = 0
        while done < steps and not self.cancelled:
            time.sleep(0.01)  # a step of work
            done += 1
        return f"{self.role} 完成 {done} 步"

    def cancel(self, task_id: str) -> dict[str, Any]:
        """Stop soon; called while ``run`` runs."""
        print(f"[Worker:{self.name}] 任务 {task_id} 被抢占取消")
        self.cancelled = True
        return {"success": True, "task_id": task_id}


def scale() -> float:
    """The fraction of the required sizes that the cluster can hold, at most 1."""
    total = ray.cluster_resources()
    has = {"cpu": total.get("CPU", 0.0), "memory": total.get("memory", 0.0) / 2**20}
    factor = min(1.0, *(has[kind] / REQUIRED[kind] for kind in REQUIRED))
    if factor < 1.0:
        print(f"集群只有 {has['cpu']:g} CPU / {has['memory']:.0f} MB，规格按 {factor:.2f} 缩小")
    return factor


def sized(resources: Mapping[str, float], factor: float) -> dict[str, float]:
    """The resources on this cluster, rounded down to hundredths."""
    return {kind: int(amount * factor * 100) / 100 for kind, amount in resources.items()}


def main() -> None:
    print("=== PG 池 RLHF 调度示例：train > reward > rollout ===", flush=True)
    mesh = SimpleScheduler("pg-pool-rlhf-demo", local_ray=LOCAL_RAY)
    try:
        factor = scale()
        prepare(mesh, factor)
        start_rollouts(mesh, factor)
        start_reward(mesh, factor)
        start_train(mesh, factor)
        grow_rollouts(mesh, factor)
        show_all(mesh)
        clean_up(mesh)
    finally:
        mesh.shutdown()


def prepare(mesh: SimpleScheduler, factor: float) -> None:
    """Set the policy, and create a pool with two reserved and at most two dynamic groups."""
    mesh.configure_preemption(
        enable_label_preemption=True,
        label_preemption_rules={"role": {"train": ["reward", "rollout"], "reward": ["rollout"]}},
        preemption_aggressiveness=PreemptionAggressiveness.MEDIUM,
        cancel_timeout=0.5,
        enable_cross_pool_preemption=False,
    )
    made = mesh.ensure_pool(
        name=POOL,
        resources=sized(QUOTA, factor),
        pg_pool_config={
            "enable": True,
            "high_priority_pg_specs": [
                sized(SIZES["train"], factor),
                sized(SIZES["reward"], factor),
            ],
            "enable_dynamic_pgs": True,
            "max_dynamic_pgs": 2,
            "enable_pg_reuse": True,
        },
    )
    assert made["success"], made
    show(mesh, "资源池就绪")


def spec(role: str, task_id: str, factor: float, **more: Any) -> dict[str, Any]:
    """A task of this role, as ``submit`` takes it."""
    priority, seconds = ROLES[role]
    return {
        "task_id": task_id,
        "pool": POOL,
        "actor_class": RLHFWorker,
        "resources": sized(SIZES[role], factor),
        "priority": priority,
        "labels": {"role": role},
        "estimated_duration": seconds,
        "agent_name": task_id,
        **more,
    }


def start_rollouts(mesh: SimpleScheduler, factor: float) -> None:
    print("\n=== 场景 1: Rollout 角色启动（动态 PG） ===")
    for number in range(2):
        task = spec("rollout", f"rollout-{number:02}", factor)
        answer = mesh.submit_with_pg_preemption(**task)
        report(answer, f"提交 {task['task_id']}")
        assert answer["placement_group"]["path"] == "created", answer
        answer["agent"]["handle"].run.remote(2000)
    show(mesh, "Rollout 启动后")


def start_reward(mesh: SimpleScheduler, factor: float) -> None:
    print("\n=== 场景 2: Reward 角色到达（高优运行） ===")
    answer = mesh.submit_with_pg_preemption(**spec("reward", "reward-00", factor))
    report(answer, "提交 reward-00")
    assert answer["placement_group"]["path"] == "reserved", answer
    assert not answer["preempted"], answer
    answer["agent"]["handle"].run.remote(2000)
    show(mesh, "Reward 启动后")


def start_train(mesh: SimpleScheduler, factor: float) -> None:
    print("\n=== 场景 3: Train 回退抢占 ===")
    task = spec("train", "train-00", factor, ray_options={"name": "train-worker-00"})
    refused = mesh.submit_with_pg_preemption(**task)
    report(refused, "提交 train-00 (PG 优先)")
    assert refused["reason"] == "insufficient_quota", refused
    print("  ⚠️ PG 路径失败，改用传统抢占 API 触发自动抢占。")
    show_scores(mesh, task)
    answer = mesh.submit_spec(SimpleTaskSpec(**task))
    time.sleep(FORWARDED_S)
    report(answer, "传统抢占提交 train-00")
    assert [victim["task_id"] for victim in answer["preempted"]] == ["reward-00"], answer
    print("  ▶️ 触发 train-00 worker.run()（传统抢占成功）")
    worker = ray.get_actor("train-worker-00")
    print(f"    {ray.get(worker.run.remote(20))}")
    assert total_preemptions(mesh) == 1
    show(mesh, "Train 启动后")


def grow_rollouts(mesh: SimpleScheduler, factor: float) -> None:
    print("\n=== 场景 4: Rollout 扩容触发自动抢占 ===")
    task = spec("rollout", "rollout-extra-00", factor, priority=4.5)
    show_scores(mesh, task)
    answer = mesh.submit_spec(SimpleTaskSpec(**task))
    time.sleep(FORWARDED_S)
    report(answer, "提交 rollout-extra-00 (传统抢占)")
    assert [victim["task_id"] for victim in answer["preempted"]] == ["rollout-01"], answer
    assert answer["placement_group"]["path"] == "preempted", answer
    print("  ▶️ 触发 rollout-extra-00 worker.run()")
    print(f"    {ray.get(answer['agent']['handle'].run.remote(20))}")
    assert total_preemptions(mesh) == 2
    show(mesh, "扩容后")


def clean_up(mesh: SimpleScheduler) -> None:
    print("\n=== 清理 ===")
    for task_id in ("rollout-00", "rollout-extra-00"):
        print(f"  完成 {task_id}: success={mesh.complete(task_id)['success']}")
    deleted = mesh.delete_agent("train-00", destroy_pg=True)
    print(f"  删除 train-00 及其 PG: success={deleted['success']}")
    show(mesh, "清理后")


def report(answer: Mapping[str, Any], what: str) -> None:
    """Print whether a submission succeeded, and the path by which it got its group."""
    print(f"  {what}: success={answer['success']}")
    if not answer["success"]:
        message = f"{answer['reason']}: {answer['error']}"
        print(textwrap.indent(textwrap.fill(message, 74), "    "))
        return
    group = answer["placement_group"]
    print(f"    PG {group['id']} ({group['path']})")
    for victim in answer["preempted"]:
        print(
            f"    抢占 {victim['task_id']}: {victim['reason']}, score={victim['preempt_score']:.2f}"
        )


def show_scores(mesh: SimpleScheduler, task: Mapping[str, Any]) -> None:
    """Print the tasks that this task may evict, best first: score = Δ + κ·R."""
    found = mesh.scheduler.evaluate_preemption(
        incoming_task_priority=task["priority"],
        incoming_task_pool=POOL,
        incoming_task_labels=task["labels"],
    )
    for one in found["candidates"]:
        print(
            f"    候选 {one['task_id']:<12} Δ={one['effective_delta']:<4g} "
            f"剩余={one['remaining_time']:5.1f}s score={one['preempt_score']:6.2f}"
        )


def show(mesh: SimpleScheduler, when: str) -> None:
    """Print the numbers of groups and preemptions so far."""
    groups = mesh.pg_pool_stats(POOL)
    kinds = ("reserved", "dynamic", "free", "in_use")
    totals = ("created", "reused", "destroyed")
    print(f"[{when}] PG 池: " + " ".join(f"{name}={groups[name]}" for name in kinds))
    print("    至今: " + " ".join(f"{name}={groups[name]}" for name in totals))
    print(f"[{when}] 抢占: total_preemptions={total_preemptions(mesh)}")


def show_all(mesh: SimpleScheduler) -> None:
    """Print both statistics in full."""
    for name, found in (("stats", mesh.stats()), ("pg_pool_stats", mesh.pg_pool_stats())):
        print(f"\n=== scheduler.{name}() ===")
        print(json.dumps(found, indent=1, ensure_ascii=False))


def total_preemptions(mesh: SimpleScheduler) -> int:
    """How many tasks were preempted so far."""
    return int(mesh.stats()["total_preemptions"])


if __name__ == "__main__":
    main()
