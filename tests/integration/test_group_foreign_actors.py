"""A placement group is handed on only when nothing of others lives in it."""

from __future__ import annotations

import os
import signal

import pytest
import ray
from ray.core.generated.gcs_pb2 import ActorTableData
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from schedulemesh.core.backend import ray_internals
from schedulemesh.core.backend.ray_internals import LIVING_STATES, actor_entries
from tests.integration.agents import Counter
from tests.integration.polling import actors_in, process_exists, until
from tests.integration.test_pg_pools import ONE, make_pool, runs, submit


@ray.remote(num_cpus=0)
class ForeignActor:
    """Lives in a group where it does not belong."""

    def pid(self):
        return os.getpid()


class Parent(Counter):
    """Starts a detached actor in its own placement group."""

    def start(self, name, namespace):
        import os

        import ray

        class Child:
            def pid(self):
                return os.getpid()

        group = ray.util.get_current_placement_group()
        strategy = None
        if group is not None:
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            strategy = PlacementGroupSchedulingStrategy(group)
        child = (
            ray.remote(Child)
            .options(
                name=name,
                namespace=namespace,
                lifetime="detached",
                num_cpus=0,
                scheduling_strategy=strategy,
            )
            .remote()
        )
        return ray.get(child.pid.remote())


@pytest.fixture
def pool(scheduler):
    """A pool with one reserved group, and no others."""
    make_pool(scheduler, high_priority_pg_specs=[ONE], enable_dynamic_pgs=False)
    return scheduler


def submit_and_get_group(scheduler, task_id, cls=Counter):
    """The name of the group that a task got, and its agent's handle."""
    answer = submit(scheduler, task_id, 9.0, actor_class=cls)
    return runs(answer)["name"], answer["agent"]["handle"]


def foreign_actor_in(group_name, **options):
    """An ordinary actor in the group, once it runs; and its process."""
    group = ray.util.get_placement_group(group_name)
    made = ForeignActor.options(
        scheduling_strategy=PlacementGroupSchedulingStrategy(group), **options
    ).remote()
    return made, ray.get(made.pid.remote())


def test_a_detached_child_is_gone_before_its_group_is_handed_on(pool, namespace):
    group, handle = submit_and_get_group(pool, "first", Parent)
    child = ray.get(handle.start.remote("child", namespace))
    pool.complete_task("first", end_agent=True)
    assert submit_and_get_group(pool, "second")[0] == group
    assert "child" not in actors_in(namespace)
    until(lambda: not process_exists(child), "the child still runs")


def test_a_foreign_actor_is_ended_when_the_group_is_handed_on(pool, namespace):
    group, _ = submit_and_get_group(pool, "first")
    options = {"name": "foreign", "namespace": namespace, "lifetime": "detached"}
    _, pid = foreign_actor_in(group, **options)
    pool.complete_task("first", end_agent=True)
    assert submit_and_get_group(pool, "second")[0] == group
    assert "foreign" not in actors_in(namespace)
    until(lambda: not process_exists(pid), "the foreign actor still runs")


def test_a_foreign_actor_without_a_name_is_ended_too(pool):
    group, _ = submit_and_get_group(pool, "first")
    kept, pid = foreign_actor_in(group)
    pool.complete_task("first", end_agent=True)
    assert submit_and_get_group(pool, "second")[0] == group
    until(lambda: not process_exists(pid), "the foreign actor still runs")
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(kept.pid.remote())


def test_a_member_of_a_group_is_one_until_it_is_dead():
    """Also while it starts again; of dead ones Ray's table has many thousands, which nobody asks for."""
    group = placement_group([{"CPU": 1.0}])
    ray.get(group.ready())
    here = PlacementGroupSchedulingStrategy(group)
    actor = ForeignActor.options(
        scheduling_strategy=here, max_restarts=1, max_task_retries=1
    ).remote()
    pid = ray.get(actor.pid.remote())
    os.kill(pid, signal.SIGKILL)

    def runs_again():
        (member,) = ray_internals.group_members(group.id.hex())
        return member.pid not in (0, pid)

    until(runs_again, "it does not start again")
    ray.kill(actor)
    until(lambda: not ray_internals.group_members(group.id.hex()), "it is a member still")
    states = {ActorTableData.FromString(one).state for one in actor_entries(LIVING_STATES)}
    assert ActorTableData.DEAD not in states
    remove_placement_group(group)
