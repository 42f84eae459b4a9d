"""Submitting: admitted, refused, or told what is missing; one transaction each."""

from __future__ import annotations

import pytest

from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Pending, ProbeNeeded
from tests.engine.builders import Mesh, amount, names, node, on, pool


def test_a_submission_with_room_reserves_starts_and_commits():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])

    assert mesh.submit("t", cpu=3, more={"request_id": "r"}) == Pending(agent_name="t")
    account = mesh.state.ledger.accounts["p"]
    assert (account.reserved, account.used) == (amount(cpu=3), amount())
    assert mesh.starts["t"].node_id == "a"

    accepted = mesh.report("t")
    assert (account.reserved, account.used) == (amount(), amount(cpu=3))
    assert (accepted.agent_name, accepted.task_id, accepted.node_id) == ("t", "t", "a")
    assert accepted.resources == amount(cpu=3)
    assert accepted.preempted == ()
    assert mesh.told == ["r"]


def test_the_labels_of_an_agent_include_its_pool_and_the_labels_of_the_pool():
    mesh = Mesh(pool("p", labels={"stage": "demo", "team": "pool's"}, cpu=4))
    accepted = mesh.run("t", cpu=1, labels={"team": "own"})
    assert accepted.labels == {"pool": "p", "stage": "demo", "team": "own"}


def test_without_resources_an_agent_takes_the_default_of_its_pool():
    mesh = Mesh(pool("shared", agents=4, cpu=8, gpu=6, memory=100), pool("whole", cpu=3))
    mesh.run("a", "shared", more={"default_resources": True})
    mesh.run("b", "whole", more={"default_resources": True})
    assert mesh.state.agents["a"].spec.resources == amount(cpu=2, memory=25, gpu=1)
    assert mesh.state.agents["b"].spec.resources == amount(cpu=3)


def test_an_unknown_pool_is_pool_not_found_and_the_known_ones_are_named():
    refused = Mesh(pool("p", cpu=1)).submit("t", "nowhere", cpu=1)
    assert refused.reason == "pool_not_found"
    assert "'nowhere'" in refused.error
    assert "p" in refused.error


def test_more_than_the_whole_quota_is_exceeds_pool_capacity():
    mesh = Mesh(pool("p", cpu=4), pool("q", cpu=100))
    refused = mesh.submit("t", cpu=5)
    assert (refused.reason, refused.short_quota) == ("exceeds_pool_capacity", amount(cpu=1))


def test_borrowed_quota_does_not_count_towards_the_capacity():
    mesh = Mesh(pool("p", cpu=2), pool("q", cpu=4))
    mesh.run("own", "p", priority=9.0, cpu=2)
    mesh.run("low", "q", priority=0.0, cpu=4)
    mesh.submit("borrower", "p", priority=9.0, cpu=2)
    mesh.slot("borrower")
    assert mesh.submit("t", "p", priority=9.0, cpu=3).reason == "exceeds_pool_capacity"


@pytest.mark.parametrize("need", [{"cpu": 5}, {"gpu": 2}, {"custom": {"x": 1}}, {"memory": 1}])
def test_what_no_node_could_ever_have_is_refused_at_once(need):
    wide = pool("p", cpu=9, gpu=9, memory=9, custom={"x": 9})
    mesh = Mesh(wide, nodes=[node("a", cpu=4, gpu=1), node("b", cpu=4, gpu=1)])
    refused = mesh.submit("t", **need)
    assert refused.reason == "cluster_out_of_resources"
    assert refused.short_node
    assert mesh.free() == wide.resources


def test_until_nodes_are_seen_only_quota_decides():
    mesh = Mesh(pool("p", cpu=9))
    mesh.submit("t", cpu=5)
    assert mesh.starts["t"].node_id is None


def test_creating_a_pool_never_needs_the_resources_to_exist():
    mesh = Mesh(pool("p", cpu=1000, gpu=1000), nodes=[node("a", cpu=1)])
    assert mesh.free() == amount(cpu=1000, gpu=1000)


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ({"stage": "demo"}, "demo"),
        ({"stage": ["prod", "demo"]}, "prod"),
        ({"stage": {"in": ["demo"]}}, "demo"),
        ({"stage": {"not_in": ["prod", "demo"]}}, "plain"),
        ({"stage": {"exists": False}}, "plain"),
        ({"stage": {"exists": True}}, "prod"),
        ({}, "prod"),
    ],
)
def test_with_no_pool_named_the_matching_one_with_most_room_takes_it(selector, chosen):
    mesh = Mesh(
        pool("demo", labels={"stage": "demo"}, cpu=4),
        pool("prod", labels={"stage": "prod"}, cpu=8),
        pool("plain", cpu=2),
    )
    mesh.run("t", "", selector=selector, cpu=1)
    assert mesh.state.agents["t"].spec.pool_name == chosen
    assert mesh.state.running.by_id["t"].spec.pool_name == chosen


