"""Libraries ask Ray for the current placement group and start workers in it, as vLLM's Ray executor does."""

from __future__ import annotations

import pytest
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

GROUPS = {"enable": True}


@ray.remote
class Worker:
    """What a library starts for each GPU."""

    def gpus(self):
        return ray.get_gpu_ids()


class Engine:
    """An agent that is such a library."""

    def __init__(self, name, labels):
        self.workers = []

    def start(self):
        """The GPUs of its workers, one in each bundle with a GPU; None: it would create a group."""
        group = ray.util.get_current_placement_group()
        if group is None:
            return None
        for bundle, amounts in enumerate(group.bundle_specs):
            if amounts.get("GPU"):
                place = PlacementGroupSchedulingStrategy(
                    group,
                    placement_group_bundle_index=bundle,
                    placement_group_capture_child_tasks=True,
                )
                made = Worker.options(num_cpus=0, num_gpus=1, scheduling_strategy=place).remote()
                self.workers.append(made)
        return ray.get([worker.gpus.remote() for worker in self.workers], timeout=30.0)


def started(scheduler, groups=None, **how):
    """What the engine's start gives."""
    scheduler.create_pool("pool", resources={"cpu": 4, "gpu": 2}, pg_pool_config=groups)
    answer = scheduler.submit_task_with_preemption("llm", "pool", Engine, **how)
    assert answer["success"], answer
    return ray.get(answer["agent"]["handle"].start.remote(), timeout=60.0)


@pytest.mark.parametrize("groups", [None, GROUPS])
def test_an_agent_that_fills_its_group_is_shown_none(scheduler, groups):
    assert started(scheduler, groups, resources={"cpu": 1, "gpu": 2}) is None


def test_workers_run_in_the_bundles_that_the_agent_leaves_to_them(scheduler):
    found = started(scheduler, GROUPS, bundles=[{"cpu": 1}, {"gpu": 1}, {"gpu": 1}])
    assert sorted(found) == [[0], [1]]


def test_an_agent_that_takes_nothing_itself_is_shown_its_group(scheduler):
    found = started(scheduler, GROUPS, bundles=[{"gpu": 1}, {"gpu": 1}], driver_bundle=False)
    assert sorted(found) == [[0], [1]]
