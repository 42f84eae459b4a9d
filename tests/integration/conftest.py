"""One Ray for the whole run, and a namespace of its own for every test."""

from __future__ import annotations

import time
import uuid

import pytest
import ray
from ray._private.state import actors

from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.simple import SimpleScheduler
from tests.forked_workers import fork_workers
from tests.integration.polling import actors_in, groups_in, until

#: Seconds in which Ray notices that nothing uses a resource any more, on a busy machine too.
RETURNED_S = 30.0


@pytest.fixture(scope="session")
def ray_cluster():
    """The local Ray of this run: 8 CPUs, 2 GPUs, 2 accelerators, 16 GB, none of which need exist."""
    start_ray()
    yield
    ray.shutdown()


def start_ray():
    """Start it in this process."""
    fork_workers()
    ray.init(
        address="local",
        num_cpus=8,
        num_gpus=2,
        resources={"accelerator": 2},
        _memory=16 * 2**30,
        object_store_memory=80_000_000,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )


@pytest.fixture(autouse=True)
def whole_ray(ray_cluster):
    """A test fails if Ray says afterwards that something is taken while no actor or placement group lives.

    Ray is started again then, or later tests that need what was lost would fail or wait for ever.
    """
    yield
    if not lost_after(1.0) or any(each["State"] != "DEAD" for each in actors().values()):
        return
    if lost := lost_after(RETURNED_S):
        ray.shutdown()
        start_ray()
        pytest.fail(f"nothing lives in Ray, and it has lost {lost}; it was started again")


def lost_after(seconds):
    """What is still missing after so many seconds, by resource.

    Nothing where a scheduler or a placement group lives, which may use it.
    """
    end = time.monotonic() + seconds
    while lost := missing():
        if groups_in() or ray.util.list_named_actors(all_namespaces=True):
            return {}
        if time.monotonic() > end:
            return lost
        time.sleep(0.02)  # between two looks at what has no event
    return {}


def missing():
    """What Ray does not say is free, by resource."""
    free = ray.available_resources()
    return {
        name: amount - free.get(name, 0.0)
        for name, amount in ray.cluster_resources().items()
        if name in ("CPU", "GPU", "accelerator", "memory") and free.get(name, 0.0) < amount
    }


@pytest.fixture(autouse=True)
def ray_is_forbidden(ray_cluster):
    """Not here: real Ray is what these tests are for."""


@pytest.fixture
def namespace():
    """A Ray namespace that no other test uses."""
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_scheduler(namespace):
    """Makes schedulers in the test's namespace; afterwards nothing of them may be left in Ray."""
    made = []

    def make(name="mesh", **options):
        made.append(RayScheduler(name, namespace=namespace, **options))
        return made[-1]

    yield make
    _end_all(made, namespace)


@pytest.fixture
def scheduler(make_scheduler):
    """A fresh scheduler."""
    return make_scheduler()


@pytest.fixture
def make_simple(namespace):
    """As make_scheduler, with the shorter words."""
    made = []

    def make(name="mesh", **options):
        made.append(SimpleScheduler(name, namespace=namespace, **options))
        return made[-1]

    yield make
    _end_all(made, namespace)


def _end_all(made, namespace):
    for scheduler in made:
        scheduler.shutdown()
    until(lambda: not actors_in(namespace), lambda: f"left in Ray: {actors_in(namespace)}")
    assert groups_in(namespace) == {}, "placement groups are left in Ray"
