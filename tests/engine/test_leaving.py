"""What is leaving and unclaimed is used before anybody else is evicted."""

from __future__ import annotations

import pytest

from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Pending, Refused
from schedulemesh.engine.state.agents import Starting, Waiting
from tests.engine.builders import Mesh, amount, leaving_for, node, pool, shape


def evicted(mesh):
    """The tasks that are being evicted, or were."""
    running = mesh.state.running.by_id.values()
    going = {task.spec.task_id for task in running if task.phase.value == "preempting"}
    return sorted(going | set(mesh.state.preempted))


def gpu_nodes(count, pools=(("p", 64, 64),)):
    """Nodes of 8 GPUs, each with a training of 8 GPUs in the first pool."""
    mesh = Mesh(
        *(pool(name, cpu=cpu, gpu=gpu) for name, cpu, gpu in pools),
        nodes=[node(f"n{i}", cpu=64, gpu=8) for i in range(count)],
    )
    for i in range(count):
        mesh.run(f"training{i}", pools[0][0], 1.0, cpu=8, gpu=8, class_key="c")
        mesh.now += 1.0
    return mesh


def complete(mesh, task_id):
    """The task is done, and its agent is being stopped."""
    mesh.handle(s.TaskFinished(task_id=task_id, end_agent=True))


def restart(mesh):
    """The supervisor comes back from its snapshot."""
    mesh.engine.state = mesh.rewritten()


def all_leave(mesh):
    for name in sorted(mesh.ends):
        mesh.leave(name, saved=True)
    mesh.make_all()
    for name in sorted(mesh.starts):
        mesh.report(name)


@pytest.mark.parametrize("how", ["submit", "queue"])
def test_a_burst_of_urgent_tasks_evicts_as_many_as_it_needs(how):
    mesh = gpu_nodes(8)
    for i in range(8):
        getattr(mesh, how)(f"urgent{i}", priority=9.0, cpu=1, gpu=1, class_key="c")
        mesh.tick(1.0)
    assert len(evicted(mesh)) == 1
    all_leave(mesh)
    assert len({mesh.state.agents[f"urgent{i}"].node_id for i in range(8)}) == 1
    assert {mesh.state.running.by_id[f"urgent{i}"].phase.value for i in range(8)} == {"running"}


def test_the_ninth_evicts_another():
    mesh = gpu_nodes(8)
    for i in range(9):
        mesh.submit(f"urgent{i}", priority=9.0, cpu=1, gpu=1, class_key="c")
    assert len(evicted(mesh)) == 2
    all_leave(mesh)
    assert all(mesh.state.agents[f"urgent{i}"].node_id for i in range(9))


def test_four_tasks_of_one_cpu_evict_two_of_two():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("a", cpu=8)])
    for i in range(4):
        mesh.run(f"low{i}", priority=1.0, cpu=2, class_key="c")
    for i in range(4):
        mesh.submit(f"high{i}", priority=9.0, cpu=1, class_key="c")
    assert len(evicted(mesh)) == 2
    all_leave(mesh)
    assert all(isinstance(mesh.state.agents[f"high{i}"].phase, object) for i in range(4))
    assert not mesh.state.ledger.promises


@pytest.mark.parametrize("parts", [1, 2])
def test_what_is_claimed_is_not_given_twice(parts):
    """Two victims free three CPUs each for a task of four; the task of two takes the rest of both."""
    mesh = Mesh(pool("p", cpu=6), nodes=[node("a", cpu=6)])
    for name in ("v1", "v2"):
        mesh.run(name, priority=1.0, cpu=3, class_key="c")
    mesh.submit("four", priority=9.0, cpu=4, class_key="c")
    mesh.submit("two", priority=5.0, cpu=2, class_key="c")
    assert mesh.submit("more", priority=9.0, cpu=1, class_key="c").reason == "preemption_failed"
    assert leaving_for(mesh.state.agents["two"]) == ["v1", "v2"]
    order = ["v1", "v2"] if parts == 1 else ["v2", "v1"]
    mesh.leave(order[0], saved=True)
    assert not mesh.starts
    mesh.leave(order[1], saved=True)
    assert sorted(mesh.starts) == ["four", "two"]


