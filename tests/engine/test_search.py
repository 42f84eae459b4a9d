"""The victim search: as few as will do, and never in vain."""

from __future__ import annotations

import pytest

from tests.engine.builders import Mesh, amount, names, node, on, pool


def evicted(mesh, name="new", pool_name="p", priority=9.0, **how):
    """Who would go for a submission; the code of the refusal where nobody would."""
    found = mesh.dry(name, pool_name, priority, **how)
    return names(found.preempted) if hasattr(found, "preempted") else found.reason


def test_nobody_goes_where_there_is_room():
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("low", priority=0.0, cpu=2)
    assert evicted(mesh, cpu=2) == []


def test_one_victim_that_is_enough_is_taken_before_several_of_higher_score():
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("small-a", priority=0.0, cpu=1)
    mesh.run("small-b", priority=0.0, cpu=1)
    mesh.run("big", priority=5.0, cpu=2)
    assert evicted(mesh, cpu=2) == ["big"]


def test_among_single_victims_the_highest_score_is_taken():
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("higher", priority=4.0, cpu=2)
    mesh.run("lower", priority=1.0, cpu=2)
    assert evicted(mesh, cpu=2) == ["lower"]


def test_where_no_single_one_is_enough_candidates_go_in_order_until_it_fits():
    mesh = Mesh(pool("p", cpu=4))
    for number in range(4):
        mesh.run(f"t{number}", priority=float(number), cpu=1)
    assert evicted(mesh, cpu=2) == ["t0", "t1"]
    assert evicted(mesh, cpu=3) == ["t0", "t1", "t2"]


def test_victims_that_turn_out_not_to_be_needed_are_given_back():
    mesh = Mesh(pool("p", cpu=6))
    mesh.run("small", priority=0.0, cpu=1)
    mesh.run("middle", priority=1.0, cpu=2)
    mesh.run("big", priority=2.0, cpu=3)
    assert evicted(mesh, cpu=5) == ["middle", "big"]


def test_a_candidate_that_frees_nothing_of_what_is_short_is_passed_over():
    mesh = Mesh(pool("p", cpu=4, memory=100))
    mesh.run("memory", priority=0.0, memory=100)
    mesh.run("cpu-a", priority=2.0, cpu=2)
    mesh.run("cpu-b", priority=3.0, cpu=2)
    assert evicted(mesh, cpu=3) == ["cpu-a", "cpu-b"]


def test_nobody_goes_where_the_incoming_agent_would_still_not_fit():
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("low", priority=0.0, cpu=2)
    mesh.run("high", priority=9.0, cpu=2)
    assert evicted(mesh, cpu=3) == "preemption_failed"
    assert mesh.ends == {}


def test_a_task_on_an_agent_that_holds_no_quota_is_no_victim():
    mesh = Mesh(pool("p", cpu=2))
    mesh.announce("elsewhere", "unknown", priority=0.0)
    mesh.run("full", priority=9.0, cpu=2)
    assert evicted(mesh, cpu=1) == "preemption_failed"
    assert mesh.evaluate(9.0).should_preempt


def test_victims_make_room_on_one_node_two_halves_of_two_nodes_are_no_room():
    mesh = Mesh(pool("p", cpu=100), nodes=[node("a", cpu=2), node("b", cpu=2)])
    mesh.run("a-low", priority=0.0, cpu=1, node_id="a")
    mesh.run("a-high", priority=9.0, cpu=1, node_id="a")
    mesh.run("b-low", priority=0.0, cpu=1, node_id="b")
    mesh.run("b-high", priority=9.0, cpu=1, node_id="b")
    assert evicted(mesh, cpu=2) == "preemption_failed"


def test_victims_make_room_on_one_device_two_halves_of_two_devices_are_no_room():
    mesh = Mesh(pool("p", cpu=9, gpu=9), nodes=[node("a", cpu=9, gpu=2)])
    for name, priority, device in [("x", 0, 0), ("y", 9, 0), ("z", 0, 1), ("w", 9, 1)]:
        mesh.run(name, priority=float(priority), gpu=0.5, devices=on((device, 0.5)))
    assert evicted(mesh, gpu=1) == "preemption_failed"
    assert evicted(mesh, gpu=0.5) == ["x"]


