"""Saved states as files: a preserver writes one, a restorer checks it, and the task continues from it.

Run it with ``python examples/preemption_file_state.py [folder]``. Preserver, restorer and agent may run on
any node, so on a cluster of several nodes the folder must be one that all of them see.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray

from schedulemesh.core.actors.control.preemption_controller import TaskState
from schedulemesh.core.agents import MetricsReportingAgent
from schedulemesh.simple import SimpleScheduler

POOL = "file-pool"


class Counter(MetricsReportingAgent):
    """Counts and reports its progress; ``report_metrics`` is also a safe point for an interruption."""

    count = 0

    def run(self, task_id: str, until: int) -> int:
        while self.count < until and not self.is_cancelled(task_id):
            self.count += 1
            self.report_metrics(count=self.count, progress=self.count / until)
            time.sleep(0.01)
        return self.count

    def restore_state(self, saved: dict[str, Any]) -> None:
        data = json.loads(Path(saved["checkpoint_path"]).read_text(encoding="utf-8"))
        self.count = data["metrics"]["count"]


def preserve_to_file(folder: str, task: TaskState) -> dict[str, Any]:
    """Write the state of the task to a file; the return value becomes its saved state."""
    path = Path(folder) / f"{task.task_id}.json"
    path.write_text(
        json.dumps(
            {
                "task_id": task.task_id,
                "pool": task.pool_name,
                "payload": task.payload,
                "metrics": task.last_metrics,
            }
        ),
        encoding="utf-8",
    )
    return {"task_id": task.task_id, "checkpoint_path": str(path)}


def restore_from_file(saved_state: dict[str, Any]) -> None:
    """Runs before the task is started again; an exception stops the restore."""
    path = Path(saved_state["checkpoint_path"])
    data = json.loads(path.read_text(encoding="utf-8"))
    path.with_suffix(".restored").write_text(json.dumps(data["payload"]), encoding="utf-8")


def main(folder: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        mesh = SimpleScheduler("file-state-demo")
        try:
            run_demo(mesh, folder or temporary)
        finally:
            mesh.shutdown()


def run_demo(mesh: SimpleScheduler, folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    mesh.ensure_pool(POOL, resources={"cpu": 0.5})
    mesh.scheduler.register_state_handlers(
        pool_name=POOL,
        preserver=functools.partial(preserve_to_file, folder),
        restorer=restore_from_file,
    )
    print(f"1. A task counts; its states go to {folder}")
    answer = submit(mesh, "counting", priority=1.0, payload={"input": "part-7"})
    answer["agent"]["handle"].run.remote("counting", 100_000)
    while not metrics(mesh).get("count", 0) > 10:
        time.sleep(0.05)

    print("2. A more urgent task evicts it")
    submit(mesh, "urgent", priority=8.0)
    saved = mesh.get_saved_state("counting")["saved_state"]
    data = json.loads(Path(saved["checkpoint_path"]).read_text(encoding="utf-8"))
    assert data["payload"] == {"input": "part-7"}, data
    assert data["metrics"]["count"] > 10, data
    print(f"   {Path(saved['checkpoint_path']).name} says count {data['metrics']['count']}")

    print("3. The urgent task is completed; the count is restored")
    mesh.complete("urgent")
    again = mesh.restore_task(saved)
    assert again["success"], again
    assert again["state_restored"], again
    assert Path(saved["checkpoint_path"]).with_suffix(".restored").exists(), "no restorer ran"
    until = data["metrics"]["count"] + 5
    count = ray.get(again["agent"]["handle"].run.remote("counting", until))
    assert count == until, (count, until)
    print(f"   the restorer ran, and the new agent continued to {count}")


def submit(mesh: SimpleScheduler, task_id: str, priority: float, payload: Any = None) -> Any:
    answer = mesh.submit(
        task_id=task_id,
        pool=POOL,
        actor_class=Counter,
        actor_kwargs={"report_interval": 0.05},
        resources={"cpu": 0.5},
        priority=priority,
        payload=payload,
    )
    assert answer["success"], answer
    return answer


def metrics(mesh: SimpleScheduler) -> dict[str, Any]:
    """The last metrics that the task of the only agent reported."""
    return dict(mesh.scheduler.list_tasks()["tasks"][0]["last_metrics"])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
