"""Drains: nothing new starts, what runs is saved and moved, and progress can be seen."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.payloads import SINGLE_PROCESS, GangPayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Change
from schedulemesh.engine.lifecycle.drain import agents_of
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import AgentEnded
from schedulemesh.engine.messages.outcomes import Accepted, Done, Queued, Refused
from tests.engine.builders import Mesh, amount, differences, node, pool, shape

NODES = (node("a", cpu=4), node("b", cpu=4))


def mesh_of(*pools, nodes=NODES, **policy):
    mesh = Mesh(*(pools or (pool("p", cpu=8), pool("q", cpu=8))), nodes=nodes)
    mesh.policy(**policy)
    return mesh


def start(mesh, name, pool_name="p", *, duration=None, on_preempted="", cpu=4, class_key="c"):
    """Start a task on the node that has room, and give its name."""
    stimulus = mesh.submission(
        name, pool_name, cpu=cpu, duration=duration, class_key=class_key, more={"queue": True}
    )
    task = msgspec.structs.replace(stimulus.task, on_preempted=on_preempted)
    mesh.handle(msgspec.structs.replace(stimulus, task=task))
    mesh.report(name)
    return mesh.state.agents[name].node_id


def drain(mesh, drained=True, deadline=None, **what):
    stimulus = s.DrainRequested(drained=drained, deadline_s=deadline, client="host:1", **what)
    outcome = mesh.handle(stimulus).outcome
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []
    return outcome


def left(mesh):
    """The agents that each drain waits for."""
    return [agents_of(mesh.state, found) for found in mesh.state.drains]


def test_a_task_on_a_drained_node_is_saved_and_starts_again_on_another():
    mesh = mesh_of()
    where = start(mesh, "t")
    assert drain(mesh, node_id=where) == Done()
    assert left(mesh) == [["t"]]
    mesh.leave("t", saved=True)
    assert left(mesh) == [[]]
    order = mesh.starts["t"]
    assert (order.node_id != where, order.state_key) == (True, "state-t")
    record = mesh.state.evictions.of_task("t")
    assert (record.reason, record.client, record.requeued) == ("drained", "host:1", True)
    mesh.report("t")
    assert mesh.state.running.by_id["t"].attempts.preemptions == 0, "a drain is no preemption"


def test_nothing_new_starts_on_a_drained_node_until_the_drain_ends():
    mesh = mesh_of()
    drain(mesh, node_id="a")
    assert start(mesh, "t") == "b"
    assert mesh.dry("u", cpu=4).reason == "preemption_failed"
    assert mesh.cordon("a", False).reason == "node_draining"
    assert drain(mesh, drained=False, node_id="a") == Done()
    assert isinstance(mesh.dry("u", cpu=4), Accepted)
    assert drain(mesh, drained=False, node_id="a").change is Change.UNCHANGED


def test_a_node_that_was_closed_before_stays_closed_after_the_drain():
    mesh = mesh_of()
    mesh.cordon("a")
    drain(mesh, node_id="a")
    drain(mesh, drained=False, node_id="a")
    assert mesh.state.cluster.nodes["a"].cordoned


def test_a_task_that_cannot_be_started_again_or_says_drop_is_kept_on_record():
    mesh = mesh_of()
    nodes = {start(mesh, "dropped", on_preempted="drop"), start(mesh, "opaque", class_key="")}
    for node_id in nodes:
        drain(mesh, node_id=node_id)
    for name in ("dropped", "opaque"):
        mesh.leave(name, saved=True)
        assert mesh.state.preempted[name].state_key == f"state-{name}"
    assert mesh.state.queue.by_id == {}


def test_with_a_deadline_what_ends_in_time_may_finish():
    mesh = mesh_of(save_timeout=20.0, cancel_timeout=10.0)
    where = start(mesh, "quick", cpu=1, duration=50.0)
    assert start(mesh, "long", cpu=1, duration=500.0) == where
    assert start(mesh, "unknown", cpu=1) == where
    drain(mesh, node_id=where, deadline=100.0)
    assert sorted(mesh.ends) == ["long", "unknown"]
    mesh.tick(69.0)
    assert "quick" not in mesh.ends
    mesh.tick(1.0)
    assert "quick" in mesh.ends, "there is just time to save and cancel it"


def test_an_agent_without_tasks_stays_unless_there_is_a_deadline():
    mesh = mesh_of(save_timeout=20.0, cancel_timeout=10.0)
    mesh.run("idle", cpu=4, task=False)
    where = mesh.state.agents["idle"].node_id
    drain(mesh, node_id=where)
    mesh.tick(1000.0)
    assert mesh.ends == {}
    drain(mesh, node_id=where, deadline=40.0)
    mesh.tick(10.0)
    assert "idle" in mesh.ends


def test_an_agent_that_was_starting_is_evicted_once_it_runs():
    mesh = mesh_of()
    mesh.submit("t", cpu=4, class_key="c")
    where = mesh.state.agents["t"].node_id
    drain(mesh, node_id=where)
    assert mesh.ends == {}
    mesh.report("t")
    mesh.tick(1.0)
    assert "t" in mesh.ends


def test_in_a_drained_pool_tasks_wait_until_the_drain_ends():
    mesh = mesh_of()
    start(mesh, "t", cpu=1)
    start(mesh, "other", "q", cpu=1)
    drain(mesh, pool_name="p")
    assert list(mesh.ends) == ["t"], "other pools are not affected"
    mesh.leave("t", saved=True)
    assert list(mesh.state.queue.by_id) == ["t"]
    assert mesh.dry("u", cpu=1).reason == "pool_draining"
    assert isinstance(mesh.submit("u", cpu=1, more={"queue": True}), Queued)
    mesh.tick(60.0)
    assert mesh.starts == {}
    drain(mesh, drained=False, pool_name="p")
    assert set(mesh.starts) == {"t", "u"}


def test_a_task_that_names_no_pool_avoids_one_that_is_drained():
    mesh = mesh_of(pool("p", cpu=16), pool("q", cpu=8))
    drain(mesh, pool_name="p")
    for name in ("at-once", "may-wait"):
        mesh.submit(name, "", cpu=1, more={"queue": name == "may-wait"})
        assert mesh.state.agents[name].spec.pool_name == "q"


def test_groups_that_nobody_uses_leave_a_drained_node():
    keeps = GroupsSpec(reserved=(shape({"cpu": 2}),))
    mesh = mesh_of(pool("p", cpu=8, groups=keeps))
    mesh.make_all()
    (group,) = mesh.state.groups.by_id.values()
    (where,) = group.node_ids
    drain(mesh, node_id=where)
    assert mesh.removes == {group.group_id}
    mesh.remove(group.group_id)
    mesh.tick(1.0)
    (again,) = mesh.state.groups.by_id.values()
    assert again.node_ids != (where,)


def report(node_id, **more):
    return NodeReport(node_id=node_id, total=amount(cpu=4), **more)


def test_a_node_that_ray_drains_is_drained_until_ray_stops():
    mesh = mesh_of(save_timeout=20.0, cancel_timeout=10.0)
    where = start(mesh, "t", duration=20.0)
    other = "b" if where == "a" else "a"
    mesh.observe(report(where, draining=True, drain_deadline=mesh.now + 100.0), report(other))
    assert mesh.state.cluster.nodes[where].cordoned
    assert mesh.ends == {}, "it ends in time"
    mesh.observe(report(where, draining=True, drain_deadline=mesh.now + 10.0), report(other))
    mesh.tick(0.0)
    assert "t" in mesh.ends
    assert drain(mesh, drained=False, node_id=where).reason == "drained_by_ray"
    mesh.observe(report(where), report(other))
    assert (len(mesh.state.drains), mesh.state.cluster.nodes[where].cordoned) == (0, False)


def test_a_drain_ends_with_its_node():
    mesh = mesh_of()
    drain(mesh, node_id="a")
    mesh.observe(NODES[1])
    assert len(mesh.state.drains) == 0
    assert differences(mesh.state, mesh.refolded()) == []


@pytest.mark.parametrize(
    ("what", "reason"),
    [({"node_id": "nowhere"}, "node_not_found"), ({"pool_name": "none"}, "pool_not_found")],
)
def test_what_does_not_exist_is_not_drained(what, reason):
    outcome = drain(mesh_of(), **what)
    assert isinstance(outcome, Refused)
    assert outcome.reason == reason


@pytest.mark.parametrize("taken", ["runs", "waits"])
def test_an_id_that_is_taken_is_refused_in_a_drained_pool_too(taken):
    mesh = mesh_of()
    start(mesh, "runs", "q")
    drain(mesh, pool_name="p")
    mesh.queue("waits", cpu=1)
    assert mesh.queue(taken, cpu=1).reason in ("duplicate_task", "duplicate_agent")
    assert mesh.waiting() == ["waits"]


def test_what_is_larger_than_a_drained_pool_does_not_wait_for_it():
    mesh = mesh_of()
    drain(mesh, pool_name="p")
    assert mesh.queue("t", cpu=9).reason == "exceeds_pool_capacity"


def test_a_task_that_is_being_evicted_without_its_agent_is_not_evicted_twice():
    mesh = mesh_of()
    where = start(mesh, "t")
    mesh.announce("u", "t")
    mesh.preempt(task_id="t")
    drain(mesh, node_id=where)
    reasons = {t: task.phase.reason for t, task in mesh.state.running.by_id.items()}
    assert reasons == {"t": "manual", "u": "drained"}
    mesh.leave("t")
    assert left(mesh) == [[]]


@pytest.mark.parametrize("bundles", [(), ({"cpu": 2}, {"cpu": 2})])
def test_an_incoming_task_does_not_start_on_a_node_that_was_drained_while_it_waited(bundles):
    mesh = mesh_of(pool("p", cpu=8))
    for name in ("v1", "v2"):
        start(mesh, name, on_preempted="requeue")
    payload = GangPayload(strategy="STRICT_PACK") if bundles else SINGLE_PROCESS
    mesh.queue("urgent", priority=9.0, cpu=4, class_key="c", bundles=bundles, payload=payload)
    victim, where = next((name, mesh.state.agents[name].node_id) for name in mesh.ends)
    drain(mesh, node_id=where)
    mesh.leave(victim, saved=True)
    assert (mesh.starts, mesh.makes) == ({}, {})
    mesh.tick(3.0)
    (other,) = mesh.ends
    mesh.leave(other, saved=True)
    mesh.make_all()
    assert mesh.starts["urgent"].agent.name == "urgent"
    assert mesh.state.agents["urgent"].node_id != where


def test_an_incoming_task_does_not_start_in_a_pool_that_was_drained_while_it_waited():
    mesh = mesh_of(pool("p", cpu=8))
    for name in ("v1", "v2"):
        start(mesh, name, on_preempted="requeue")
    mesh.queue("urgent", priority=9.0, cpu=4, class_key="c")
    drain(mesh, pool_name="p")
    for name in tuple(mesh.ends):
        mesh.leave(name, saved=True)
    mesh.tick(3.0)
    assert (mesh.starts, sorted(mesh.waiting())) == ({}, ["urgent", "v1", "v2"])
    ended = [f for f in mesh.facts if isinstance(f, AgentEnded) and f.agent_name == "urgent"]
    assert [str(f.error) for f in ended] == [
        "pool 'p' is being drained; it waits in the queue again"
    ]
    drain(mesh, drained=False, pool_name="p")
    assert "urgent" in mesh.starts
