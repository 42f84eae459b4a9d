"""The room of reserved placement groups is their pool's: nobody else waits for it, and nothing is kept for
those who would need it.
"""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.payloads import GangPayload, JobPayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import in_words
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Pending, Refused
from tests.engine.builders import Mesh, amount, node, pool, shape

HALF = shape({"gpu": 1, "cpu": 1})


def keeping(*reserved, name="kept", **spec):
    groups = GroupsSpec(reserved=reserved, **spec)
    return msgspec.structs.replace(pool(name, gpu=8, cpu=32), groups=groups)


def meshed(*nodes, keeps=None, **policy):
    """A pool with an unused reserved group of one GPU on the first node, and two others."""
    mesh = Mesh(nodes=nodes or [node("n0", gpu=2, cpu=8)])
    mesh.resize(keeps or keeping(HALF))
    mesh.make_all()
    for name in ("big", "small"):
        mesh.resize(pool(name, gpu=8, cpu=32))
    mesh.order_by(backfill_limit_s=60.0, **policy)
    return mesh


def test_a_task_without_room_beside_a_reserved_group_keeps_nobody_waiting():
    mesh = meshed()
    mesh.queue("b", "big", gpu=2)
    mesh.tick(100.0)
    mesh.queue("s", "small", gpu=1)
    mesh.tick(1.0)
    assert mesh.state.queue.by_id["b"].reservation is None
    assert "s" in mesh.starts


def test_explain_names_the_pool_whose_groups_take_the_room():
    mesh = meshed()
    mesh.queue("b", "big", gpu=2)
    mesh.tick()
    explained = mesh.engine.explain("b", mesh.now)
    assert explained.reason == "cluster_out_of_resources"
    assert explained.error == (
        "no node of the cluster as it is now could hold gpu 2 beside the reserved placement groups of pool "
        "'kept', even if nothing else ran: the closest node, n0, lacks gpu 1"
    )
    assert explained.hint.startswith("Have pool 'kept' keep fewer reserved placement groups")
    assert str(explained.short_node) == "gpu 1"
    assert "除去资源池 'kept' 的预留占位组" in in_words(explained.error_text, "zh")


def test_it_is_cancelled_as_impossible():
    mesh = meshed(on_impossible="cancel", impossible_after_s=60.0)
    mesh.queue("b", "big", gpu=2)
    mesh.tick(1.0)
    mesh.tick(60.0)
    past = mesh.state.ended["b"]
    assert past.reason == "impossible"
    assert "beside the reserved placement groups of pool 'kept'" in past.error


def test_what_cannot_wait_is_refused():
    refused = meshed().submit("b", "big", gpu=2)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.CLUSTER_OUT_OF_RESOURCES
    assert "'kept'" in refused.error


def test_it_starts_when_the_pool_keeps_no_group_any_more():
    mesh = meshed()
    mesh.queue("b", "big", gpu=2)
    mesh.tick()
    mesh.resize(keeping())
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    mesh.tick(1.0)
    assert "b" in mesh.starts


def test_a_group_that_is_in_use_takes_the_room_also_when_its_task_has_ended():
    mesh = meshed()
    mesh.run("user", "kept", gpu=1, cpu=1, priority=9.0)
    assert mesh.state.agents["user"].place.path == "reserved"
    mesh.queue("b", "big", gpu=2)
    mesh.tick(1.0)
    assert mesh.state.queue.by_id["b"].reservation is None


@pytest.mark.parametrize("how", ["deleted", "node drained"])
def test_a_group_that_will_leave_does_not(how):
    mesh = meshed()
    mesh.run("user", "kept", gpu=1, cpu=1, priority=9.0)
    mesh.queue("b", "big", gpu=2)
    mesh.tick(1.0)
    if how == "deleted":
        mesh.delete_pool("kept", drain=True, deadline_s=60.0)
    else:
        mesh.handle(s.DrainRequested(node_id="n0", drained=True, client="host:1"))
    mesh.tick(1.0)
    assert "could hold" not in mesh.engine.explain("b", mesh.now).error


def test_a_task_of_the_pool_that_may_use_the_group_waits_for_it():
    mesh = meshed(keeps=keeping(shape({"gpu": 2, "cpu": 1}), dynamic=False))
    mesh.run("user", "kept", gpu=2, cpu=1, priority=9.0)
    mesh.queue("next", "kept", gpu=2, cpu=1, priority=9.0)
    mesh.tick(1.0)
    assert mesh.state.queue.by_id["next"].reservation is not None
    mesh.handle(s.CordonRequested(node_id="n0", cordoned=True))
    mesh.tick(1.0)
    assert mesh.state.queue.by_id["next"].reservation is not None