def test_a_pool_that_only_borrows_may_match_although_it_has_nothing_of_a_kind():
    lending = {"cohort": "all"}
    mesh = Mesh(
        pool("lender", cpu=4, gpu=2, lending=lending),
        pool("borrower", labels={"stage": "dev"}, cpu=4, lending=lending),
        nodes=[node("a", cpu=8, gpu=2)],
    )
    mesh.run("t", "", selector={"stage": "dev"}, cpu=1, gpu=1)
    assert mesh.state.running.by_id["t"].spec.pool_name == "borrower"


def test_no_matching_pool_is_said_with_the_pools_that_there_are():
    mesh = Mesh(pool("demo", labels={"stage": "demo"}, cpu=4))
    refused = mesh.submit("t", "", selector={"stage": "prod"}, cpu=1)
    assert refused.reason == "no_matching_pool"
    assert "demo" in refused.error


def test_a_pool_that_could_never_hold_the_task_does_not_match():
    mesh = Mesh(pool("small", cpu=1), pool("big", cpu=9))
    mesh.run("fill", "big", cpu=9)
    mesh.submit("t", "", selector={}, priority=0.0, cpu=2)
    assert mesh.dry("t", "", selector={}, priority=0.0, cpu=10).reason == "no_matching_pool"


def test_a_task_id_that_is_on_the_book_is_duplicate_task():
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("t", cpu=1)
    refused = mesh.handle(
        s.TaskSubmitted(
            agent=mesh.submission("other", cpu=1).agent,
            task=mesh.submission("t").task,
        )
    ).outcome
    assert refused.reason == "duplicate_task"
    assert mesh.submit("t", task=False, cpu=1).reason == "duplicate_agent"


def test_a_repeated_request_is_answered_once_and_from_memory():
    mesh = Mesh(pool("p", cpu=4))
    same = {"request_id": "r"}
    first = mesh.submit("t", cpu=1, more=same)
    assert mesh.submit("t", cpu=1, more=same) == first
    accepted = mesh.report("t")

    seen = len(mesh.facts)
    assert mesh.submit("t", cpu=1, more=same) == accepted
    mesh.complete("t")
    seen_after = len(mesh.facts)
    assert mesh.submit("t", cpu=1, more=same) == accepted
    assert len(mesh.facts) == seen_after > seen


def test_a_refusal_is_remembered_for_its_request_too():
    mesh = Mesh(pool("p", cpu=1))
    refused = mesh.submit("t", cpu=2, more={"request_id": "r"})
    mesh.resize(pool("p", cpu=9))
    assert mesh.submit("t", cpu=2, more={"request_id": "r"}) == refused


def test_answers_are_remembered_for_a_day_and_then_forgotten():
    mesh = Mesh(pool("p", cpu=4))
    mesh.submit("t", cpu=1, more={"request_id": "r"})
    mesh.report("t")
    mesh.tick(24 * 3600)
    assert "r" in mesh.state.answers
    mesh.tick(1)
    assert "r" not in mesh.state.answers


def test_short_of_resources_with_nobody_to_evict_is_preemption_failed_in_the_documents_words():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.run("t", priority=5.0, cpu=3)
    refused = mesh.submit("u", priority=5.0, cpu=2)
    assert refused.reason == "preemption_failed"
    assert refused.error == (
        "Insufficient resources and no available preemption candidates: "
        "pool 'p' lacks cpu 1 of the cpu 2 asked for; no node has room for cpu 2; "
        "the closest, a, lacks cpu 1; held by t (cpu 3); priority 6 would be enough"
    )
    assert refused.sufficient_priority == 6.0
    assert refused.short_quota == amount(cpu=1)
    assert refused.turned_away == {"below_same_pool_threshold": 1}
    (holder,) = refused.holders
    assert (holder.agent_name, holder.resources, holder.task_ids) == ("t", amount(cpu=3), ("t",))
    assert "u" not in mesh.state.agents


def test_a_submission_that_may_not_preempt_evicts_nobody():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", priority=0.0, cpu=2)
    refused = mesh.submit("u", priority=9.0, cpu=2, more={"may_preempt": False})
    assert refused.reason == "insufficient_quota"
    assert mesh.ends == {}