def test_an_agent_that_is_just_stopping_makes_an_eviction_unnecessary():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.run("done", priority=9.0, cpu=2, class_key="c")
    mesh.run("low", priority=1.0, cpu=2, class_key="c")
    complete(mesh, "done")
    mesh.submit("high", priority=9.0, cpu=2, class_key="c")
    assert evicted(mesh) == []
    assert leaving_for(mesh.state.agents["high"]) == ["done"]
    mesh.leave("done")
    assert isinstance(mesh.state.agents["high"].phase, Starting)


def test_the_victims_of_a_cancelled_task_are_for_the_next_one():
    mesh = gpu_nodes(2, (("p", 64, 16),))
    mesh.submit("gone", priority=9.0, cpu=1, gpu=8, class_key="c")
    (victim,) = evicted(mesh)
    mesh.delete("gone")
    mesh.submit("next", priority=9.0, cpu=1, gpu=8, class_key="c")
    assert evicted(mesh) == [victim]
    mesh.leave(victim, saved=True)
    assert mesh.starts["next"].node_id == mesh.state.agents["next"].node_id


def test_nobody_overtakes_a_claim_on_what_is_leaving():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.run("low", priority=1.0, cpu=4, class_key="c")
    mesh.submit("first", priority=5.0, cpu=2, class_key="c")
    mesh.submit("second", priority=5.0, cpu=2, class_key="c")
    refused = mesh.submit("third", priority=9.0, cpu=2, class_key="c")
    assert isinstance(refused, Refused)
    mesh.leave("low", saved=True)
    assert sorted(mesh.starts) == ["first", "second"]


def test_what_is_leaving_may_complete_what_one_more_eviction_frees():
    mesh = Mesh(pool("p", cpu=6), nodes=[node("a", cpu=6)])
    for name in ("v1", "v2", "v3"):
        mesh.run(name, priority=1.0, cpu=2, class_key="c")
        mesh.now += 1.0
    mesh.delete("v1")
    mesh.submit("high", priority=9.0, cpu=4, class_key="c")
    assert evicted(mesh) == ["v3"]
    assert leaving_for(mesh.state.agents["high"]) == ["v1", "v3"]
    mesh.leave("v1")
    mesh.leave("v3", saved=True)
    assert list(mesh.starts) == ["high"]


def test_a_task_that_may_evict_nobody_gets_what_is_leaving_if_nobody_waits_for_it():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.run("done", priority=5.0, cpu=4, class_key="c")
    complete(mesh, "done")
    assert isinstance(mesh.submit("next", priority=0.0, cpu=2, class_key="c"), Pending)
    mesh.queue("waits", priority=2.0, cpu=4, class_key="c")
    assert isinstance(mesh.submit("later", priority=0.0, cpu=2, class_key="c"), Refused)


def test_a_gang_takes_what_is_leaving_on_several_nodes():
    mesh = gpu_nodes(3, (("p", 64, 24),))
    mesh.delete("training0")
    mesh.delete("training1")
    bundles = [{"cpu": 1, "gpu": 8}, {"cpu": 1, "gpu": 8}]
    mesh.submit("gang", priority=9.0, bundles=bundles, payload=GangPayload(), class_key="c")
    assert evicted(mesh) == []
    mesh.leave("training0")
    assert not mesh.makes
    mesh.leave("training1")
    assert len(mesh.makes) == 1


def test_a_task_uses_the_rest_of_a_gang_that_leaves():
    """Its group is removed for the first one; the second one waits for the same group."""
    mesh = Mesh(pool("p", cpu=64, gpu=16), nodes=[node(f"n{i}", cpu=64, gpu=8) for i in (1, 2)])
    bundles = [{"cpu": 1, "gpu": 8}, {"cpu": 1, "gpu": 8}]
    mesh.submit("gang", priority=1.0, bundles=bundles, payload=GangPayload(), class_key="c")
    mesh.make_all()
    mesh.report("gang")
    for name in ("a", "b", "c"):
        mesh.submit(name, priority=9.0, cpu=1, gpu=4, class_key="c")
    assert evicted(mesh) == ["gang"]
    mesh.delete("a")
    mesh.submit("d", priority=9.0, cpu=1, gpu=4, class_key="c")
    mesh.leave("gang", saved=True)
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    assert sorted(mesh.starts) == ["b", "c", "d"]


