"""One Ray for the whole run, and a namespace of its own for every test."""

from __future__ import annotations

import uuid

import pytest
import ray

from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.simple import SimpleScheduler
from tests.integration.polling import actors_in, groups_in, until


@pytest.fixture(scope="session")
def ray_cluster():
    """The local Ray of this run: 8 CPUs, 2 GPUs, 2 accelerators, 16 GB, none of which need exist."""
    context = ray.init(
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
    yield context
    ray.shutdown()


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
