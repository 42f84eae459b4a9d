"""Evictions beside external work that waits in Ray: none whose room that work would get."""

from __future__ import annotations

import pytest

from schedulemesh.domain.demand import ExternalDemand
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import Reason
from tests.engine.builders import Mesh, amount, differences, node, pool

KEY = "a" * 64


def demand(job_id="02000000", **given):
    return ExternalDemand(amount=amount(**given), job_id=job_id, namespace="team")


def full(*, nodes=1, **policy):
    """Nodes with 2 GPUs, and a task of low priority on each of them."""
    mesh = Mesh(
        pool("p", cpu=100, gpu=100),
        nodes=[node(f"n{i}", cpu=8, gpu=2) for i in range(nodes)],
        **policy,
    )
    for i in range(nodes):
        mesh.submit(f"low{i}", priority=1.0, class_key=KEY, cpu=1, gpu=2)
        mesh.report(f"low{i}", room=f"room:low{i}")
    return mesh


def fail_for_room(mesh, name, reason=Reason.CLUSTER_OUT_OF_RESOURCES):
    return mesh.fail(name, reason=reason)


def test_nobody_is_evicted_for_room_that_waiting_work_would_get_first():
    mesh = full()
    mesh.see_demand(demand(gpu=2))
    refused = mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=1)
    assert refused.reason == "external_demand"
    assert "Ray job 02000000 (namespace 'team') waits in Ray for gpu 2" in refused.error
    assert "evict_despite_external_demand" in refused.hint
    assert mesh.ends == {}


def test_room_that_is_handed_over_is_nobody_elses():
    mesh = full()
    mesh.see_demand(demand(gpu=2))
    assert mesh.dry("high", priority=9.0, class_key=KEY, cpu=1, gpu=2).node_id == "n0"
    mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=2)
    assert set(mesh.ends) == {"low0"}


def test_of_several_victims_one_is_taken_whose_room_is_handed_over():
    mesh = Mesh(
        pool("p", cpu=100, gpu=100), nodes=[node("a", cpu=8, gpu=2), node("b", cpu=8, gpu=2)]
    )
    for name, cpu, priority in (("other", 2, 1.0), ("same", 1, 2.0)):
        mesh.submit(name, priority=priority, class_key=KEY, cpu=cpu, gpu=2)
        mesh.report(name, room=f"room:{name}")
    mesh.see_demand(demand(gpu=2))
    mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=2)
    assert set(mesh.ends) == {"same"}, "without the demand it would have been the other one"


def test_an_agent_without_a_room_of_its_own_hands_nothing_over():
    mesh = Mesh(pool("p", cpu=100, gpu=100), nodes=[node("a", cpu=8, gpu=2)])
    mesh.run("low", priority=1.0, class_key=KEY, cpu=1, gpu=2)
    mesh.see_demand(demand(gpu=2))
    refused = mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=2)
    assert refused.reason == "external_demand"


@pytest.mark.parametrize(
    "waiting", [demand(gpu=3), demand(cpu=1, custom={"tpu": 1}), demand(cpu=1)]
)
def test_demand_that_fits_nowhere_or_beside_the_task_keeps_nobody_from_it(waiting):
    mesh = full()
    mesh.see_demand(waiting)
    mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=1)
    assert set(mesh.ends) == {"low0"}


def test_the_policy_may_say_to_evict_all_the_same():
    mesh = full(evict_despite_external_demand=True)
    mesh.see_demand(demand(gpu=2))
    mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=1)
    assert set(mesh.ends) == {"low0"}


def test_a_queued_task_waits_until_the_demand_has_ended_and_says_for_what():
    mesh = full()
    mesh.see_demand(demand(gpu=2))
    mesh.queue("high", priority=9.0, class_key=KEY, cpu=1, gpu=1)
    mesh.tick(1.0)
    assert mesh.ends == {}
    found = mesh.engine.explain("high", mesh.now)
    assert (found.reason, "02000000" in found.error) == ("external_demand", True)
    mesh.see_demand()
    mesh.tick(1.0)
    assert set(mesh.ends) == {"low0"}