def test_of_two_shares_on_one_device_both_go_for_a_whole_one():
    mesh = Mesh(pool("p", gpu=9), nodes=[node("a", gpu=2)])
    for name, priority, device in [("x", 0, 0), ("y", 1, 1), ("z", 2, 1), ("w", 9, 0)]:
        mesh.run(name, priority=float(priority), gpu=0.5, devices=on((device, 0.5)))
    assert evicted(mesh, gpu=1) == ["y", "z"]


def test_free_shares_of_two_devices_need_a_victim_that_frees_a_whole_one():
    mesh = Mesh(pool("p", gpu=9), nodes=[node("a", gpu=2)])
    mesh.run("x", priority=1.0, gpu=0.5, devices=on((0, 0.5)))
    mesh.run("y", priority=0.0, gpu=0.5, devices=on((1, 0.5)))
    assert evicted(mesh, gpu=1) == ["y"]


def test_a_share_that_unlocks_a_device_is_no_bystander_where_cpu_is_short_too():
    mesh = Mesh(pool("p", cpu=9, gpu=9), nodes=[node("a", cpu=2, gpu=2)])
    mesh.run("share", priority=0.0, gpu=0.5, devices=on((0, 0.5)))
    mesh.run("other", priority=20.0, gpu=0.5, devices=on((1, 0.5)))
    mesh.run("cpu", priority=1.0, cpu=2)
    assert evicted(mesh, cpu=2, gpu=1) == ["share", "cpu"]


def test_quota_and_node_may_be_short_at_once():
    mesh = Mesh(pool("p", cpu=2), pool("q", cpu=9), nodes=[node("a", cpu=4), node("b", cpu=2)])
    mesh.run("quota", "p", priority=1.0, cpu=2, node_id="b")
    mesh.run("room-1", "q", priority=0.0, cpu=2, node_id="a")
    mesh.run("room-2", "q", priority=1.0, cpu=2, node_id="a")
    assert evicted(mesh, cpu=2) == ["room-1"]
    mesh.policy(enable_cross_pool_preemption=False)
    assert evicted(mesh, cpu=2) == ["quota"]


def test_quota_may_come_from_one_node_and_room_from_another():
    mesh = Mesh(
        pool("p", cpu=3),
        pool("q", cpu=9, memory=10),
        nodes=[node("a", cpu=4, memory=10), node("b", cpu=1)],
    )
    mesh.run("quota", "p", priority=8.0, cpu=1, node_id="b")
    mesh.run("own", "p", priority=9.0, cpu=1, node_id="a")
    mesh.run("room", "q", priority=0.0, cpu=1, memory=10, node_id="a")
    mesh.run("rest", "q", priority=9.0, cpu=2, node_id="a")
    mesh.policy(protected_pools=("q",))
    assert evicted(mesh, cpu=2) == "preemption_failed"
    mesh.policy(protected_pools=())
    assert evicted(mesh, cpu=2) == "preemption_failed"
    mesh.policy(cross_pool_priority_threshold=0.1)
    mesh.run("b-filler", "q", priority=9.0, node_id="b")
    mesh.die("rest")
    mesh.run("rest", "q", priority=9.0, cpu=1.5, node_id="a")
    assert sorted(evicted(mesh, cpu=1.5)) == ["room"]


@pytest.mark.parametrize(
    ("on_a", "on_b", "expected"),
    [
        # Lowest top priority first, however many victims.
        ([4.0, 0.0], [2.0, 2.0, 2.0, 2.0], ["b0", "b1", "b2", "b3"]),
        # Then the fewest victims.
        ([2.0, 2.0, 2.0, 2.0], [2.0, 2.0], ["b0", "b1"]),
        # Then the node id.
        ([2.0, 2.0], [2.0, 2.0], ["a0", "a1"]),
    ],
)
def test_which_node_gives_way(on_a, on_b, expected):
    mesh = Mesh(pool("p", cpu=100), nodes=[node("a", cpu=4), node("b", cpu=4)])
    for letter, priorities in (("b", on_b), ("a", on_a)):
        for number, priority in enumerate(priorities):
            mesh.run(
                f"{letter}{number}", priority=priority, cpu=4 / len(priorities), node_id=letter
            )
    assert sorted(evicted(mesh, cpu=4)) == expected


