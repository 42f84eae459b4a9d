"""What Ray's autoscaler is asked for."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.facts import PoolEnsured
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.runtime import autoscaler as autoscaler_request
from schedulemesh.runtime.autoscaler import AutoscalerRequest
from tests.runtime.fake_backend import FakeBackend


@pytest.fixture
def short(monkeypatch):
    """The groups without room, by pool."""
    found = {}
    monkeypatch.setattr(autoscaler_request, "unplaced", lambda state, name: found.get(name, []))
    return found


def state(**asks):
    made = MeshState()
    for name, autoscale in asks.items():
        groups = GroupsSpec(autoscale=autoscale)
        made.evolve(PoolEnsured(spec=PoolSpec(name=name, groups=groups)))
    return made


SHAPE = GroupShape(bundles=(parse_resources({"cpu": 1}), parse_resources({"gpu": 2})))


def told(ray, *states):
    async def notify():
        request = AutoscalerRequest(ray)
        for one in states:
            await request.notify(one)
        await request.withdraw()

    asyncio.run(notify())


def test_a_pool_requests_nothing_by_default(short):
    ray, short["p"] = FakeBackend(), [(SHAPE, "no room")]
    told(ray, state(p=False), state(p=False))
    assert ray.asked == []


def test_an_unplaceable_group_is_requested_once_and_withdrawn(short):
    ray, short["p"], short["q"] = FakeBackend(), [(SHAPE, "no room")], [(SHAPE, "no room")]
    told(ray, state(p=True, q=False), state(p=True, q=False))
    assert ray.asked == [list(SHAPE.bundles), []]


def test_a_request_of_a_previous_supervisor_is_withdrawn(short):
    ray = FakeBackend()
    told(ray, state(p=True), state(p=True))
    assert ray.asked == [[]]


def test_a_pool_that_disabled_requests_has_none(short):
    ray, short["p"] = FakeBackend(), [(SHAPE, "no room")]
    told(ray, state(p=True), state(p=False), state(p=False))
    assert ray.asked == [list(SHAPE.bundles), []]
