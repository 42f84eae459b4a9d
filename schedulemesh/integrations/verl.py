"""verl: its resource pools are the placement groups of a lease."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from verl.single_controller.ray.base import ResourcePoolManager

from schedulemesh.integrations.group_capture import HasPlacementGroups, capture


def pool_groups(
    process_on_nodes: Sequence[int], *, max_colocate_count: int = 3, gpu: bool = True
) -> list[list[dict[str, float]]]:
    """The ``groups`` of a lease that serves a resource pool: one placement group per node.

    ``process_on_nodes`` and ``max_colocate_count`` are those of verl's ``ResourcePoolManager``.
    """
    bundle = {"cpu": float(max_colocate_count)} | ({"gpu": 1.0} if gpu else {})
    return [[dict(bundle) for _ in range(count)] for count in process_on_nodes]


@contextlib.contextmanager
def leased_pools(*leases: HasPlacementGroups | Sequence[PlacementGroup]) -> Iterator[None]:
    """Serve the resource pools that verl creates in this process from leases, and from nothing else.

    ``ResourcePoolManager`` counts the GPUs that Ray has free and would refuse those that a lease holds; in
    the block the leases are asked instead, which raises GroupNotLeasedError where they lack a group.
    """
    check = ResourcePoolManager._check_resource_available  # noqa: SLF001  # no public way around it
    ResourcePoolManager._check_resource_available = _leaves_it_to_the_lease  # noqa: SLF001
    try:
        with contextlib.ExitStack() as captures:
            for lease in leases:
                captures.enter_context(capture(lease, strict=True))
            yield
    finally:
        ResourcePoolManager._check_resource_available = check  # noqa: SLF001


def leased_task_runner(
    task_runner_class: Any, *leases: HasPlacementGroups | Sequence[PlacementGroup]
) -> Any:
    """A task runner for ``run_ppo(config, task_runner_class=...)`` whose resource pools are in leases.

    verl creates its pools in the task runner, an actor; ``task_runner_class`` is verl's own or your own.
    """
    groups = [
        list(lease if isinstance(lease, Sequence) else lease.placement_groups) for lease in leases
    ]
    metadata = getattr(task_runner_class, "__ray_metadata__", None)
    plain = task_runner_class if metadata is None else metadata.modified_class

    class LeasedTaskRunner:
        """Runs the given task runner while its placement groups are captured."""

        def run(self, config: Any) -> Any:
            """As the given task runner's."""
            with leased_pools(*groups):
                return plain().run(config)

    return ray.remote(num_cpus=1)(LeasedTaskRunner)


def _leaves_it_to_the_lease(_manager: object) -> None:
    """In place of ``ResourcePoolManager._check_resource_available``."""
