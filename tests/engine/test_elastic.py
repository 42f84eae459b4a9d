"""Elastic gangs: members beyond the core come when there is room, and are given up before anything else."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Accepted, Pending, Refused
from schedulemesh.engine.state.gangs import members_running
from tests.engine.builders import Mesh, amount, differences, names, node, pool


@pytest.fixture
def mesh():
    """A pool of six CPUs on three nodes of two."""
    return Mesh(pool("p", cpu=6), nodes=[node(f"n{i}", cpu=2) for i in (1, 2, 3)])


def grown(mesh, name="g", least=2, most=4, bundle=1, **how):
    """An elastic gang whose core runs, and as many others as fit; ``bundle``: CPUs of each member."""
    given = {"priority": 1.0, "class_key": "c", **how}
    gang = GangPayload(replicas=most)
    outcome = mesh.submit(name, bundles=[{"cpu": bundle}] * least, payload=gang, **given)
    assert isinstance(outcome, Pending), outcome
    mesh.make_all()
    mesh.report(name)
    start_all(mesh)


def start_all(mesh):
    while mesh.starts:
        mesh.report(next(iter(mesh.starts)))


def running(mesh, name="g"):
    return members_running(mesh.state, name)


def check_stored(mesh):
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


def test_it_grows_to_its_most_where_there_is_room(mesh):
    grown(mesh)
    assert running(mesh) == [0, 1, 2, 3]
    assert mesh.free() == amount(cpu=2)
    check_stored(mesh)


def test_it_runs_with_its_core_where_there_is_room_for_no_more(mesh):
    mesh.run("busy", cpu=2, priority=1.0)
    mesh.run("more", cpu=2, priority=1.0)
    grown(mesh)
    assert running(mesh) == [0, 1]
    assert mesh.waiting() == ["g-2", "g-3"]
    mesh.complete("busy")
    start_all(mesh)
    assert running(mesh) == [0, 1, 2, 3]


def test_an_extra_member_knows_its_rank(mesh):
    mesh.submit("g", bundles=[{"cpu": 1}] * 2, payload=GangPayload(replicas=3), class_key="c")
    mesh.make_all()
    assert (mesh.starts["g"].rank, mesh.starts["g"].world_size) == (0, 2)
    mesh.report("g")
    assert (mesh.starts["g-2"].rank, mesh.starts["g-2"].world_size) == (2, 3)


def test_extra_members_are_given_up_before_anything_is_evicted_whole(mesh):
    mesh.run("old", cpu=2, priority=0.0)
    grown(mesh, priority=3.0)
    outcome = mesh.dry("new", priority=9.0, cpu=1)
    assert set(names(outcome.preempted)) <= {"g-2", "g-3"}
    assert len(outcome.preempted) == 1


def test_what_extra_members_cannot_free_is_taken_from_others(mesh):
    mesh.run("old", cpu=2, priority=0.0)
    grown(mesh, priority=3.0, most=3)
    mesh.run("small", cpu=1, priority=3.0)
    outcome = mesh.dry("new", priority=9.0, cpu=2)
    assert names(outcome.preempted) == ["old"]


def test_an_owner_reclaims_extra_members_before_the_core_that_holds_the_loans():
    mesh = Mesh(
        pool("own", cpu=2, lending={"cohort": "c"}),
        pool("other", cpu=2, lending={"cohort": "c"}),
        nodes=[node(f"n{i}", cpu=2) for i in (1, 2)],
    )
    mesh.run("before", "other", cpu=2, class_key="c")
    grown(mesh, pool_name="other")
    mesh.complete("before")
    start_all(mesh)
    assert running(mesh) == [0, 1, 2, 3]
    assert [share.pool_name for share in mesh.state.agents["g"].shares] == ["own"]

    mesh.submit("mine", "own", 1.0, cpu=2, class_key="c")

    incoming = mesh.state.agents["mine"].submission
    assert sorted(victim.task_id for victim in incoming.evicting) == ["g-2", "g-3"]
    assert {victim.reason for victim in incoming.evicting} == {PreemptionReason.RECLAIM}
    assert [share.pool_name for share in mesh.state.agents["g"].shares] == ["other"]


def test_a_reclaim_takes_an_extra_member_where_the_order_of_borrowers_has_the_core_first():
    mesh = Mesh(
        pool("own", cpu=4, lending={"cohort": "c"}),
        pool("other", cpu=0, lending={"cohort": "c"}),
        nodes=[node("n", cpu=4)],
    )
    grown(mesh, pool_name="other", most=3)
    mesh.now += 1000.0
    mesh.save("g")
    mesh.submit("mine", "own", 1.0, cpu=2, class_key="c")
    incoming = mesh.state.agents["mine"].submission
    assert [victim.task_id for victim in incoming.evicting] == ["g-2"]


def test_an_extra_member_that_was_given_up_returns_with_its_state(mesh):
    mesh.run("old", cpu=2, priority=9.0)
    grown(mesh)
    mesh.submit("new", priority=9.0, cpu=1)
    (victim,) = mesh.ends
    mesh.leave(victim, saved=True)
    mesh.report("new")
    assert mesh.waiting() == [victim]
    assert len(running(mesh)) == 3
    mesh.complete("new")
    assert mesh.starts[victim].state_key == f"state-{victim}"
    start_all(mesh)
    assert running(mesh) == [0, 1, 2, 3]
    check_stored(mesh)


def test_extra_members_run_by_themselves_once_as_the_core_does(mesh):
    grown(mesh, run="train", more={"request_id": "r"})
    assert set(mesh.runs) == {"g", "g-2", "g-3"}
    assert {order.method for orders in mesh.runs.values() for order in orders} == {"train"}
    mesh.run_ends("g-2", result_key="mine")
    mesh.leave("g-2")
    mesh.run_ends("g-3", reason=TaskEndReason.RUN_RAISED, error="no")
    mesh.leave("g-3")
    mesh.tick(60)
    assert running(mesh) == [0, 1]
    assert mesh.waiting() == []
    assert mesh.state.ended["g-2"].result_key == "mine"
    mesh.run_ends("g", result_key="all")
    mesh.leave("g")
    assert mesh.state.agents == {}
    check_stored(mesh)


def test_extra_members_evict_nobody(mesh):
    mesh.run("low", cpu=4, priority=0.0, more={"choose_node": False}, node_id="n1")
    grown(mesh, priority=9.0)
    mesh.tick(60)
    assert running(mesh) == [0, 1]
    assert mesh.ends == {}


def test_extra_members_end_with_the_core(mesh):
    grown(mesh, least=1, most=4)
    mesh.complete("g")
    assert set(mesh.ends) == {"g-1", "g-2", "g-3"}
    for name in sorted(mesh.ends):
        mesh.leave(name)
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    assert mesh.state.agents == {}
    assert mesh.waiting() == []
    assert mesh.free() == amount(cpu=6)


def test_those_that_wait_end_with_a_core_that_is_lost(mesh):
    mesh.run("busy", cpu=4, more={"choose_node": False}, node_id="n1")
    grown(mesh, most=6)
    assert mesh.waiting() == ["g-2", "g-3", "g-4", "g-5"]
    mesh.die("g")
    assert mesh.waiting() == []
    check_stored(mesh)


def test_a_core_that_is_evicted_takes_its_extra_members_along(mesh):
    grown(mesh, least=2, most=3, priority=1.0)
    mesh.submit("new", priority=9.0, bundles=[{"cpu": 2}] * 3, payload=GangPayload())
    assert set(mesh.ends) == {"g", "g-2"}
    for name in ("g-2", "g"):
        mesh.leave(name, saved=True)
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    assert mesh.waiting() == []
    mesh.make_all()
    mesh.report("new")
    assert set(mesh.state.agents) == {"new"}


def test_a_lost_extra_member_is_started_again_after_a_while(mesh):
    grown(mesh, most=3)
    mesh.die("g-2")
    assert running(mesh) == [0, 1]
    assert mesh.waiting() == ["g-2"]
    mesh.tick(5)
    assert "g-2" not in mesh.starts
    mesh.tick(60)
    start_all(mesh)
    assert running(mesh) == [0, 1, 2]


def test_extra_members_that_wait_do_not_block_a_strict_pool():
    mesh = Mesh(nodes=[node("n1", cpu=4), node("n2", cpu=2)])
    mesh.resize(msgspec.structs.replace(pool("p", cpu=6), queueing="strict"))
    mesh.run("busy", cpu=2, node_id="n2", more={"choose_node": False})
    grown(mesh, least=1, most=2, priority=9.0, bundle=3)
    assert mesh.waiting() == ["g-1"]
    mesh.queue("next", priority=5.0, cpu=1)
    mesh.tick()
    assert list(mesh.starts) == ["next"]


def test_a_task_that_joins_a_strict_pool_passes_extra_members_that_wait():
    mesh = Mesh(nodes=[node("n1", cpu=4), node("n2", cpu=2)])
    mesh.resize(msgspec.structs.replace(pool("p", cpu=6), queueing="strict"))
    mesh.run("busy", cpu=2, node_id="n2", more={"choose_node": False}, priority=0.0)
    grown(mesh, least=1, most=2, priority=9.0, bundle=3)
    assert mesh.waiting() == ["g-1"]
    assert isinstance(mesh.dry("small", priority=5.0, cpu=1), Accepted)
    assert mesh.queue("next", priority=5.0, cpu=2, class_key="c").position == 0
    assert list(mesh.ends) == ["busy"], "it evicts at once"


def test_extra_members_that_wait_do_not_explain_why_another_task_does():
    mesh = Mesh(nodes=[node("n1", cpu=4), node("n2", cpu=2)])
    mesh.resize(msgspec.structs.replace(pool("p", cpu=6), queueing="strict"))
    mesh.run("busy", cpu=2, node_id="n2", more={"choose_node": False}, priority=9.0)
    grown(mesh, least=1, most=2, priority=9.0, bundle=3)
    mesh.queue("next", priority=5.0, cpu=2)
    assert mesh.waiting() == ["g-1", "next"]
    assert mesh.engine.explain("next", mesh.now).reason == "insufficient_quota"


def test_names_of_extra_members_are_taken(mesh):
    mesh.run("g-3", cpu=1)
    outcome = mesh.submit("g", bundles=[{"cpu": 1}] * 2, payload=GangPayload(replicas=4))
    assert isinstance(outcome, Refused)
    assert outcome.reason is Reason.DUPLICATE_AGENT


def test_extra_members_end_with_a_lost_core_that_is_started_again(mesh):
    mesh.run("busy", cpu=4, more={"choose_node": False}, node_id="n1")
    grown(mesh, most=4, run="train", retries=1)
    assert mesh.waiting() == ["g-2", "g-3"]
    mesh.die("g")
    assert (mesh.waiting(), mesh.starts, len(mesh.makes)) == ([], {}, 1)
    assert list(mesh.state.running.by_id) == ["busy", "g"]
    check_stored(mesh)


def test_an_extra_member_that_was_evicted_in_vain_does_not_return_without_its_core(mesh):
    mesh.run("busy", cpu=2, priority=9.0)
    grown(mesh)
    mesh.submit("new", priority=5.0, cpu=2)
    assert set(mesh.ends) == {"g-2", "g-3"}
    mesh.cancel("g")
    mesh.leave("g")
    mesh.leave("g-2")
    mesh.leave("g-3")
    mesh.fail("new")
    assert (mesh.starts, mesh.waiting()) == ({}, [])
    assert set(mesh.state.agents) == {"busy"}
    check_stored(mesh)


# before anybody else, by every means


def saving(mesh, name, **how):
    """A task or gang whose tasks save their states and return, with its extra members."""
    mesh.queue(name, class_key="c", on_preempted="requeue", **how)
    mesh.make_all()
    while mesh.starts:
        mesh.report(next(iter(mesh.starts)), capabilities=("save_state",))


def elastic(mesh):
    """A gang of two GPUs that may have more, and then a task of one GPU, which has started last."""
    saving(mesh, "g", bundles=[{"gpu": 1}] * 2, payload=GangPayload(replicas=3), priority=1.0)
    mesh.now += 1.0
    saving(mesh, "solo", gpu=1, priority=1.0)


def evicted_for(mesh, name):
    incoming = mesh.state.agents[name].submission
    return [(victim.task_id, victim.reason.value) for victim in incoming.evicting]


def test_the_order_of_the_queue_evicts_extra_members_first():
    mesh = Mesh(pool("p", gpu=4), nodes=[node("n", gpu=4)])
    mesh.order_by(order="two_level_las", las_preempts=True, las_threshold_gpu_hours=0.5)
    elastic(mesh)
    mesh.now += 3 * 3600.0
    mesh.queue("short", gpu=1, priority=1.0)
    mesh.tick(1)
    assert evicted_for(mesh, "short") == [("g-2", "attained_service")]


def test_shorter_tasks_evict_extra_members_first():
    mesh = Mesh(pool("p", gpu=4), nodes=[node("n", gpu=4)])
    mesh.order_by(order="shortest_remaining", shortest_preempts=True)
    elastic(mesh)
    mesh.queue("short", gpu=1, priority=1.0, duration=10.0)
    mesh.tick(1)
    assert evicted_for(mesh, "short") == [("g-2", "more_left")]


def test_an_exchange_of_loans_evicts_extra_members_first():
    """The loans are held by a task on one node, the room that the owner needs by others."""
    cohort = {"cohort": "c"}
    mesh = Mesh(
        pool("own", gpu=4, lending=cohort),
        pool("p", gpu=4, lending=cohort),
        nodes=[node("a", gpu=4), node("b", gpu=4)],
    )
    elastic(mesh)
    saving(mesh, "loan", gpu=2, priority=1.0)
    saving(mesh, "mine", pool_name="own", gpu=2, priority=1.0)
    assert "own" in {share.pool_name for share in mesh.state.agents["loan"].shares}
    assert {share.pool_name for share in mesh.state.agents["g-2"].shares} == {"p"}
    mesh.submit("more", "own", 1.0, gpu=1, class_key="c")
    assert {share.pool_name for share in mesh.state.agents["g-2"].shares} == {"own"}
    assert evicted_for(mesh, "more") == [("g-2", "reclaim")]


def test_moves_concern_extra_members_first():
    """On two nodes a task of one GPU keeps three from a task of four; either could move to the other node."""
    mesh = Mesh(
        pool("p", gpu=12), nodes=[node(name, gpu=4) for name in "abc"], defragment_after_s=60.0
    )
    mesh.run("before", gpu=3)
    saving(mesh, "g", bundles=[{"gpu": 1}] * 2, payload=GangPayload(replicas=3))
    mesh.run("beside", gpu=2)
    mesh.run("after", gpu=3)
    mesh.now += 1.0
    saving(mesh, "solo", gpu=1)
    nodes = {name: agent.node_id for name, agent in mesh.state.agents.items()}
    assert nodes["g-2"] == nodes["before"] != nodes["solo"] == nodes["after"]
    mesh.complete("before")
    mesh.complete("after")
    mesh.now += 61.0
    mesh.queue("large", gpu=4)
    mesh.tick(1)
    assert evicted_for(mesh, "large") == [("g-2", "defragmented")]


def test_what_an_extra_member_has_started_ends_with_the_gang(mesh):
    grown(mesh)
    mesh.run("child", cpu=1, parent="g-2")
    mesh.queue("waits", cpu=6, parent="child")
    mesh.cancel("g")
    assert {name: mesh.state.ended[name].reason for name in ("child", "waits")} == dict.fromkeys(
        ("child", "waits"), TaskEndReason.PARENT_ENDED
    )
    assert differences(mesh.state, mesh.rewritten()) == []


GPUS = [node(f"n{i}", cpu=2, gpu=2) for i in (1, 2, 3)]


def limited(**limits):
    """An elastic gang of two and two extra members of a GPU each, in a pool of these limits in time."""
    mesh = Mesh(msgspec.structs.replace(pool("p", cpu=6, gpu=6), **limits), nodes=GPUS)
    mesh.submit(
        "g",
        bundles=[{"cpu": 1, "gpu": 1}] * 2,
        payload=GangPayload(replicas=4),
        class_key="c",
        limits={"max_run_s": 7200.0},
    )
    mesh.make_all()
    mesh.report("g")
    start_all(mesh)
    assert running(mesh) == [0, 1, 2, 3]
    return mesh


def test_extra_members_run_for_as_long_as_their_core():
    mesh = limited(default_max_run_s=3600.0)
    mesh.tick(3600.0)
    assert mesh.ends == {}
    mesh.handle(s.TimeLimitRequested(task_id="g", max_run_s=9000.0))
    mesh.tick(3600.0)
    assert mesh.ends == {}
    mesh.tick(1800.0)
    assert sorted(mesh.ends) == ["g", "g-2", "g-3"]


def test_a_gang_is_idle_where_no_member_uses_its_gpus():
    mesh = limited(idle_s=60.0)
    mesh.now += 60.0
    extras = tuple((name, mesh.now - 60.0) for name in ("g-2", "g-3"))
    core = (("g", mesh.now - 60.0),)
    for unused in (extras, core, extras[:1] + core):
        mesh.handle(s.AgentsMeasured(unused=unused))
    assert mesh.told_facts("IdleLimitNear") == []
    mesh.handle(s.AgentsMeasured(unused=extras + core))
    assert list(mesh.state.running.idle_warned) == ["g"]
    mesh.now += 60.0
    mesh.handle(s.AgentsMeasured(unused=extras + core))
    assert sorted(mesh.ends) == ["g", "g-2", "g-3"]


def test_extra_members_have_the_priority_of_their_core():
    mesh = limited()
    mesh.cancel("g-3")
    mesh.leave("g-3")
    assert "g-3" in mesh.state.queue.by_id
    mesh.change("g", priority=2.0)
    tasks = (*mesh.state.running.by_id.values(), *mesh.state.queue.by_id.values())
    assert {task.spec.task_id: task.spec.priority for task in tasks} == dict.fromkeys(
        ("g", "g-2", "g-3"), 2.0
    )
    assert differences(mesh.state, mesh.rewritten()) == []
