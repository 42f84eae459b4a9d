"""A step of RLHF: prompts to the rollout group, answers to the trainers, weights back, all resharded.

Rollout runs as dp=2, tp=2, training as tp=2, pp=2, on eight agents of one pool. The weights are
sent from worker to worker; this process only plans which worker sends what to which. Every result is
checked. Run it with ``python examples/dispatch_demo.py``; it needs NumPy, and uses torch tensors if torch is
installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.core.worker_groups import ShardHolder, WorkerGroup, reshard
from schedulemesh.dispatch import ParallelLayout, Sharding, Stage, shard
from schedulemesh.simple import SimpleScheduler

try:
    import torch
except ImportError:
    torch = None

ROLLOUT = ParallelLayout.of(dp=2, tp=2)
TRAIN = ParallelLayout.of(tp=2, pp=2)
ROWS, COLUMNS = 256, 512
PROMPTS = [f"prompt {number}" for number in range(10)]


class Worker(ShardHolder, AgentActor):
    """A worker of either group: rollout workers generate answers, trainers learn from them."""

    def generate(self, prompts: list[str]) -> list[str]:
        return [f"{prompt}: answered" for prompt in prompts]

    def losses(self, batch: dict[str, Any]) -> list[float] | None:
        if batch["answers"] is None:
            return None
        return [float(len(answer)) for answer in batch["answers"]]


def main() -> None:
    mesh = SimpleScheduler("dispatch-demo")
    try:
        run_demo(mesh)
    finally:
        mesh.shutdown()


def run_demo(mesh: SimpleScheduler) -> None:
    print("1. Two groups of four agents in one pool")
    mesh.ensure_pool("rlhf", resources={"cpu": 2.0})
    each = {"pool": "rlhf", "resources": {"cpu": 0.25}, "timeout_s": 120.0}
    rollout = WorkerGroup.submit(mesh, "rollout", Worker, layout=ROLLOUT, **each)
    train = WorkerGroup.submit(mesh, "train", Worker, layout=TRAIN, **each)
    print(f"   rollout: {ROLLOUT}; train: {TRAIN}")

    print("2. Ten prompts over dp=2; the tp pair of each gets the same part")
    pending = rollout.dispatch("generate", PROMPTS)
    counts = [len(part) for part in pending.outputs()]
    answers = pending.collect()
    print(f"   prompts per rank: {counts}; collected in order: {answers[-1]!r}")
    assert counts == [5, 5, 5, 5], counts
    assert answers == [f"{prompt}: answered" for prompt in PROMPTS], answers

    print("3. Prompts to the first pipeline stage, answers to the last")
    spec = {
        "prompts": Sharding.of(TRAIN, pp=Stage(0)),
        "answers": Sharding.of(TRAIN, pp=Stage(-1)),
    }
    batch = {"prompts": PROMPTS, "answers": answers}
    losses = train.dispatch("losses", batch, spec).collect(like="answers")
    print(f"   losses come from the last stage: {losses[:3]} ...")
    assert losses == [float(len(answer)) for answer in answers], losses

    print("4. The weights, from the trainers' layout to that of the rollout")
    weights = make_weights()
    source = {"first": on_stage(0), "second": on_stage(1)}
    destination = Sharding.of(ROLLOUT, tp=1)
    train.dispatch("keep_shards", weights, source, arguments={"key": "policy"}).outputs()
    moved = reshard(
        train, rollout, "policy", source=source, destination=destination, shapes=(ROWS, COLUMNS)
    )
    size = moved.bytes_moved / 2**20
    print(f"   {kind(weights['first'])}, rows of a stage -> columns over tp")
    print(f"   {size:g} MiB were sent from worker to worker, none of it through this process")

    print("5. Every rollout worker holds what sharding the whole tensor would give it")
    held = rollout.call("shards", "policy").outputs()
    parts = shard(weights, destination).parts
    for rank, (actual, expected) in enumerate(zip(held, parts, strict=True)):
        for name in weights:
            assert actual[name].dtype == weights[name].dtype, (rank, name)
            assert bool((actual[name] == expected[name]).all()), (rank, name)
    print(f"   {len(held)} ranks x {len(weights)} tensors checked, all equal")


def on_stage(stage: int) -> Sharding:
    return Sharding.of(TRAIN, tp=0, pp=Stage(stage))


def make_weights() -> dict[str, Any]:
    values = np.random.default_rng(7).standard_normal((2, ROWS, COLUMNS), np.float32)
    if torch is not None:
        return {
            name: torch.from_numpy(each).to(torch.bfloat16)
            for name, each in zip(("first", "second"), values, strict=True)
        }
    return {"first": values[0], "second": values[1]}


def kind(tensor: Any) -> str:
    return f"{type(tensor).__module__}.{type(tensor).__name__} of {tensor.dtype}"


if __name__ == "__main__":
    main()