def test_then_the_node_with_least_lost_work():
    mesh = Mesh(pool("p", cpu=100), nodes=[node("a", cpu=2), node("b", cpu=2)])
    for name in ("a0", "a1"):
        mesh.run(name, priority=2.0, cpu=1, node_id="a")
    mesh.tick(50)
    for name in ("b0", "b1"):
        mesh.run(name, priority=2.0, cpu=1, node_id="b")
    mesh.tick(50)
    assert evicted(mesh, cpu=2) == ["b0", "b1"]
    mesh.save("a0")
    mesh.save("a1")
    assert evicted(mesh, cpu=2) == ["a0", "a1"]


def test_a_cordoned_node_gives_no_room():
    mesh = Mesh(pool("p", cpu=100), nodes=[node("a", cpu=2), node("b", cpu=2)])
    mesh.run("low", priority=0.0, cpu=2, node_id="a")
    mesh.run("high", priority=8.0, cpu=2, node_id="b")
    mesh.cordon("a")
    assert evicted(mesh, cpu=2) == ["high"]
    mesh.cordon("b")
    assert evicted(mesh, cpu=2) == "preemption_failed"


def test_an_agent_goes_only_where_every_task_on_it_may():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("low", priority=0.0, cpu=2)
    mesh.announce("high", "low", priority=9.0)
    assert evicted(mesh, cpu=1) == "preemption_failed"
    mesh.complete("high", end_agent=False)
    assert evicted(mesh, cpu=1) == ["low"]


def test_all_tasks_of_an_agent_go_together_and_count_with_the_lowest_score():
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("pair", priority=0.0, cpu=2)
    mesh.announce("pair-2", "pair", priority=7.0)
    mesh.run("single", priority=3.0, cpu=2)
    assert evicted(mesh, cpu=2) == ["single"]
    mesh.complete("single")
    mesh.run("single", priority=8.0, cpu=2)
    assert evicted(mesh, cpu=2) == ["pair", "pair-2"]


def test_victims_are_listed_with_the_highest_score_first_whatever_their_agents():
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("pair-low", priority=4.0, cpu=2)
    mesh.announce("pair-high", "pair-low", priority=0.0)
    mesh.run("single", priority=2.0, cpu=2)
    assert evicted(mesh, cpu=4) == ["pair-high", "single", "pair-low"]


def test_an_agent_with_a_task_being_preempted_alone_is_no_victim():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("x", priority=0.0, cpu=2)
    mesh.announce("y", "x", priority=0.0)
    mesh.preempt(task_id="y")
    assert evicted(mesh, cpu=1) == "preemption_failed"


def test_an_idle_agent_is_no_victim():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("idle", cpu=2, task=False)
    assert evicted(mesh, priority=100.0, cpu=1) == "preemption_failed"


def test_two_submitters_never_pick_the_same_victim():
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("x", priority=0.0, cpu=2)
    mesh.run("y", priority=1.0, cpu=2)
    mesh.submit("first", priority=9.0, cpu=2)
    mesh.submit("second", priority=9.0, cpu=2)
    assert names(mesh.state.agents["first"].submission.evicting) == ["x"]
    assert names(mesh.state.agents["second"].submission.evicting) == ["y"]
    assert mesh.submit("third", priority=9.0, cpu=2).reason == "preemption_failed"


def test_a_task_that_started_since_the_last_search_is_seen():
    mesh = Mesh(pool("p", cpu=9), nodes=[node("a", cpu=2)])
    mesh.submit("low", priority=0.0, cpu=2)
    assert evicted(mesh, cpu=2) == "preemption_failed"
    mesh.report("low")
    assert evicted(mesh, cpu=2) == ["low"]


def test_a_task_is_seen_after_the_rules_have_changed():
    mesh = Mesh(pool("p", cpu=9), nodes=[node("a", cpu=2)])
    mesh.run("low", priority=0.0, cpu=2)
    assert evicted(mesh, cpu=2) == ["low"]
    mesh.policy(label_preemption_rules={"tier": {"a": ["b"]}})
    assert evicted(mesh, cpu=2) == ["low"]


