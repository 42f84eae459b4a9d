"""Refusals in words."""

from __future__ import annotations

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.engine.messages import stimuli as s
from tests.engine.builders import Mesh, amount, node, on, pool


def test_a_refusal_says_what_is_short_in_quota_by_how_much_and_who_holds_it():
    mesh = Mesh(pool("p", cpu=4, memory=100), pool("q", cpu=9))
    mesh.run("small", cpu=1)
    mesh.run("big", cpu=3, memory=90)
    mesh.run("other", "q", cpu=9)
    refused = mesh.submit("t", cpu=2, memory=20)
    assert refused.short_quota == amount(cpu=2, memory=10)
    assert [h.agent_name for h in refused.holders] == ["big", "small"]


def test_a_refusal_says_what_the_closest_node_lacks_and_who_stands_there():
    mesh = Mesh(pool("p", cpu=99), nodes=[node("a", cpu=4), node("b", cpu=4)])
    mesh.run("on-a", cpu=4, node_id="a")
    mesh.run("on-b", cpu=3, node_id="b")
    refused = mesh.submit("t", cpu=3)
    assert refused.short_node == amount(cpu=2)
    assert [h.agent_name for h in refused.holders] == ["on-b"]


def test_at_most_ten_holders_are_named():
    mesh = Mesh(pool("p", cpu=12))
    for number in range(12):
        mesh.run(f"t{number:02}", cpu=1)
    assert len(mesh.submit("t", cpu=1).holders) == 10


def test_devices_may_be_short_where_no_sum_is():
    mesh = Mesh(pool("p", gpu=9), nodes=[node("a", gpu=2)])
    mesh.run("x", gpu=0.5, devices=on((0, 0.5)))
    mesh.run("y", gpu=0.5, devices=on((1, 0.5)))
    refused = mesh.submit("t", gpu=1)
    assert refused.reason == "preemption_failed"
    assert [h.agent_name for h in refused.holders] == ["y", "x"]


def test_with_every_node_cordoned_nobody_is_blamed():
    mesh = Mesh(pool("p", cpu=9), nodes=[node("a", cpu=4)])
    mesh.cordon("a")
    refused = mesh.submit("t", cpu=1)
    assert (refused.reason, refused.holders) == ("preemption_failed", ())


def test_the_closest_node_is_named_for_what_no_node_could_ever_have():
    mesh = Mesh(pool("p", cpu=99, gpu=9), nodes=[node("a", cpu=8), node("b", cpu=4, gpu=1)])
    refused = mesh.submit("t", cpu=9, gpu=1)
    assert refused.short_node == amount(cpu=5)
    assert "could hold cpu 9, gpu 1, even empty" in refused.error


def test_without_any_pool_the_refusals_say_so():
    mesh = Mesh()
    assert "none yet" in mesh.submit("t", "p", cpu=1).error
    assert "none yet" in mesh.submit("t", "", cpu=1).error
    assert "none yet" in mesh.cordon("a").error


def test_a_refusal_names_three_holders_and_says_that_there_are_more():
    mesh = Mesh(pool("p", cpu=5))
    for number in range(5):
        mesh.run(f"t{number}", cpu=1)
    refused = mesh.submit("u", cpu=1)
    assert "held by t4 (cpu 1), t3 (cpu 1), t2 (cpu 1), others" in refused.error


def test_a_refusal_says_which_rules_stand_against_it_where_no_priority_would_do():
    mesh = Mesh(
        pool("p", cpu=2), pool("q", cpu=4), protected_pools=("q",), nodes=[node("a", cpu=4)]
    )
    mesh.run("t", "q", cpu=3)
    refused = mesh.submit("u", cpu=2)
    assert refused.sufficient_priority is None
    assert refused.error.endswith("1 running task cannot be evicted: protected_pool")
    assert refused.hint == (
        "Ask for less, add a node, or submit it with queue=True, so that it starts when a holder ends"
    )


def test_a_refusal_points_to_the_queue_where_waiting_could_help():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=4)])
    mesh.run("t", cpu=2)
    assert "queue=True" in mesh.submit("u", cpu=2).hint
    assert "queue=True" not in mesh.submit("u", cpu=3).hint
    assert "queue=True" not in mesh.submit("u", task=False, cpu=2).hint
    groups = Mesh(pool("g", cpu=4, groups=GroupsSpec(max_dynamic=1)), nodes=[node("a", cpu=4)])
    groups.submit("t", "g", cpu=2)
    groups.make_all()
    groups.report("t")
    assert "queue=True" in groups.submit("u", "g", cpu=2).hint
    assert "queue=True" not in groups.submit("u", "g", cpu=2, more={"for_group": True}).hint


def test_a_task_that_named_no_resources_is_told_what_it_asked_for():
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("t", cpu=1)
    for more in ({}, {"may_preempt": False}):
        refused = mesh.submit("u", more={"default_resources": True, **more})
        assert refused.hint == (
            "It named no resources, so it asks for what pool 'p' gives by default: cpu 4. "
            "Name its resources"
        )


def test_a_task_that_named_no_resources_is_told_where_no_node_could_ever_hold_them():
    for spec in (pool("p", cpu=64), pool("p", cpu=64, groups=GroupsSpec(max_dynamic=1))):
        refused = Mesh(spec, nodes=[node("a", cpu=4)]).submit("u", more={"default_resources": True})
        assert refused.reason == "cluster_out_of_resources"
        assert refused.hint.startswith("It named no resources, so it asks for what pool 'p' gives")


def test_work_outside_of_the_scheduler_is_named_among_those_who_hold_the_node():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4, others=amount(cpu=3))])
    refused = mesh.submit("u", cpu=2)
    assert (
        "the closest, a, lacks cpu 1; Ray work that no task claims holds cpu 3 there"
        in refused.error
    )


def test_holders_are_named_by_their_tasks_as_their_submitter_knows_them():
    mesh = Mesh(pool("p", cpu=3))
    mesh.run("task", cpu=2)
    mesh.run("idle", task=False, cpu=1)
    assert "held by task (cpu 2), agent idle (cpu 1)" in mesh.submit("u", cpu=1).error


def test_quota_that_other_pools_have_is_no_riddle():
    mesh = Mesh(pool("p", cpu=2), pool("q", cpu=1))
    mesh.run("low", cpu=2, priority=1.0)
    mesh.handle(s.PreemptionRequested(task_id="low", end_agent=True, for_pool="q"))
    mesh.leave("low")
    told = mesh.submit("back", cpu=2, priority=1.0).error
    assert "lacks cpu 2 of the cpu 2 asked for; other pools have cpu 2 of it as a loan" in told
