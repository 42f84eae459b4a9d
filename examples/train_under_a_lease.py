"""A TorchTrainer under a quota: an urgent task evicts it, and it resumes from its checkpoint by itself.

Needs `pip install 'schedulemesh-core[train]' torch`.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, Result, RunConfig, ScalingConfig

from schedulemesh import SimpleScheduler
from schedulemesh.integrations.train import LeasedWorkers

STEPS = 40
#: Steps between two checkpoints.
EVERY = 10


def train_loop(config: dict[str, float]) -> None:
    """Two workers train together; a checkpoint is made at intervals and when the run is being evicted."""
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    begin = 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"))
        begin = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    rank, saved = ray.train.get_context().get_world_rank(), False
    for step in range(begin, STEPS):
        samples = torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * step + rank))
        loss = torch.nn.functional.mse_loss(model(samples), samples.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(config["seconds_per_step"])
        evicted = not saved and any_worker(ray.train.get_preemption_info() is not None)
        saved = saved or evicted
        if evicted or (step + 1) % EVERY == 0:
            state = {
                "step": step + 1,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            report({"loss": loss.item(), "begin": begin, "step": step + 1}, state, rank)


def any_worker(flag: bool) -> bool:
    """Whether any worker has the flag: each may see a notice at another step, and all save at the same."""
    flags = torch.tensor(float(flag))
    torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX)
    return bool(flags)


def report(metrics: dict[str, float], state: dict[str, Any], rank: int) -> None:
    """Report to Ray Train, with a checkpoint from the first worker."""
    with tempfile.TemporaryDirectory() as folder:
        if rank == 0:
            torch.save(state, Path(folder, "state.pt"))
        checkpoint = Checkpoint.from_directory(folder) if rank == 0 else None
        ray.train.report(metrics, checkpoint=checkpoint)


def fit(name: str, folder: str, callbacks: list[Any], seconds_per_step: float) -> Result:
    return ray.train.torch.TorchTrainer(
        train_loop,
        train_loop_config={"seconds_per_step": seconds_per_step},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name=name, storage_path=folder, callbacks=callbacks),
    ).fit()


def urgent_work() -> str:
    """Needs the whole pool for a moment."""
    return "done"


def main() -> tuple[Result, Result]:
    """Returns the result of the run that was evicted, and that of an undisturbed one."""
    folder, results = tempfile.mkdtemp(prefix="train-"), []
    with SimpleScheduler("training") as mesh:
        mesh.ensure_pool("rlhf", resources={"cpu": 2})
        lease = LeasedWorkers("ppo-7", "rlhf", scheduler="training", priority=1.0, grace_s=20.0)
        run = threading.Thread(target=lambda: results.append(fit("leased", folder, [lease], 0.3)))
        run.start()
        while run.is_alive() and not list(Path(folder).glob("leased/checkpoint_*")):
            time.sleep(0.1)
        print("tasks:", [task["task_id"] for task in mesh.list_tasks()["tasks"]])
        asked = time.monotonic()
        answer = mesh.submit(
            "urgent", "rlhf", urgent_work, resources={"cpu": 2}, priority=50.0, wait=60
        )
        print("evicted for it:", [task["task_id"] for task in answer["preempted"]])
        mesh.wait("urgent", timeout=60)
        print("urgent work:", mesh.result("urgent")["result"])
        print(f"it ended {time.monotonic() - asked:.1f} s after it was submitted")
        run.join()
        [evicted] = results
        print("the run resumed at step", evicted.metrics["begin"])
        undisturbed = fit("plain", folder, [], 0.0)
        print("final loss:", evicted.metrics["loss"])
        print("final loss of an undisturbed run:", undisturbed.metrics["loss"])
    return evicted, undisturbed


if __name__ == "__main__":
    main()
