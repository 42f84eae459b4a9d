"""One step of RLHF over three groups, in which this process handles no tensor: it has references only.

The rollout group (dp=4) generates answers, the reward group (dp=3) scores them, and the actor group (dp=2)
updates its weights, which are split by rows, and sends them to the rollout group, where every rank has all of
them. Every method declares how it is called. The calls pass pending results on, so that rows are sent from
worker to worker; this process receives a few numbers. Run it with ``python examples/rlhf_step_demo.py``; it
needs NumPy.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.core.worker_groups import Moved, ShardHolder, WorkerGroup, reshard
from schedulemesh.dispatch import Dispatch, ParallelLayout, Sharding, dispatch
from schedulemesh.simple import SimpleScheduler

ROLLOUT = ParallelLayout.of(dp=4)
REWARD = ParallelLayout.of(dp=3)
ACTOR = ParallelLayout.of(dp=2)
#: The policy has one weight for each pair of tokens: the next token is the one with the highest weight.
TOKENS, LENGTH, PROMPTS = 16, 5, 10
STEP_SIZE = 0.5


class Rollout(ShardHolder, AgentActor):
    """Generates answers with the whole weights."""

    @dispatch(Dispatch.DP_COMPUTE_PROTO)
    def generate(self, seeds: list[int]) -> dict[str, Any]:
        weights = self.shards("policy")
        tokens = np.array([walk(weights, seed) for seed in seeds])
        return {"tokens": tokens.reshape(-1, LENGTH), "seeds": np.array(seeds)}

    def checksum(self) -> float:
        return float(self.shards("policy").sum())


class Reward(AgentActor):
    """Prefers answers with many different tokens."""

    @dispatch(Dispatch.DP_COMPUTE_PROTO)
    def score(self, batch: dict[str, Any]) -> dict[str, Any]:
        scores = [len(set(row)) / LENGTH for row in batch["tokens"].tolist()]
        return {**batch, "rewards": np.array(scores)}


class Actor(ShardHolder, AgentActor):
    """Has rows of the weights, and the part of the batch that its data-parallel rank gets."""

    @dispatch(Dispatch.ONE_TO_ALL)
    def make_weights(self, seed: int) -> None:
        rows = TOKENS // ACTOR.size
        whole = np.random.default_rng(seed).standard_normal((TOKENS, TOKENS))
        rank = int(self.labels["rank"])
        self.keep_shards(whole[rank * rows : (rank + 1) * rows].copy(), "policy")

    @dispatch(Dispatch.ONE_TO_ALL)
    def update(self, batch: dict[str, Any]) -> dict[str, float]:
        """Raise the weights of transitions in answers that are better than the mean, in its own rows."""
        weights = self.shards("policy").copy()
        first = int(self.labels["rank"]) * len(weights)
        advantages = batch["rewards"] - batch["rewards"].mean()
        for row, advantage in zip(batch["tokens"], advantages, strict=True):
            for here, there in itertools.pairwise(row):
                if first <= here < first + len(weights):
                    weights[here - first, there] += STEP_SIZE * advantage
        self.keep_shards(weights, "policy")
        return {"reward": float(batch["rewards"].mean()), "moved": float(np.abs(weights).sum())}

    def checksum(self) -> float:
        return float(self.shards("policy").sum())


def walk(weights: Any, seed: int) -> list[int]:
    """From token to token by the highest weight, with some noise."""
    noise = np.random.default_rng(seed)
    tokens = [seed % TOKENS]
    while len(tokens) < LENGTH:
        scores = weights[tokens[-1]] + noise.standard_normal(TOKENS)
        tokens.append(int(scores.argmax()))
    return tokens


def main() -> None:
    mesh = SimpleScheduler("rlhf-step-demo")
    try:
        run_demo(mesh)
    finally:
        mesh.shutdown()


def run_demo(mesh: SimpleScheduler) -> None:
    print("1. Three groups in one pool")
    mesh.ensure_pool("rlhf", resources={"cpu": 2.0})
    each = {"pool": "rlhf", "resources": {"cpu": 0.2}, "timeout_s": 120.0}
    rollout = WorkerGroup.submit(mesh, "rollout", Rollout, layout=ROLLOUT, **each)
    reward = WorkerGroup.submit(mesh, "reward", Reward, layout=REWARD, **each)
    actor = WorkerGroup.submit(mesh, "actor", Actor, layout=ACTOR, **each)
    print(f"   rollout: {ROLLOUT}; reward: {REWARD}; actor: {ACTOR}")
    actor.call("make_weights", 7).outputs()
    send_weights(actor, rollout)

    print(
        "2. Prompts -> answers -> rewards -> update; each call gets the pending result of the one before"
    )
    metrics = one_step(rollout, reward, actor)
    print(f"   mean reward {metrics['reward']:.2f}")

    print("3. The new weights, from rows on the actors to replicas on the rollout workers")
    moved = send_weights(actor, rollout)
    print(f"   {moved.bytes_moved} bytes from worker to worker, version {moved.version}")
    expected = actor.call("checksum").collect(reduce="sum")
    for actual in rollout.call("checksum").outputs():
        assert abs(actual - expected) < 1e-9, (actual, expected)
    print("   the rollout workers hold what the actors have learned")


def one_step(rollout: WorkerGroup, reward: WorkerGroup, actor: WorkerGroup) -> dict[str, float]:
    """A step up to the update of the actors' weights; returns its metrics."""
    answers = rollout.call("generate", list(range(PROMPTS)))
    scored = reward.call("score", answers)
    updated: dict[str, float] = actor.call("update", scored).collect(
        reduce={"reward": "mean", "moved": "sum"}
    )
    return updated


def send_weights(actor: WorkerGroup, rollout: WorkerGroup) -> Moved:
    """The actors' rows become the whole weights of every rollout worker."""
    return reshard(
        actor,
        rollout,
        "policy",
        source=Sharding.of(ACTOR, dp=0),
        destination=Sharding(layout=ROLLOUT),
        shapes=(TOKENS, TOKENS),
    )


if __name__ == "__main__":
    main()