def test_a_group_that_leaves_is_taken_as_it_is():
    mesh = Mesh(pool("p", cpu=4, groups=GroupsSpec(max_dynamic=1)), nodes=[node("a", cpu=4)])
    mesh.submit("low", priority=1.0, cpu=4, class_key="c")
    mesh.make_all()
    mesh.report("low")
    mesh.delete("low")
    mesh.submit("next", priority=9.0, cpu=4, class_key="c")
    mesh.leave("low")
    assert mesh.starts["next"].group_id == "p-pg-1"
    assert not mesh.makes


def test_a_new_group_where_another_agent_leaves_is_made_rather_than_a_victims_taken():
    mesh = Mesh(
        pool("p", cpu=4, groups=GroupsSpec(max_dynamic=2)),
        pool("plain", cpu=4),
        nodes=[node("a", cpu=4)],
    )
    mesh.run("done", "plain", cpu=2, class_key="c")
    mesh.submit("low", priority=1.0, cpu=2, class_key="c")
    mesh.make_all()
    mesh.report("low")
    mesh.delete("done")
    mesh.submit("high", priority=9.0, cpu=2, class_key="c", more={"for_group": True})
    assert evicted(mesh) == []
    assert leaving_for(mesh.state.agents["high"]) == ["done"]
    mesh.leave("done")
    mesh.make_all()
    assert mesh.starts["high"].group_id == "p-pg-2"


def test_a_victim_is_sought_for_the_quota_alone_where_a_leaving_agent_leaves_its_group():
    """What ``done`` frees of the quota is claimed by ``wide``; its reserved group is not."""
    groups = GroupsSpec(reserved=(shape({"cpu": 2}),), max_dynamic=5, strategy="STRICT_SPREAD")
    mesh = Mesh(pool("p", cpu=4, groups=groups), nodes=[node("a", cpu=2)])
    mesh.make_all()
    mesh.run("done", priority=9.0, cpu=2, class_key="c")
    mesh.observe(node("a", cpu=2), node("b", cpu=2))
    mesh.submit("low", priority=1.0, cpu=2, class_key="c")
    mesh.make_all()
    mesh.report("low")
    mesh.observe(*(node(name, cpu=2) for name in "ab"), *(node(name, cpu=1) for name in "cd"))
    mesh.delete("done")
    mesh.submit("wide", priority=9.0, bundles=[{"cpu": 1}, {"cpu": 1}], class_key="c")
    mesh.cordon("b")
    mesh.submit("high", priority=9.0, cpu=2, class_key="c")
    assert evicted(mesh) == ["low"]
    assert leaving_for(mesh.state.agents["high"]) == ["done", "low"]
    all_leave(mesh)
    assert mesh.state.agents["high"].group_id == "p-pg-1"
    assert mesh.state.running.by_id["wide"].phase.value == "running"


def test_quota_of_another_pool_is_lent_where_the_rules_allow_the_eviction():
    mesh = Mesh(
        pool("q", cpu=64, gpu=16),
        pool("p", cpu=64, gpu=8),
        nodes=[node(f"n{i}", cpu=64, gpu=8) for i in range(3)],
    )
    for name, of in (("q1", "q"), ("q2", "q"), ("own", "p")):
        mesh.run(name, of, 1.0 if of == "q" else 9.0, cpu=8, gpu=8, class_key="c")
    for i in range(3):
        mesh.submit(f"urgent{i}", "p", 9.0, cpu=1, gpu=2, class_key="c")
    assert len(evicted(mesh)) == 1
    assert isinstance(mesh.submit("later", "p", 2.0, cpu=1, gpu=2, class_key="c"), Refused)
    all_leave(mesh)
    assert mesh.state.ledger.accounts["p"].borrowed.gpu == 60_000
    assert mesh.state.ledger.accounts["q"].free.gpu == 20_000


def test_an_owner_takes_what_a_reclaim_frees_beyond_what_it_needed():
    mesh = Mesh(
        pool("own", cpu=8, gpu=8, lending={"cohort": "c"}),
        pool("other", cpu=8, gpu=8, lending={"cohort": "c"}),
        nodes=[node(f"n{i}", cpu=8, gpu=8) for i in (1, 2)],
    )
    for i in range(4):
        mesh.run(f"b{i}", "other", 50.0, cpu=1, gpu=4, class_key="c")
    for i in range(4):
        mesh.submit(f"o{i}", "own", 1.0, cpu=1, gpu=1, class_key="c")
    assert len(evicted(mesh)) == 1


