"""Which GPU device Ray gives an agent that asks for a share of one."""

from __future__ import annotations

import pytest
import ray

from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.engine.placement.strategies import choose_devices
from schedulemesh.engine.state.fragmentation import Workload
from schedulemesh.engine.state.nodes import Node
from tests.integration.polling import until


class Sharer:
    """An agent that says which devices Ray has given it."""

    def __init__(self, name, labels):
        self.devices = ray.get_gpu_ids()

    def given(self):
        return [int(device) for device in self.devices]


@pytest.fixture
def pool(scheduler):
    """A pool with both GPUs."""
    until(lambda: ray.available_resources().get("GPU") == 2.0, "GPUs of a test before are taken")
    scheduler.create_pool("pool", resources={"cpu": 8.0, "gpu": 2.0})
    return scheduler


def test_ray_takes_the_device_that_best_fit_chooses(pool):
    """So what bin_pack and best_fit assume of a node's devices is what happens."""
    free = [UNIT, UNIT]
    shares = {"a": 0.7, "b": 0.4, "c": 0.2, "d": 0.5}
    first, *_ = [start_and_compare(pool, free, task, shares[task]) for task in shares]
    assert pool.complete_task("a", end_agent=True)["success"]
    free[first] += round(shares["a"] * UNIT)
    until(lambda: ray.available_resources().get("GPU", 0) > 0.85, "Ray still counts the task")
    start_and_compare(pool, free, "e", 0.1)
    start_and_compare(pool, free, "f", 0.6)


def start_and_compare(scheduler, free, task, share):
    """Start a task with this share of a GPU and compare its device with the expected one; the device."""
    answer = scheduler.submit_task_with_preemption(
        task, "pool", Sharer, resources={"cpu": 0.5, "gpu": share}
    )
    assert answer["success"], answer
    (device,) = ray.get(answer["agent"]["handle"].given.remote())
    assert device == best_fit(free, share), (task, free)
    free[device] -= round(share * UNIT)
    return device


def best_fit(free, share):
    """The device that the strategies bin_pack and best_fit choose."""
    node = Node(node_id="n", total=Resources(gpu=len(free) * UNIT), devices=list(free))
    chosen = choose_devices("best_fit", node, Resources(gpu=round(share * UNIT)), Workload())
    assert chosen is not None
    ((device, _),) = chosen.units
    return device
