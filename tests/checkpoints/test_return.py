"""A transformer trained by two ranks goes on with one and then with four, bit by bit; in plain processes."""

import multiprocessing
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: there is nothing to train")
pytest.importorskip("safetensors", reason="safetensors is not installed")


def run(rank, ranks, folder, attempt, checkpoint, stop, notice, answers):
    """One rank: trains until a step; with ``notice`` the last rank is told of an eviction after that many."""
    import torch.distributed as dist

    from tests.checkpoints.sharded_trainer import Trainer

    class Evicted(Trainer):
        saved = None

        def _one_step(self):
            if rank == ranks - 1 and self.step == notice:
                self.on_preemption_notice(0.0)
            return super()._one_step()

        def safe_point(self):
            if self.losses:  # all ranks have stopped after the same step
                self.saved = self.save_state()
                self.cancel("train")

    trainer = Evicted(
        "t",
        {},
        rank=rank,
        world_size=ranks,
        folder=folder,
        attempt=attempt,
        checkpoint=checkpoint,
    )
    done = trainer.train("train", stop)
    if rank == 0:
        weights = {name: each.numpy() for name, each in done["weights"].items()}
        answers.put((trainer.saved, done["losses"], weights))
    dist.barrier()
    dist.destroy_process_group()


def start(ranks, folder, attempt, checkpoint=None, stop=10**9, notice=None):
    """What rank 0 answers: its saved state, the losses of all steps, the whole weights."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    given = (str(folder), attempt, checkpoint, stop, notice, answers)
    processes = [context.Process(target=run, args=(rank, ranks, *given)) for rank in range(ranks)]
    for each in processes:
        each.start()
    try:
        return answers.get(timeout=120)
    finally:
        for each in processes:
            each.join(timeout=60)
            each.kill()


def test_two_ranks_return_as_one_and_then_as_four(tmp_path):
    first, early, _ = start(2, tmp_path, "a", notice=2)
    assert first["step"] == 3
    second, later, _ = start(1, tmp_path, "b", first["checkpoint"], notice=5)
    assert second["step"] == 6
    _, last, weights = start(4, tmp_path, "c", second["checkpoint"], stop=9)
    undisturbed = Path(tmp_path, "undisturbed")
    undisturbed.mkdir()
    _, losses, expected = start(2, undisturbed, "d", stop=9)
    assert early + later + last == losses
    assert losses[-1] < losses[0]
    assert set(weights) == set(expected)
    for name, weight in expected.items():
        assert (weights[name] == weight).all(), name
