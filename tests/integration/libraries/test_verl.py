"""verl's own resource pools and worker groups in given placement groups."""

from __future__ import annotations

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

from schedulemesh.errors import GroupNotLeasedError
from tests.integration.polling import until

pytest.importorskip(
    "verl.single_controller.ray.base",
    reason="verl and what it imports (tensordict, transformers) are not installed",
    exc_type=ImportError,
)
pytestmark = [
    pytest.mark.filterwarnings("default"),  # verl's own
]


@pytest.fixture
def groups(ray_cluster):
    """Both GPUs of the cluster, as a lease holds them: one group of two bundles."""
    from schedulemesh.integrations.verl import pool_groups

    [bundles] = pool_groups([2], max_colocate_count=2)
    in_ray = [{"CPU": bundle["cpu"], "GPU": bundle["gpu"]} for bundle in bundles]
    made = placement_group(in_ray, strategy="STRICT_PACK", lifetime="detached")
    ray.get(made.ready())
    # What is free Ray learns from its nodes, which may tell it later than that the group is there.
    until(lambda: not ray.available_resources().get("GPU"), "Ray still has a free GPU")
    yield [made]
    remove_placement_group(made)


def pools(process_on_node):
    """verl's manager of one resource pool on one node, as its trainers create it."""
    from verl.single_controller.ray.base import ResourcePoolManager

    spec = {"global_pool": [process_on_node]}
    return ResourcePoolManager(spec, {0: "global_pool"}, max_colocate_count=2)


def test_pools_are_the_groups_of_the_lease_although_no_gpu_is_free(groups):
    from schedulemesh.integrations.verl import leased_pools

    manager = pools(2)
    with pytest.raises(ValueError, match="less than total desired GPUs"):
        manager.create_resource_pool()
    with leased_pools(groups):
        manager.create_resource_pool()
        assert manager.get_resource_pool(0).get_placement_groups() == groups
    with pytest.raises(ValueError, match="less than total desired GPUs"):
        pools(2).create_resource_pool()


def test_a_pool_that_the_lease_does_not_hold_is_refused(groups):
    from schedulemesh.integrations.verl import leased_pools

    manager = pools(1)
    with leased_pools(groups):
        manager.create_resource_pool()
        with pytest.raises(GroupNotLeasedError, match="it has 2 bundles, 1 are requested"):
            manager.get_resource_pool(0).get_placement_groups()


def test_workers_of_verl_run_in_the_lease(groups):
    from verl.single_controller.base import Worker
    from verl.single_controller.base.decorator import Dispatch, register
    from verl.single_controller.ray.base import RayClassWithInitArgs, RayWorkerGroup

    from schedulemesh.integrations.verl import leased_pools

    class InWhichGroup(Worker):
        """Says in which placement group it is."""

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def group(self):
            return self.rank, ray.util.get_current_placement_group()

    manager = pools(2)
    with leased_pools(groups):
        manager.create_resource_pool()
        workers = RayWorkerGroup(
            manager.get_resource_pool(0), RayClassWithInitArgs(ray.remote(InWhichGroup))
        )
        try:
            assert workers.group() == [(0, groups[0]), (1, groups[0])]
        finally:
            for worker in workers.workers:
                ray.kill(worker)


def test_a_task_runner_creates_its_pools_in_the_lease(groups):
    from schedulemesh.integrations.verl import leased_task_runner

    @ray.remote
    class TaskRunner:
        """As verl's: an actor in which the pools are created."""

        def run(self, config):
            from verl.single_controller.ray.base import ResourcePoolManager

            manager = ResourcePoolManager(config, {0: "global_pool"}, max_colocate_count=2)
            manager.create_resource_pool()
            return manager.get_resource_pool(0).get_placement_groups()

    runner = leased_task_runner(TaskRunner, groups).remote()
    assert ray.get(runner.run.remote({"global_pool": [2]})) == groups