def test_work_that_was_saved_is_not_lost():
    mesh = Mesh(pool("p", cpu=9), nodes=[node("a", cpu=2), node("b", cpu=2)])
    for name, where in (("a0", "a"), ("a1", "a"), ("b0", "b"), ("b1", "b")):
        mesh.run(name, priority=0.0, cpu=1, node_id=where)
    mesh.tick(10)
    assert evicted(mesh, cpu=2) == ["a0", "a1"]
    mesh.save("b0")
    assert evicted(mesh, cpu=2) == ["b0", "b1"]


def test_an_agent_whose_node_is_lost_still_frees_quota():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2), node("b", cpu=2)])
    mesh.run("x", priority=0.0, cpu=2, node_id="a")
    mesh.observe(node("b", cpu=2))
    assert evicted(mesh, cpu=2) == ["x"]
    mesh.observe(node("a", cpu=2), node("b", cpu=2, others=amount(cpu=2)))
    assert evicted(mesh, cpu=1) == ["x"]


def test_what_others_use_is_no_room_that_a_victim_could_give():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4, others=amount(cpu=2))])
    mesh.run("x", priority=0.0, cpu=2)
    assert evicted(mesh, cpu=3) == "preemption_failed"
    assert evicted(mesh, cpu=2) == ["x"]


def test_gpus_that_others_overdraw_do_not_keep_a_victim_from_making_room_for_cpu():
    mesh = Mesh(pool("p", cpu=4, gpu=1), nodes=[node("a", cpu=4, gpu=1)])
    mesh.run("low", priority=0.0, cpu=3)
    mesh.run("gpu", cpu=1, gpu=1, task=False)
    mesh.observe(node("a", cpu=4, gpu=1, others=amount(gpu=0.5)))
    assert evicted(mesh, cpu=3) == ["low"]


def test_an_incoming_agent_placed_by_its_own_options_asks_only_for_quota():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=1)])
    mesh.run("x", priority=0.0, cpu=3, more={"choose_node": False})
    assert evicted(mesh, cpu=2, more={"choose_node": False}) == ["x"]


def test_nobody_is_put_on_a_device_that_an_incoming_agent_was_promised():
    mesh = Mesh(pool("p", gpu=9), nodes=[node("a", gpu=2)])
    mesh.run("x", priority=0.0, gpu=0.5, devices=on((0, 0.5)))
    mesh.run("y", priority=9.0, gpu=1)
    mesh.submit("new", priority=9.0, gpu=1)
    assert mesh.dry("late", priority=0.0, gpu=0.5).reason == "preemption_failed"
    mesh.slot("new")
    assert mesh.state.cluster.nodes["a"].allocations["new"].devices == on((0, 1))


def test_an_incoming_agent_never_starts_on_two_halves_of_two_devices():
    mesh = Mesh(pool("p", gpu=9), nodes=[node("a", gpu=2)])
    mesh.run("victim", priority=0.0, gpu=0.5, devices=on((0, 0.5)))
    mesh.submit("late", priority=9.0, gpu=0.5)
    assert mesh.state.cluster.nodes["a"].allocations["late"].devices == on((1, 0.5))
    mesh.submit("new", priority=9.0, gpu=1)
    mesh.report("late", "a", on((0, 0.5)))

    mesh.leave("victim")

    assert mesh.state.cluster.nodes["a"].allocations["new"].devices == on((1, 1))
    assert mesh.report("new", "a", on((1, 1))).agent_name == "new"


def test_an_incoming_agent_that_cannot_have_a_whole_device_is_refused_and_its_victims_run_again():
    mesh = Mesh(pool("p", gpu=9), nodes=[node("a", gpu=2)])
    mesh.run("victim", priority=0.0, gpu=0.5, devices=on((0, 0.5)), class_key="c")
    mesh.run("fixed", priority=9.0, gpu=0.5, devices=on((1, 0.5)))
    mesh.submit("new", priority=9.0, gpu=1, more={"request_id": "r"})
    mesh.submit("orphan", priority=9.0, gpu=0.5, more={"choose_node": False})
    mesh.report("orphan", "a", on((0, 0.5)))

    mesh.leave("victim")

    refused = mesh.state.answers["r"].outcome
    assert (refused.reason, refused.restarted) == ("preemption_failed", ("victim",))
    assert "victim" in mesh.starts
    assert "new" not in mesh.state.agents


