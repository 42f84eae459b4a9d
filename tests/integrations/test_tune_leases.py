"""The leases of Tune's trials: each is released, however the experiment ends."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from ray.air.execution import ResourceRequest

from schedulemesh.errors import ScheduleMeshError
from schedulemesh.integrations.tune import LeaseResourceManager

REQUEST = ResourceRequest([{"CPU": 1}])


class FakeLease:
    def __init__(self, name, bundles):
        self.name, self.bundles = name, bundles
        self.state = "queued"
        self.releases = 0
        self.error = None

    @property
    def placement_groups(self):
        if self.error is not None:
            raise self.error
        return [f"the group of {self.name}"]

    def preempted(self):
        return False

    def release(self):
        self.releases += 1
        if self.error is not None:
            raise self.error


class FakeTerms:
    def __init__(self):
        self.leases = []

    def request(self, name, bundles, strategy):
        self.leases.append(FakeLease(name, bundles))
        return self.leases[-1]


@pytest.fixture
def terms():
    return FakeTerms()


@pytest.fixture
def manager(terms):
    return LeaseResourceManager(terms, (f"t-{number}" for number in itertools.count(1)))


def test_all_are_released_those_in_use_and_those_that_wait(terms, manager):
    for _ in range(3):
        manager.request_resources(REQUEST)
    terms.leases[1].state = "running"
    acquired = manager.acquire_resources(REQUEST)
    terms.leases[0].error = ScheduleMeshError("the scheduler is not there")
    manager.clear()
    assert [lease.releases for lease in terms.leases] == [1, 1, 1]
    manager.free_resources(acquired)
    manager.clear()
    assert [lease.releases for lease in terms.leases] == [1, 1, 1], "each is released once"


def test_one_that_ends_while_a_trial_takes_it_is_released_as_well(terms, manager):
    manager.request_resources(REQUEST)
    (lease,) = terms.leases
    lease.state, lease.error = "running", ScheduleMeshError("it has ended")
    assert manager.acquire_resources(REQUEST) is None
    manager.clear()
    assert lease.releases == 1


def test_one_that_is_evicted_when_it_has_just_been_offered_does_not_end_the_experiment(
    terms, manager
):
    manager.request_resources(REQUEST)
    (lease,) = terms.leases
    lease.state = "running"
    assert manager.has_resources_ready(REQUEST)
    lease.state, lease.error = "cancelled", ScheduleMeshError("it has ended")
    assert manager.acquire_resources(REQUEST), "Tune asserts that it gets what was offered"
    manager.clear()
    assert [each.releases for each in terms.leases] == [1]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, ScheduleMeshError])
def test_a_second_interruption_leaves_no_lease_behind(terms, manager, error):
    for _ in range(3):
        manager.request_resources(REQUEST)
    terms.leases[1].error = error("while it is released")
    with contextlib.suppress(KeyboardInterrupt, RuntimeError):
        manager.clear()
    assert [lease.releases for lease in terms.leases] == [1, 1, 1]