def test_quota_that_is_held_for_somebody_else_is_not_claimed():
    mesh = Mesh(pool("p", cpu=4), pool("q", cpu=4), nodes=[node("a", cpu=8)])
    mesh.run("v", priority=1.0, cpu=4, class_key="c")
    mesh.preempt(agent_name="v", end_agent=True, for_pool="q")
    assert isinstance(mesh.submit("x", priority=9.0, cpu=4, class_key="c"), Refused)
    mesh.submit("y", "q", priority=9.0, cpu=4, class_key="c")
    mesh.submit("z", "q", priority=9.0, cpu=4, class_key="c")
    assert leaving_for(mesh.state.agents["z"]) == ["v"]
    mesh.leave("v", saved=True)
    assert sorted(mesh.starts) == ["y", "z"]
    assert not mesh.state.ledger.holds


def test_claims_on_what_is_leaving_survive_a_restart():
    mesh = gpu_nodes(2, (("p", 64, 16),))
    for i in range(3):
        mesh.submit(f"urgent{i}", priority=9.0, cpu=1, gpu=2, class_key="c")
    restart(mesh)
    mesh.submit("urgent3", priority=9.0, cpu=1, gpu=2, class_key="c")
    assert len(evicted(mesh)) == 1
    mesh.submit("urgent4", priority=9.0, cpu=1, gpu=2, class_key="c")
    assert len(evicted(mesh)) == 2


def test_a_drained_nodes_quota_is_used_before_an_eviction():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=2), node("b", cpu=2), node("c", cpu=2)])
    mesh.run("x", priority=1.0, cpu=2, class_key="c")
    mesh.run("y", priority=1.0, cpu=2, class_key="c")
    mesh.handle(s.DrainRequested(node_id=mesh.state.agents["x"].node_id, drained=True))
    mesh.submit("high", priority=9.0, cpu=2, class_key="c")
    assert evicted(mesh) == ["x"]
    assert isinstance(mesh.state.agents["high"].phase, Waiting)


def test_explain_says_for_whom_the_room_is_being_made():
    mesh = gpu_nodes(2, (("p", 64, 16),))
    mesh.submit("first", priority=9.0, cpu=1, gpu=1, class_key="c")
    mesh.submit("second", priority=9.0, cpu=1, gpu=1, class_key="c")
    (victim,) = evicted(mesh)
    explained = mesh.engine.explain("second", mesh.now)
    assert f"task {victim}, which is being evicted for task 'first'" in explained.detail
    assert explained.waits_for == (victim,)


def test_a_node_that_was_lost_for_a_moment_is_held_again_by_who_waits_for_it():
    there = node("n1", cpu=4)
    mesh = Mesh(pool("p", cpu=8), nodes=[there, node("n2", cpu=1)])
    mesh.run("v", cpu=2, priority=1.0, node_id="n1")
    mesh.submit("u", cpu=4, priority=9.0)
    held = mesh.state.cluster.nodes["n1"].allocations["u"].held
    assert held == amount(cpu=2)
    mesh.observe(node("n2", cpu=1))
    mesh.observe(there, node("n2", cpu=1))
    assert mesh.state.cluster.nodes["n1"].allocations["u"].held == held
    assert mesh.submit("other", cpu=1, priority=1.0).agent_name == "other"
    assert mesh.state.agents["other"].node_id == "n2"
    mesh.slot("u")
    assert mesh.state.agents["u"].node_id == "n1"


def two_nodes(first, **stopping):
    """``stopping`` leaves the first node, where ``first`` of pool x waits for room; on the second one runs
    ``low`` of pool y, which only tasks of its own pool may evict.
    """
    mesh = Mesh(
        *(pool(name, cpu=64, gpu=16) for name in ("x", "y", "z")),
        nodes=[node("n1", cpu=64, gpu=8), node("n2", cpu=64, gpu=8)],
    )
    mesh.run("stopping", "z", 50.0, class_key="c", **(stopping or {"gpu": 8}))
    if stopping:
        mesh.run("rest", "z", 50.0, gpu=8 - stopping["gpu"], duration=1000.0)
    mesh.run("low", "y", 5.0, gpu=8, class_key="c")
    mesh.now += 1.0
    mesh.queue("first", "x", 9.0, **first)
    mesh.tick(1.0)
    mesh.handle(s.AgentDeletionRequested(agent_name="stopping"))
    mesh.tick(1.0)
    return mesh


