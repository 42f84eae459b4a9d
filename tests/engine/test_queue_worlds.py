"""Random worlds of the queue, a few here and many in ``make explore``; see ``queue_worlds``."""

from __future__ import annotations

import os

import pytest

from schedulemesh.domain.payloads import GangPayload
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Pending
from schedulemesh.engine.preemption.limits import Limits
from tests.engine.builders import Mesh, node, pool
from tests.engine.queue_worlds import Leaving, Violation, World, violations_of

SEED = os.environ.get("SCHEDULEMESH_SEED", "3")
WORLDS = int(os.environ.get("HYPOTHESIS_EXAMPLES", "10"))


@pytest.mark.parametrize("number", range(WORLDS))
def test_every_promise_is_kept_in_a_random_world(number):
    print(f"python -m tests.engine.queue_worlds --seed {SEED} # world {number}")
    assert violations_of(f"{SEED}-{number}") == []


def test_what_lasts_longer_than_it_may_is_a_violation():
    world = World("any")
    world._lasts("own_quota", "t", True, "waits")
    world.mesh.now += 2.0
    world._lasts("own_quota", "t", True, "waits")
    assert world.violations == []
    world.mesh.now += 1.0
    world._lasts("own_quota", "t", True, "waits")
    assert world.violations == [Violation("own_quota", world.now, "t: waits")]


def test_an_eviction_beside_leaving_capacity_would_be_noticed():
    world = World("any")
    world.mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    world.nodes = {"a": node("a", cpu=4)}
    for name in ("t1", "t2"):
        world.mesh.run(name, cpu=2, priority=1.0)
    world.mesh.handle(s.AgentDeletionRequested(agent_name="t1"))
    leaving = Leaving(world)
    incoming = world.mesh.submission("new", cpu=2).agent
    assert leaving.is_enough_for("p", incoming, spares_quota=True)
    larger = world.mesh.submission("new", cpu=3).agent
    assert not leaving.is_enough_for("p", larger, spares_quota=True)


@pytest.mark.parametrize(
    ("strategy", "free", "fits"),
    [
        ("PACK", {"a": 4, "b": 2}, True),
        ("PACK", {"a": 3, "b": 3}, False),
        ("STRICT_SPREAD", {"a": 2, "b": 2, "c": 2}, True),
        ("STRICT_SPREAD", {"a": 6}, False),
    ],
)
def test_whether_all_members_of_a_gang_have_room_is_counted_by_node(strategy, free, fits):
    world = World("any")
    world.nodes = {name: node(name, cpu=cpu) for name, cpu in free.items()}
    world.mesh = Mesh(pool("p", cpu=6), nodes=world.nodes.values())
    gang = GangPayload(strategy=strategy)
    agent = world.mesh.submission("g", bundles=[{"cpu": 2}] * 3, payload=gang).agent
    assert Leaving(world).is_enough_for("p", agent, spares_quota=True) is fits
    outcome = world.mesh.submit("g", bundles=[{"cpu": 2}] * 3, payload=gang, class_key="c")
    assert isinstance(outcome, Pending) is fits


@pytest.mark.parametrize("spares", [True, False])
def test_an_eviction_by_a_task_that_was_passed_would_be_noticed(spares, monkeypatch):
    if not spares:
        monkeypatch.setattr(Limits, "came_first", frozenset())
    world = World("any")
    world.mesh = mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    world.nodes, world.pools = {"a": node("a", cpu=4)}, ["p"]
    mesh.order_by(order="fifo")
    mesh.run("busy", cpu=4, priority=50.0)
    for name, priority in (("low", 1.0), ("high", 9.0)):
        mesh.now += 1.0
        world._tell(lambda n=name, p=priority: mesh.queue(n, cpu=4, priority=p))
    mesh.now += 1.0
    world._tell(lambda: mesh.complete("busy"))
    mesh.report("low")
    world._tell(lambda: mesh.tick(1))
    assert [violation.rule for violation in world.violations] == ([] if spares else ["came_first"])
