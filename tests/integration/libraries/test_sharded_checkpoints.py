"""A group whose state is split over its ranks is evicted, and returns with other numbers of ranks."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import ray

from tests.integration.agents import Counter
from tests.integration.polling import until

pytestmark = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("safetensors")),
    reason="torch or safetensors is not installed: there is no transformer to train",
)
CPUS = 4


def start(scheduler, ranks, folder, attempt, checkpoint=None):
    """A gang of trainers; returns the handles by rank."""
    from tests.checkpoints.sharded_trainer import Trainer

    answer = scheduler.submit_task_with_preemption(
        "train",
        "pool",
        Trainer,
        resources={"cpu": 1.0},
        replicas=ranks,
        priority=1.0,
        actor_kwargs={"folder": str(folder), "attempt": attempt, "checkpoint": checkpoint},
    )
    assert answer["success"], answer
    return [member["handle"] for member in answer.get("agents", [answer["agent"]])]


def steps(folder):
    progress = Path(folder) / "progress"
    text = progress.read_text() if progress.exists() else ""
    return int(text or 0)


def evicted(scheduler, handles, folder, more_steps):
    """Trains for some steps, until a more urgent task takes the CPUs; the state of each rank."""
    target = steps(folder) + more_steps
    running = [handle.train.remote("train", 10**9) for handle in handles]
    until(lambda: steps(folder) >= target, "it does not train", 60)
    urgent = scheduler.submit_task_with_preemption(
        "urgent", "pool", Counter, resources={"cpu": float(CPUS)}, priority=9.0
    )
    assert urgent["success"], urgent
    (victim,) = urgent["preempted"]
    assert victim["task_id"] == "train"
    assert victim.get("state_saved", True), victim
    del running
    saved = scheduler.get_saved_state("train")["saved_state"]
    assert saved.get("consistent", True), saved
    assert scheduler.complete_task("urgent", end_agent=True)["success"]
    return saved["state"] if isinstance(saved["state"], list) else [saved["state"]]


def agreed(states, ranks):
    """The checkpoint of which every rank has written its part."""
    assert len(states) == ranks
    assert len({(state["checkpoint"], state["step"]) for state in states}) == 1
    assert Path(states[0]["checkpoint"], "model.safetensors").exists()
    return states[0]


def test_two_ranks_return_as_one_and_then_as_four_bit_by_bit(scheduler, tmp_path):
    import torch

    scheduler.create_pool("pool", resources={"cpu": float(CPUS)})
    handles = start(scheduler, 2, tmp_path, "a")
    assert ray.get(handles[1].held.remote())["mean/embed.weight"] == (8, 16)
    first = agreed(evicted(scheduler, handles, tmp_path, 3), 2)
    handles = start(scheduler, 1, tmp_path, "b", first["checkpoint"])
    second = agreed(evicted(scheduler, handles, tmp_path, 3), 1)
    handles = start(scheduler, 4, tmp_path, "c", second["checkpoint"])
    assert ray.get(handles[3].held.remote())["mean/embed.weight"] == (2, 16)
    until_step = second["step"] + 3
    assert first["step"] < second["step"]
    third = ray.get([handle.train.remote("train", until_step) for handle in handles])[0]
    assert scheduler.complete_task("train", end_agent=True)["success"]

    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    handles = start(scheduler, 2, undisturbed, "d")
    expected = ray.get([handle.train.remote("train", until_step) for handle in handles])[0]
    assert first["losses"] + second["losses"] + third["losses"] == expected["losses"]
    assert expected["losses"][-1] < expected["losses"][0]
    assert set(third["weights"]) == set(expected["weights"])
    for name, weight in expected["weights"].items():
        assert torch.equal(third["weights"][name], weight), name