@pytest.mark.parametrize("how", ["submit", "queue"])
def test_a_claim_does_not_overtake_the_first_task_of_another_pool(how):
    mesh = two_nodes({"gpu": 8})
    getattr(mesh, how)("later", "y", 7.0, gpu=8, class_key="c")
    assert evicted(mesh) == ["low"]
    mesh.leave("stopping")
    assert mesh.starts["first"].node_id == "n1"
    mesh.leave("low")
    assert mesh.starts["later"].node_id == "n2"


def test_a_submission_that_may_evict_nobody_is_refused_rather_than_overtake_it():
    mesh = two_nodes({"gpu": 8})
    outcome = mesh.submit("later", "z", 7.0, gpu=8, class_key="c")
    assert isinstance(outcome, Refused)
    mesh.leave("stopping")
    assert "first" in mesh.starts


@pytest.mark.parametrize("how", ["submit", "queue"])
def test_what_leaves_beyond_what_a_reserved_start_needs_may_be_claimed(how):
    mesh = two_nodes({"gpu": 4})
    getattr(mesh, how)("later", "y", 7.0, gpu=4, class_key="c")
    assert evicted(mesh) == []
    mesh.leave("stopping")
    assert set(mesh.starts) == {"first", "later"}


@pytest.mark.parametrize(("duration", "claims"), [(None, False), (100.0, True), (5000.0, False)])
def test_a_claim_may_be_over_before_a_later_reserved_start(duration, claims):
    mesh = two_nodes({"gpu": 8}, gpu=4)
    assert mesh.state.queue.by_id["first"].reservation.at == 2000.0
    mesh.queue("later", "y", 7.0, gpu=4, duration=duration, class_key="c")
    assert evicted(mesh) == ([] if claims else ["low"])


def test_an_owner_still_gets_what_it_has_lent_and_is_leaving():
    mesh = Mesh(
        pool("x", gpu=0, cpu=64),
        *(pool(name, gpu=g, cpu=64, lending={"cohort": "all"}) for name, g in (("y", 0), ("z", 8))),
        pool("w", gpu=8, cpu=64),
        nodes=[node("n1", cpu=64, gpu=8)],
    )
    mesh.run("borrower", "y", 5.0, gpu=8, class_key="c")
    mesh.now += 1.0
    mesh.queue("first", "w", 9.0, gpu=8)
    mesh.tick(1.0)
    mesh.queue("owner", "z", 1.0, gpu=8)
    assert evicted(mesh) == ["borrower"]


def test_an_owner_borrows_nothing_of_a_victim_while_its_own_quota_is_leaving():
    lending = {"cohort": "all"}
    mesh = Mesh(
        pool("owner", gpu=2, cpu=64, lending=lending),
        pool("b", gpu=1, cpu=64, lending=lending),
        pool("c", gpu=0, cpu=64, lending=lending),
        nodes=[node("n1", gpu=8, cpu=64)],
    )
    mesh.run("mixed", "b", gpu=2)
    mesh.run("done", "c", gpu=1)
    complete(mesh, "done")
    mesh.queue("t", "owner", gpu=2)
    assert leaving_for(mesh.state.agents["t"]) == ["done", "mixed"]
    all_leave(mesh)
    assert {share.pool_name for share in mesh.state.agents["t"].shares} == {"owner"}


def test_an_owner_claims_what_is_leaving_where_it_would_reclaim_behind_a_reserved_start():
    """``first`` keeps the quota of its pool, and would keep nobody from a reclaim."""
    lending = {"cohort": "all"}
    mesh = Mesh(
        *(pool(name, gpu=2, cpu=64, lending=lending) for name in ("owner", "a", "idle")),
        nodes=[node("n1", gpu=4, cpu=64)],
    )
    mesh.order_by(backfill_limit_s=0.0)
    for name in ("done", "borrower"):
        mesh.run(name, "a", gpu=2, class_key="c")
    mesh.queue("first", "owner", 9.0, gpu=4)
    mesh.tick(1)
    complete(mesh, "done")
    mesh.queue("later", "owner", gpu=1, class_key="c")
    assert leaving_for(mesh.state.agents["later"]) == ["done"]
    assert evicted(mesh) == []
    mesh.leave("done")
    assert list(mesh.starts) == ["later"]