def test_a_reserved_group_that_has_no_room_beside_that_of_another_pool_is_waited_for_by_nobody():
    mesh = meshed()
    mesh.resize(keeping(shape({"gpu": 2, "cpu": 1}), name="late", dynamic=False))
    mesh.queue("next", "late", gpu=2, cpu=1, priority=9.0)
    mesh.tick(1.0)
    assert mesh.state.queue.by_id["next"].reservation is None


def test_another_node_is_kept_free_than_that_of_the_group():
    mesh = meshed(node("n0", gpu=2, cpu=8), node("n1", gpu=2, cpu=8))
    mesh.run("service", "small", gpu=2)
    assert mesh.state.agents["service"].node_id == "n1"
    mesh.queue("b", "big", gpu=2)
    mesh.tick(100.0)
    assert mesh.state.queue.by_id["b"].reservation.node_ids == ("n1",)
    assert isinstance(mesh.submit("s", "small", gpu=1), Pending)


def test_a_gang_has_to_find_room_beside_all_groups_together():
    nodes = [node(name, gpu=2, cpu=8) for name in ("n0", "n1", "n2")]
    mesh = meshed(*nodes, keeps=keeping(HALF, shape({"gpu": 1, "cpu": 2})))
    gang = {"bundles": [{"gpu": 2}] * 2, "payload": GangPayload(strategy="STRICT_SPREAD")}
    mesh.resize(keeping(shape({"gpu": 2, "cpu": 1}), name="other"))
    mesh.make_all()
    mesh.queue("g", "big", **gang)
    mesh.tick(1.0)
    explained = mesh.engine.explain("g", mesh.now)
    assert mesh.state.queue.by_id["g"].reservation is None
    assert "of pool 'kept', 'other'" in explained.error


# jobs are divided among nodes

TWO_NODES = [node(name, gpu=2, cpu=8, labels={"name": name}) for name in ("n0", "n1")]
ON_BOTH = shape({"gpu": 1, "cpu": 1}, {"gpu": 1, "cpu": 1}, strategy="STRICT_SPREAD")


def test_a_job_for_which_no_node_is_large_enough_beside_reserved_groups_is_divided():
    mesh = meshed(*TWO_NODES, keeps=keeping(ON_BOTH))
    mesh.queue("job", "big", gpu=2, cpu=2, payload=JobPayload())
    group = mesh.state.groups.by_id[mesh.state.agents["job"].group_id]
    assert group.node_ids == ("n0", "n1")
    assert group.shape.bundles == (amount(gpu=1, cpu=1),) * 2


def test_a_job_for_which_a_node_is_large_enough_beside_reserved_groups_waits_for_it():
    mesh = meshed(*TWO_NODES, keeps=keeping(HALF))
    mesh.run("before", "small", gpu=1, cpu=1, node_labels={"name": "n1"})
    mesh.queue("job", "big", gpu=2, cpu=2, payload=JobPayload())
    assert mesh.waiting("big") == ["job"]
    mesh.complete("before")
    mesh.tick(1.0)
    assert mesh.state.agents["job"].place.node_id == "n1"


def test_a_job_that_waits_is_divided_when_reserved_groups_take_the_last_whole_node():
    """It has a reserved start on one node then, which is given anew."""
    mesh = Mesh(nodes=TWO_NODES)
    for name in ("big", "small"):
        mesh.resize(pool(name, gpu=8, cpu=32))
    for name, node_id in (("x", "n0"), ("y", "n1")):
        mesh.run(name, "small", gpu=1, cpu=1, node_labels={"name": node_id}, duration=10.0)
    mesh.queue("job", "big", gpu=2, cpu=2, payload=JobPayload())
    mesh.tick(1.0)
    assert len(mesh.state.queue.by_id["job"].reservation.node_ids) == 1
    mesh.resize(keeping(ON_BOTH))
    mesh.make_all()
    mesh.tick(1.0)
    assert mesh.state.queue.by_id["job"].reservation.node_ids == ("n0", "n1")
    mesh.complete("x")
    mesh.complete("y")
    mesh.tick(1.0)
    assert mesh.state.groups.by_id[mesh.state.agents["job"].group_id].node_ids == ("n0", "n1")