def test_an_incoming_agent_waits_for_its_victims_and_holds_what_is_free_meanwhile():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.run("low", priority=0.0, cpu=3)

    assert mesh.submit("high", priority=9.0, cpu=4) == Pending(agent_name="high")
    assert mesh.free() == amount()
    assert mesh.state.cluster.nodes["a"].free == amount()
    assert "high" not in mesh.starts
    assert mesh.ends["low"].task_ids == ("low",)

    mesh.leave("low")
    assert "high" in mesh.starts
    accepted = mesh.report("high")
    assert names(accepted.preempted) == ["low"]
    assert accepted.preempted[0].reason == "same_pool_preemption"


def test_nobody_slips_in_between_a_victim_and_its_incoming_agent():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.run("x", priority=0.0, cpu=2)
    mesh.run("y", priority=1.0, cpu=2)
    mesh.submit("high", priority=9.0, cpu=4)
    mesh.leave("x")
    assert mesh.submit("thief", priority=9.0, cpu=1).reason == "preemption_failed"
    mesh.leave("y")
    assert mesh.report("high").agent_name == "high"


def test_what_a_victim_frees_beyond_the_need_is_free_for_all():
    mesh = Mesh(pool("p", cpu=4, memory=100))
    mesh.run("x", priority=0.0, cpu=4, memory=100)
    mesh.submit("high", priority=9.0, cpu=1)
    mesh.slot("high")
    assert mesh.free() == amount(cpu=3, memory=100)


def test_a_class_never_seen_to_load_is_probed_before_anyone_is_evicted_for_it():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("low", priority=0.0, cpu=2)
    asked = mesh.submit("high", priority=9.0, cpu=2, class_key="new", more={"request_id": "r"})
    assert asked == ProbeNeeded(class_key="new")
    assert mesh.ends == {}
    assert "r" not in mesh.state.answers

    mesh.handle(s.ClassProbed(class_key="new"))
    assert mesh.handle(s.ClassProbed(class_key="new")).facts == ()
    again = mesh.submit("high", priority=9.0, cpu=2, class_key="new", more={"request_id": "r"})
    assert again == Pending(agent_name="high")


def test_a_class_that_needs_no_victim_is_not_probed_and_is_known_once_it_ran():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("first", priority=0.0, cpu=2, class_key="c")
    assert mesh.submit("high", priority=9.0, cpu=2, class_key="c") == Pending(agent_name="high")


def test_a_dry_run_says_where_it_would_run_who_would_go_and_what_would_be_lost():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    assert mesh.dry("t", cpu=4).node_id == "a"
    mesh.run("low", priority=0.0, cpu=4)
    mesh.tick(30)

    found = mesh.dry("high", priority=9.0, cpu=4, class_key="never seen")

    assert (found.node_id, names(found.preempted)) == ("a", ["low"])
    assert found.preempted[0].lost_work == 30.0
    assert mesh.dry("high", priority=0.0, cpu=4).reason == "preemption_failed"
    assert mesh.dry("high", "nowhere").reason == "pool_not_found"


def test_an_agent_without_a_task_comes_with_the_default_priority():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("t", priority=4.0, cpu=2)
    assert mesh.submit("agent", task=False, cpu=2) == Pending(agent_name="agent")
    mesh.slot("agent")
    assert mesh.submit("other", task=False, cpu=2).reason == "preemption_failed"


def test_gpu_devices_are_held_once_every_victim_has_left():
    mesh = Mesh(pool("p", gpu=2), nodes=[node("a", gpu=2)])
    for name, device in (("x", 0), ("y", 1)):
        mesh.run(name, priority=0.0, gpu=0.5, devices=on((device, 0.5)))
    mesh.submit("high", priority=9.0, gpu=2)
    mesh.leave("x")
    assert mesh.state.cluster.nodes["a"].devices == [10_000, 5_000]
    assert mesh.dry("late", priority=0.0, gpu=0.5).reason == "preemption_failed"
    mesh.leave("y")
    assert mesh.state.cluster.nodes["a"].allocations["high"].devices == on((0, 1), (1, 1))
    assert mesh.report("high", "a", on((0, 1), (1, 1))).agent_name == "high"


def test_the_node_strategy_decides_where_an_agent_goes():
    nodes = [node("a", cpu=4), node("b", cpu=8)]
    for strategy, expected in (("bin_pack", "a"), ("spread", "b")):
        mesh = Mesh(pool("p", cpu=9), nodes=nodes, strategy=strategy)
        mesh.submit("t", cpu=1)
        assert mesh.starts["t"].node_id == expected


def test_a_state_key_goes_with_the_order_to_start():
    mesh = Mesh(pool("p", cpu=1))
    mesh.submit("t", cpu=1, more={"state_key": "saved"})
    assert mesh.starts["t"].state_key == "saved"
