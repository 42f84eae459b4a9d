"""Trains a small transformer whose weights and optimizer state are split over the ranks of a group.

As under FSDP, each rank holds rows of every weight and of Adam's two moments; for a step the ranks exchange
their rows, compute the gradients of different microbatches, and each updates its own rows. Gradients are
summed in the order of the microbatches, whatever rank computed them: sums of floating-point numbers depend on
their order, and this way all numbers of ranks give the same bits.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from schedulemesh.checkpoints import (
    TensorForm,
    load_shards,
    open_safetensors,
    write_safetensors,
)
from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.dispatch import ParallelLayout, Shard, Sharding, gather, shard

WORDS, LENGTH, WIDTH = 17, 8, 16
MICROBATCHES, ROWS = 4, 2
KINDS = ("weight", "mean", "square")
RATE, BETAS, EPSILON = 0.01, (0.9, 0.99), 1e-8


class Transformer(nn.Module):
    """Predicts each next word."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def loss(self, words):
        before, after = words[:, :-1], words[:, 1:]
        mask = nn.Transformer.generate_square_subsequent_mask(before.shape[1])
        scores = self.head(self.block(self.embed(before), src_mask=mask))
        return nn.functional.cross_entropy(scores.flatten(0, 1), after.flatten())


def microbatch(step, number):
    generator = torch.Generator().manual_seed(1000 * step + number)
    return torch.randint(WORDS, (ROWS, LENGTH + 1), generator=generator)


class Trainer(AgentActor):
    """One rank. ``folder`` is shared; ``checkpoint`` is where to continue."""

    def __init__(self, name, labels, *, folder, attempt, checkpoint=None, rank=0, world_size=1):
        super().__init__(name, labels)
        torch.set_num_threads(1)
        self.rank, self.world = rank, world_size
        self.folder, self.attempt = Path(folder), attempt
        store = dist.FileStore(str(self.folder / f"store-{attempt}"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        torch.manual_seed(5)
        self.model = Transformer()
        self.rows = Sharding.of(ParallelLayout.of(dp=world_size), dp=Shard(0, "chunk"))
        whole = dict(self.model.named_parameters())
        self.shapes = {name: tuple(each.shape) for name, each in whole.items()}
        self.tensors = {
            f"{kind}/{name}": TensorForm(shape, "float32")
            for name, shape in self.shapes.items()
            for kind in KINDS
        }
        self.step, self.losses, self.noticed = 0, [], False
        if checkpoint is None:
            self.shards = {key: self._first(key, whole) for key in self.tensors}
        else:
            stored = open_safetensors(checkpoint)
            shapes = {key: form.shape for key, form in self.tensors.items()}
            self.shards = load_shards(stored, self.rows, rank, shapes=shapes)
            self.step = int(stored.metadata["step"])

    def _first(self, key, whole):
        kind, _, name = key.partition("/")
        tensor = whole[name].detach() if kind == "weight" else torch.zeros(self.shapes[name])
        return shard(tensor, self.rows).parts[self.rank].clone()

    def on_preemption_notice(self, _seconds):
        self.noticed = True

    def save_state(self):
        """This rank's part of a checkpoint: the others write theirs, and the last one completes it."""
        checkpoint = self.folder / f"step-{self.step}"
        if not checkpoint.exists():
            write_safetensors(
                checkpoint,
                self.shards,
                self.rows,
                self.rank,
                tensors=self.tensors,
                metadata={"step": str(self.step)},
                attempt=self.attempt,
            )
        return {"checkpoint": str(checkpoint), "step": self.step, "losses": self.losses}

    def train(self, task_id, until):
        """Train until a step, or the eviction: all ranks stop after the same step, then each is saved."""
        self.safe_point()
        while self.step < until and not self.is_cancelled(task_id):
            if self._one_step():
                while not self.is_cancelled(task_id):
                    self.safe_point()
                    time.sleep(0.002)  # between two looks at the notice, which has no event
        return {"losses": self.losses, "weights": self._weights(), "pid": os.getpid()}

    def held(self):
        return {key: tuple(each.shape) for key, each in self.shards.items()}

    def _weights(self):
        """The whole weights, from the rows of all ranks."""
        mine = {name: self.shards[f"weight/{name}"] for name in self.shapes}
        return gather(self._exchanged(mine), self.rows, self.shapes)

    def _exchanged(self, mine):
        found = [None] * self.world
        dist.all_gather_object(found, mine)
        return found

    def _one_step(self):
        """One step; returns whether any rank has been told of an eviction."""
        weights = self._weights()
        self.model.load_state_dict(weights)
        each = MICROBATCHES // self.world
        own = range(self.rank * each, (self.rank + 1) * each)
        computed = {number: self._gradients(number) for number in own}
        answers = self._exchanged((computed, self.noticed))
        every = {number: found for answer, _ in answers for number, found in answer.items()}
        ordered = [every[number] for number in range(MICROBATCHES)]
        self.losses.append(sum(loss for loss, _ in ordered))
        self.step += 1
        for name in self.shapes:
            total = sum(gradients[name] for _, gradients in ordered) / MICROBATCHES
            self._update(name, shard(total, self.rows).parts[self.rank])
        if self.rank == 0:
            (self.folder / "progress").write_text(str(self.step))
        return any(noticed for _, noticed in answers)

    def _gradients(self, number):
        self.model.zero_grad()
        loss = self.model.loss(microbatch(self.step, number))
        loss.backward()
        return loss.item(), {
            name: each.grad.clone() for name, each in self.model.named_parameters()
        }

    def _update(self, name, gradient):
        """Adam, of the rows of this rank."""
        weight, mean, square = (self.shards[f"{kind}/{name}"] for kind in KINDS)
        mean.mul_(BETAS[0]).add_(gradient * (1 - BETAS[0]))
        square.mul_(BETAS[1]).add_(gradient * gradient * (1 - BETAS[1]))
        by_mean, by_square = (1 - beta**self.step for beta in BETAS)
        weight.sub_(RATE * (mean / by_mean) / ((square / by_square).sqrt() + EPSILON))