def test_an_owner_reclaims_where_what_is_leaving_is_room_of_a_reserved_start():
    lending = {"cohort": "all"}
    mesh = Mesh(
        *(pool(n, gpu=g, cpu=64, lending=lending) for n, g in (("owner", 7), ("a", 4), ("b", 0))),
        nodes=[node("n1", gpu=4, cpu=64), node("n2", gpu=2, cpu=64)],
    )
    mesh.run("borrower", "b", gpu=2, class_key="c")
    for name in ("done", "busy"):
        mesh.run(name, "a", gpu=2, duration=100.0, class_key="c")
    mesh.queue("first", "owner", 9.0, gpu=4)
    mesh.tick(1)
    assert mesh.state.queue.by_id["first"].reservation.node_ids == ("n1",)
    complete(mesh, "done")
    mesh.queue("later", "owner", gpu=1, class_key="c")
    mesh.tick(1)
    assert evicted(mesh) == ["borrower"]


def test_a_claim_is_made_elsewhere_where_a_reserved_start_needs_the_first_place():
    mesh = Mesh(
        pool("p", gpu=64, cpu=64), nodes=[node("n1", gpu=4, cpu=64), node("n2", gpu=6, cpu=64)]
    )
    for name, node_gpus in (("busy", 2), ("done1", 2), ("service", 4), ("done2", 2)):
        mesh.run(name, priority=1.0, gpu=node_gpus, duration=100.0, class_key="c")
    first = mesh.state.agents
    assert [first[name].node_id for name in ("busy", "done1", "service", "done2")] == [
        "n1",
        "n1",
        "n2",
        "n2",
    ]
    mesh.queue("first", priority=9.0, gpu=4, more={"may_preempt": False})
    mesh.tick(1)
    assert mesh.state.queue.by_id["first"].reservation.node_ids == ("n1",)
    complete(mesh, "done1")
    complete(mesh, "done2")
    mesh.queue("later", priority=8.0, gpu=1, duration=1000.0, class_key="c")
    mesh.tick(1)
    assert evicted(mesh) == []
    assert leaving_for(mesh.state.agents["later"]) == ["done2"]


def test_a_reserved_start_counts_on_what_is_leaving():
    mesh = two_nodes({"gpu": 8})
    assert mesh.engine.explain("first", mesh.now).earliest_start == mesh.now
    assert mesh.state.queue.by_id["first"].reservation.node_ids == ("n1",)


@pytest.mark.parametrize("duration", [None, 100.0])
def test_free_room_is_left_for_who_can_start_once_something_has_left(duration):
    mesh = Mesh(*(pool(name, cpu=8) for name in "pq"), nodes=[node("a", cpu=6)])
    mesh.run("other", "q", 9.0, cpu=2, duration=1000.0)
    mesh.run("stopping", "q", 9.0, cpu=2)
    mesh.queue("first", "p", 5.0, cpu=4)
    mesh.tick(1.0)
    assert mesh.state.queue.by_id["first"].reservation.at == 2000.0
    mesh.handle(s.AgentDeletionRequested(agent_name="stopping"))
    mesh.queue("later", "p", 1.0, cpu=2, duration=duration)
    assert mesh.starts == {}
    mesh.leave("stopping")
    assert list(mesh.starts) == ["first"]


def test_what_is_claimed_of_it_is_free_when_its_claimant_ends():
    mesh = two_nodes({"gpu": 8})
    mesh.change("first", held=True)
    mesh.submit("claimant", "y", 7.0, gpu=4, duration=500.0, class_key="c")
    assert evicted(mesh) == []
    mesh.change("first", held=False)
    mesh.tick(1.0)
    assert mesh.engine.explain("first", mesh.now).earliest_start == 1003.0 + 500.0


def test_quota_that_is_leaving_is_expected_now():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("n1", cpu=64)])
    mesh.run("stopping", priority=9.0, cpu=3)
    mesh.queue("first", priority=5.0, cpu=4)
    assert mesh.engine.explain("first", mesh.now).earliest_start is None
    mesh.handle(s.AgentDeletionRequested(agent_name="stopping"))
    assert mesh.engine.explain("first", mesh.now).earliest_start == mesh.now


def test_a_group_on_nodes_that_are_being_left_is_expected_now():
    mesh = two_nodes({"bundles": [{"gpu": 4}] * 2, "payload": GangPayload()})
    assert mesh.engine.explain("first", mesh.now).earliest_start == mesh.now
    mesh.queue("later", "y", 7.0, gpu=8, class_key="c")
    assert evicted(mesh) == ["low"]