def test_an_incoming_agent_whose_node_was_away_takes_what_comes_free_there():
    mesh = Mesh(pool("p", cpu=9, gpu=2), nodes=[node("a", cpu=2, gpu=2), node("b", cpu=1)])
    mesh.run("x", priority=0.0, cpu=1, gpu=2)
    mesh.run("y", priority=9.0, cpu=1, node_id="a")
    mesh.submit("new", priority=9.0, cpu=1, gpu=1)
    mesh.observe(node("b", cpu=1))
    mesh.observe(node("a", cpu=2, gpu=2), node("b", cpu=1))
    assert set(mesh.state.cluster.nodes["a"].allocations) == {"x", "y"}

    mesh.slot("new")

    assert set(mesh.state.cluster.nodes["a"].allocations) == {"y", "new"}
    assert mesh.state.cluster.nodes["a"].free == amount(gpu=1)


def test_an_incoming_agent_whose_node_is_lost_while_it_waits_is_refused():
    mesh = Mesh(pool("p", cpu=9), nodes=[node("a", cpu=2), node("b", cpu=1)])
    mesh.run("x", priority=0.0, cpu=2)
    mesh.submit("new", priority=9.0, cpu=2, more={"request_id": "r"})
    mesh.observe(node("b", cpu=1))
    mesh.leave("x")
    assert mesh.state.answers["r"].outcome.reason == "preemption_failed"
    assert mesh.free() == amount(cpu=9)


def test_evaluate_names_the_victims_of_a_submission_of_these_resources():
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("a", priority=0.0, cpu=2)
    mesh.run("b", priority=1.0, cpu=2)
    found = mesh.evaluate(9.0, cpu=2)
    assert (found.should_preempt, found.victims) == (True, ("a",))
    assert names(found.candidates) == ["a", "b"]


@pytest.mark.parametrize(
    ("pool_name", "need", "reason"),
    [
        ("p", {"cpu": 1}, "resources_available"),
        ("nowhere", {"cpu": 1}, "pool_not_found"),
        ("p", {"cpu": 5}, "exceeds_pool_capacity"),
        ("wide", {"cpu": 50}, "cluster_out_of_resources"),
        ("p", {"cpu": 4}, "would_not_make_room"),
    ],
)
def test_evaluate_with_resources_says_why_nobody_would_go(pool_name, need, reason):
    mesh = Mesh(pool("p", cpu=4), pool("wide", cpu=100), nodes=[node("a", cpu=20)])
    mesh.run("low", priority=0.0, cpu=1)
    mesh.run("low-2", priority=0.0, cpu=1)
    mesh.run("high", priority=9.0, cpu=1)
    found = mesh.evaluate(9.0, pool_name, **need)
    assert (found.should_preempt, found.reason) == (False, reason)
    assert found.victims == ()


def test_an_agent_of_a_lost_node_makes_no_room():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("a", cpu=4), node("b", cpu=4)])
    mesh.run("low", priority=0.0, cpu=4)
    where = mesh.state.agents["low"].node_id
    other = "b" if where == "a" else "a"
    mesh.observe(node(other, cpu=4))
    mesh.run("high", priority=9.0, cpu=4)
    assert mesh.submit("middle", priority=5.0, cpu=4).reason == "preemption_failed"


def test_the_victims_of_one_node_are_not_given_back_for_room_on_another():
    """The quota that is short could come with room on n3, but room on n2 loses less work."""
    mesh = Mesh(pool("p", gpu=2), pool("q", gpu=2), nodes=[node("n2", gpu=2), node("n3", gpu=1)])
    mesh.run("stays", "q", priority=9.0, node_id="n2", devices=on((0, 1)), gpu=1)
    mesh.run("long", "q", priority=0.0, node_id="n3", devices=on((0, 0.4)), gpu=0.4)
    mesh.now += 1
    mesh.run("lender", "p", priority=1.0, node_id="n2", devices=on((1, 0.4)), gpu=0.4)
    mesh.now += 1
    mesh.run("short", "q", priority=1.0, node_id="n3", devices=on((0, 0.5)), gpu=0.5)
    mesh.now += 1
    accepted = mesh.dry("incoming", "q", 9.0, gpu=1)
    assert sorted(names(accepted.preempted)) == ["lender", "short"]
    assert accepted.node_id == "n2"