def test_where_the_room_was_lost_the_victim_waits_at_its_place_with_what_it_was():
    mesh = full()
    mesh.see_demand(demand(gpu=2), demand(gpu=2))
    mesh.policy(evict_despite_external_demand=True)
    mesh.queue("waits", priority=1.0, class_key=KEY, cpu=1, gpu=2)
    mesh.observe(node("n0", cpu=8, gpu=2, others=None))
    mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=1)
    mesh.leave("low0")
    mesh.observe(node("n0", cpu=8, gpu=2, others=amount(gpu=2)))
    refused = fail_for_room(mesh, "high")
    assert refused.reason == "cluster_out_of_resources"
    assert (refused.restarted, refused.requeued, refused.not_restarted) == ((), ("low0",), ())
    assert mesh.waiting() == ["low0", "waits"]
    assert mesh.state.queue.by_id["low0"].attempts.preemptions == 1
    assert differences(mesh.state, mesh.refolded()) == []


def lost_room(mesh, *others):
    """The refusal of a task for which low0 was evicted, and whose room external work has got."""
    mesh.observe(node("n0", cpu=8, gpu=2, others=amount(gpu=2)), *others)
    return fail_for_room(mesh, "high")


def test_a_victim_whose_id_a_task_has_that_starts_does_not_join_the_queue():
    mesh, other = full(), node("n1", cpu=8, gpu=2)
    mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=1)
    mesh.leave("low0")
    mesh.observe(node("n0", cpu=8, gpu=2), other)
    mesh.submit("low0", priority=2.0, class_key=KEY, cpu=1, gpu=2)
    assert lost_room(mesh, other).not_restarted == ("low0",)
    assert mesh.waiting() == []


def test_nor_does_one_whose_parent_has_ended():
    mesh = full()
    mesh.run("parent", priority=9.0, class_key=KEY, cpu=1)
    mesh.delete("low0")
    mesh.leave("low0")
    mesh.submit("low0", priority=1.0, class_key=KEY, parent="parent", cpu=1, gpu=2)
    mesh.report("low0")
    mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=1)
    mesh.leave("low0")
    mesh.delete("parent")
    mesh.leave("parent")
    assert lost_room(mesh).not_restarted == ("low0",)
    assert mesh.waiting() == []


def test_a_victim_that_was_cancelled_while_it_waited_again_stays_cancelled():
    mesh = full()
    mesh.delete("low0")
    mesh.leave("low0")
    mesh.submit("low0", priority=1.0, class_key=KEY, cpu=1, gpu=2, on_preempted="requeue")
    mesh.report("low0")
    mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=1)
    mesh.leave("low0")
    assert mesh.waiting() == ["low0"]
    mesh.cancel("low0")
    assert lost_room(mesh).not_restarted == ("low0",)
    assert mesh.waiting() == []
    assert mesh.state.ended["low0"].reason == "cancelled_by_request"


def test_nobody_is_evicted_again_for_the_task_on_that_node_before_the_demand_has_ended():
    mesh = full(nodes=2, evict_despite_external_demand=True)
    mesh.see_demand(demand(gpu=1))
    mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=1)
    (victim,) = mesh.ends
    lost = mesh.state.agents[victim].node_id
    mesh.leave(victim)
    fail_for_room(mesh, "high")
    mesh.report(victim)
    mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=1)
    (other,) = mesh.ends
    assert mesh.state.agents[other].node_id != lost
    mesh.leave(other)
    fail_for_room(mesh, "high")
    mesh.report(other)
    refused = mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=1)
    assert refused.reason == "external_demand"
    assert "got the room of the last one" in refused.error
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []
    mesh.see_demand()
    mesh.submit("high", priority=9.0, class_key=KEY, cpu=1, gpu=1)
    assert len(mesh.ends) == 1


def test_a_gang_evicts_nobody_whose_room_waiting_work_would_get():
    mesh = full()
    mesh.see_demand(demand(gpu=1))
    bundles = [{"cpu": 1, "gpu": 1}] * 2
    refused = mesh.submit(
        "high", priority=9.0, bundles=bundles, payload=GangPayload(), class_key=KEY
    )
    assert refused.reason == "external_demand"
