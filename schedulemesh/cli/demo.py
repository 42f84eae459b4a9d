"""``schedulemesh demo``: a training is evicted, returns by itself, and ends as if nothing had happened."""

from __future__ import annotations

import sys
import time
from typing import Any

import ray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from schedulemesh.cli.language import phrase
from schedulemesh.cli.texts import text
from schedulemesh.cli.training import TrainingAgentActor, uninterrupted
from schedulemesh.core.client.scheduler import RayScheduler

PRETRAIN, RLHF = "llama-pretrain", "llama-rlhf"
#: Both jobs have the same priority: only their labels differ.
PRIORITY = 5.0
#: The share of its steps after which the pretraining is interrupted.
_INTERRUPTED_AT = 0.4


def run(steps: int = 400) -> int:
    """Run it; 0 where the training returned in another process with the saved state, and ended as one that
    was not interrupted.
    """
    console = Console()
    console.print(phrase("demo_starts"), style="dim")
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=80_000_000,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        scheduler = RayScheduler("demo")
        saved, final = _story(console, scheduler, steps)
        scheduler.shutdown()
    finally:
        ray.shutdown()
    return _verdict(console, saved, final, steps)


def _story(
    console: Console, scheduler: RayScheduler, steps: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state that was saved of the pretraining, and what it returned at its end."""
    scheduler.create_pool("training", labels={"team": "llm"}, resources={"cpu": 2.0})
    scheduler.update_preemption_policy(
        label_preemption_rules={"training_stage": {"rlhf": ["pretraining", "sft"]}},
    )
    console.rule(phrase("demo_takes_all"))
    _submit(scheduler, PRETRAIN, "pretraining", steps)
    _watch(console, scheduler, PRETRAIN, int(steps * _INTERRUPTED_AT), steps)

    console.rule(phrase("demo_arrival"))
    _submit(scheduler, RLHF, "rlhf", steps // 4, console)
    saved = scheduler.get_saved_state(PRETRAIN)["saved_state"]
    checkpoint = saved["state"]
    console.print(
        phrase(
            "demo_checkpoint",
            task=PRETRAIN,
            step=checkpoint["step"],
            loss=checkpoint["loss"],
            consistent=text(saved["consistent"]),
        )
    )
    waits = scheduler.wait([PRETRAIN], timeout=0)["tasks"][0]
    console.print(
        phrase("demo_waits", task=PRETRAIN, state=waits["state"], position=waits["position"])
    )
    scheduler.wait([RLHF])
    loss = scheduler.result(RLHF)["result"]["loss"]
    console.print(phrase("demo_ran", task=RLHF, loss=loss))

    console.rule(phrase("demo_returns"))
    scheduler.wait([PRETRAIN], until="running")
    _watch(console, scheduler, PRETRAIN, steps, steps, begin=checkpoint["step"])
    scheduler.wait([PRETRAIN])
    return checkpoint, scheduler.result(PRETRAIN)["result"]


def _submit(
    scheduler: RayScheduler,
    task_id: str,
    stage: str,
    steps: int,
    console: Console | None = None,
) -> None:
    """Submit a training that runs by itself, and returns by itself where it is evicted."""
    began = time.monotonic()
    answer = scheduler.submit_task_with_preemption(
        task_id=task_id,
        pool_name="training",
        resources={"cpu": 2.0},
        priority=PRIORITY,
        labels={"training_stage": stage},
        actor_class=TrainingAgentActor,
        actor_kwargs={"supervisor": scheduler.supervisor_handle(), "report_interval": 0.1},
        run="train",
        run_args=[task_id, steps],
        on_preempted="requeue",
    )
    if not answer["success"]:
        raise RuntimeError(answer["error"])
    if console is not None:
        for victim in answer["preempted"]:
            console.print(
                phrase(
                    "demo_evicted",
                    victim=victim["task_id"],
                    reason=victim["reason"],
                    difference=victim["priority_delta"],
                    score=victim["preempt_score"],
                    task=task_id,
                    seconds=time.monotonic() - began,
                )
            )


def _watch(
    console: Console,
    scheduler: RayScheduler,
    task_id: str,
    until: int,
    steps: int,
    begin: int = 0,
) -> None:
    """Show a task's progress as it reports it, until a step is reached or it has ended."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn(
            phrase("demo_step")
            + " {task.completed:>4.0f}/{task.total:.0f}  loss {task.fields[loss]:.4f}"
        ),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(task_id, total=steps, completed=begin, loss=float("nan"))
        while True:
            listed = scheduler.list_tasks()["tasks"]
            metrics = next((t["last_metrics"] for t in listed if t["task_id"] == task_id), None)
            if metrics is None:
                # It has ended, maybe after steps that it did not report.
                metrics, until = scheduler.result(task_id)["result"], 0
            if metrics:
                progress.update(bar, completed=metrics["step"], loss=metrics["loss"])
            if metrics.get("step", 0) >= until:
                return
            time.sleep(0.05)


def _verdict(console: Console, saved: dict[str, Any], final: dict[str, Any], steps: int) -> int:
    """Show what was saved, restored and reached; the exit status."""
    restored = final["restored"] or {"step": 0, "loss": float("nan"), "hash": "", "pid": 0}
    table = Table(title=phrase("demo_table", task=PRETRAIN))
    headings = ("", phrase("demo_step"), "loss", phrase("demo_hash"), phrase("demo_process"))
    for heading in headings:
        table.add_column(heading, justify="left" if not heading else "right")
    rows = (("demo_saved", saved), ("demo_restored", restored), ("demo_ended", final))
    for what, status in rows:
        table.add_row(
            phrase(what),
            str(status["step"]),
            f"{status['loss']:.4f}",
            status["hash"],
            str(status["pid"]),
        )
    console.print(table)
    wrong = _wrong(saved, restored, final, steps)
    for sentence in wrong:
        print(phrase("demo_failed", what=sentence), file=sys.stderr)
    if not wrong:
        console.print(
            phrase("demo_succeeded"),
            style="bold green",
        )
    return 1 if wrong else 0


def _wrong(
    saved: dict[str, Any], restored: dict[str, Any], final: dict[str, Any], steps: int
) -> list[str]:
    """What is not as promised, in sentences."""
    wrong = [
        f"the restored {key} is {restored[key]!r}, the saved one was {saved[key]!r}"
        for key in ("step", "loss", "hash")
        if restored[key] != saved[key]
    ]
    if restored["pid"] == saved["pid"]:
        wrong.append(f"the process is the same ({saved['pid']}): nothing was evicted")
    if final["step"] != steps:
        wrong.append(f"the training ended at step {final['step']} instead of {steps}")
    if final["hash"] != (expected := uninterrupted("pretraining", steps)):
        wrong.append(f"it ended with {final['hash']}, an uninterrupted one with {expected}")
    return wrong
