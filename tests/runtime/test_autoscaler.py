"""What Ray's autoscaler is asked for."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.facts import PoolEnsured
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.runtime.cluster import autoscaler as autoscaler_request
from schedulemesh.runtime.cluster.autoscaler import AutoscalerRequest, queued_needs
from tests.engine.builders import Mesh, node, pool
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
        made.evolve(PoolEnsured(spec=PoolSpec(name=name, groups=groups), at=0.0))
    return made


SHAPE = GroupShape(bundles=(parse_resources({"cpu": 1}), parse_resources({"gpu": 2})))


async def writing():
    """A supervisor without a successor."""
    return True


async def superseded():
    return False


def told(ray, *states):
    async def notify():
        request = AutoscalerRequest(ray, writing)
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


def test_one_that_was_superseded_requests_nothing(short):
    ray, short["p"] = FakeBackend(), [(SHAPE, "no room")]
    asyncio.run(AutoscalerRequest(ray, superseded).notify(state(p=True)))
    assert ray.asked == []


def queued_mesh(*needs, cpu=8):
    """A pool with one node of 4 CPUs, and tasks that wait for these CPUs each."""
    mesh = Mesh(pool("p", cpu=cpu), nodes=[node("n1", cpu=4)])
    for number, need in enumerate(needs):
        mesh.queue(f"t{number}", cpu=need)
    return mesh


def test_what_queued_tasks_need_and_no_node_has_is_requested_and_withdrawn():
    ray, mesh = FakeBackend(), queued_mesh(6, 4)
    assert mesh.waiting() == ["t0"]
    assert list(queued_needs(mesh.state)) == [], "its pool's quota is in use"
    mesh.report("t1")
    mesh.complete("t1")
    need = parse_resources({"cpu": 6})
    assert list(queued_needs(mesh.state)) == [(need, ())]

    async def story():
        request = AutoscalerRequest(ray, writing)
        await request.notify(mesh.state)
        mesh.cancel("t0")
        await request.notify(mesh.state)

    asyncio.run(story())
    assert ray.asked == [[need], []]


def test_a_node_with_the_labels_is_requested_for_a_task_whose_labels_no_node_has():
    ray, mesh = FakeBackend(), Mesh(pool("p", cpu=8), nodes=[node("n1", cpu=4)])
    mesh.queue("t", node_labels={"zone": "in(a, b)"}, cpu=1)
    asyncio.run(AutoscalerRequest(ray, writing).notify(mesh.state))
    assert ray.asked == [[parse_resources({"cpu": 1})]]
    assert ray.asked_labels == [[(("zone", "in(a, b)"),)]]


def racks(*nodes, **how):
    """A mesh with racks in blocks; ``nodes``: block, rack and GPUs of each."""
    mesh = Mesh(
        pool("p", gpu=64),
        nodes=[
            node(f"n{number}", gpu=gpus, labels={"block": block, "rack": rack, **how})
            for number, (block, rack, gpus) in enumerate(nodes)
        ],
    )
    mesh.policy(topology_levels=("block", "rack"))
    return mesh


def gang(mesh, topology, **how):
    """A gang of four members with two GPUs each waits."""
    members = [{"gpu": 2}] * 4
    payload = GangPayload(strategy="PACK")
    mesh.queue("g", topology=topology, bundles=members, payload=payload, class_key="c", **how)
    assert mesh.waiting() == ["g"]


def test_a_gang_for_which_there_are_too_few_nodes_is_asked_for_whole():
    given = racks(("b1", "r1", 2), ("b1", "r2", 2))
    gang(given, "")
    assert list(queued_needs(given.state)) == [(parse_resources({"gpu": 2}), ())] * 4


def test_a_gang_that_must_be_in_one_rack_is_asked_for_in_the_rack_that_has_most():
    given = racks(("b1", "r1", 4), ("b1", "r2", 4), ("b2", "r2", 2), ("b1", "r2", 2))
    gang(given, "rack")
    asked = (parse_resources({"gpu": 2}), (("block", "b1"), ("rack", "r2")))
    assert list(queued_needs(given.state)) == [asked] * 4
    given.observe(*(node(f"m{n}", gpu=4, labels={"block": "b1", "rack": "r2"}) for n in range(2)))
    assert list(queued_needs(given.state)) == [], "the rack has grown"


def test_equal_racks_are_taken_by_name_and_wider_levels_name_no_rack():
    given = racks(("b1", "r2", 2), ("b1", "r1", 2), ("b2", "r3", 3))
    gang(given, "rack")
    assert {labels for _, labels in queued_needs(given.state)} == {
        (("block", "b2"), ("rack", "r3"))
    }
    given = racks(("b1", "r2", 2), ("b1", "r1", 2), ("b2", "r3", 4))
    gang(given, "block,preferred:rack")
    assert {labels for _, labels in queued_needs(given.state)} == {(("block", "b1"),)}


def test_a_preferred_level_is_not_asked_for():
    given = racks(("b1", "r1", 4), ("b1", "r2", 2))
    gang(given, "preferred:rack")
    assert {labels for _, labels in queued_needs(given.state)} == {()}


def test_where_no_node_has_the_label_nodes_are_asked_for_without_it():
    given = Mesh(pool("p", gpu=64), nodes=[node("head", cpu=4)])
    given.policy(topology_levels=("block", "rack"))
    gang(given, "rack", node_labels={"model": "H100"})
    assert {labels for _, labels in queued_needs(given.state)} == {(("model", "H100"),)}


def test_the_labels_that_a_gang_asks_for_limit_the_racks_and_are_asked_for_too():
    given = Mesh(
        pool("p", gpu=64),
        nodes=[
            node("a", gpu=6, labels={"rack": "r1", "model": "A100"}),
            node("h", gpu=4, labels={"rack": "r2", "model": "H100"}),
        ],
    )
    given.policy(topology_levels=("rack",))
    gang(given, "rack", node_labels={"model": "H100", "rack": "!r9"})
    assert {labels for _, labels in queued_needs(given.state)} == {
        (("model", "H100"), ("rack", "r2"))
    }


def test_no_more_is_requested_for_queued_tasks_than_their_quota_covers():
    mesh = queued_mesh(6, 6, 6, 6, cpu=13)
    assert len(mesh.waiting()) == 4
    assert list(queued_needs(mesh.state)) == [(parse_resources({"cpu": 6}), ())] * 2


def test_it_is_asked_for_nodes_for_the_first_alternative_where_none_could_hold_any():
    h100, a100 = {"model": "H100"}, {"model": "A100", "takes": {"gpu": 2}}
    mesh = Mesh(pool("p", gpu=8), nodes=[node("n", gpu=1, labels={"model": "A100"})])
    mesh.queue("t", gpu=1, node_labels=h100, fallbacks=[a100])
    mesh.queue("u", gpu=1, node_labels=h100, fallbacks=[{"model": "A100"}])
    assert list(queued_needs(mesh.state)) == [(parse_resources({"gpu": 1}), (("model", "H100"),))]


def test_a_task_of_a_pool_with_flavors_asks_for_a_node_of_the_first_within_its_quota():
    flavors = {name: {"model": name} for name in ("h100", "a100")}
    given = Mesh(
        pool("p", custom={"gpu@h100": 2, "gpu@a100": 2}, flavors=flavors), nodes=[node("n", cpu=8)]
    )
    for name in ("t", "u", "v"):
        given.queue(name, gpu=1)
    need = parse_resources({"gpu": 1})
    assert list(queued_needs(given.state)) == [(need, (("model", "h100"),))] * 2
    given.observe(node("n", cpu=8), node("a", gpu=4, labels={"model": "a100"}))
    assert list(queued_needs(given.state)) == [], "the other flavor has one"
