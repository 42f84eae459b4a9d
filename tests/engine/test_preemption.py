"""The decision: which rule speaks, with what score, in what order."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.config.policy import VICTIM_ORDERS, PreemptionPolicy
from schedulemesh.engine.preemption.candidates import Candidates
from schedulemesh.engine.state.class_order import VICTIM_RANKINGS
from schedulemesh.engine.state.preemption_rules import Incoming, LabelRanks, judge
from schedulemesh.engine.state.tasks import RunningTasks
from tests.engine.builders import Mesh, names, pool

TIERS = {"tier": {"premium": ["standard", "batch"], "standard": ["batch"]}}


def verdict(
    incoming=5.0, running=5.0, *, pool_name="p", incoming_pool="p", high=None, low=None, **policy
):
    rules = PreemptionPolicy(**policy)
    return judge(
        rules,
        LabelRanks(rules.label_preemption_rules),
        Incoming(priority=incoming, pool_name=incoming_pool, labels=high or {}),
        pool_name,
        running,
        low or {},
    )


def mesh_with(*tasks, **policy):
    """A mesh whose running tasks are (id, priority, pool, labels, seconds to go)."""
    mesh = Mesh(pool("p", cpu=1), pool("q", cpu=1), **policy)
    for task_id, priority, pool_name, labels, duration in tasks:
        mesh.announce(
            task_id, f"on-{task_id}", pool_name, priority, labels=labels, duration=duration
        )
    return mesh


@pytest.mark.parametrize(
    ("delta", "allowed"), [(1.0, True), (0.99, False), (0.0, False), (-1.0, False), (7.0, True)]
)
def test_same_pool_needs_the_same_pool_threshold(delta, allowed):
    found = verdict(5.0 + delta)
    assert found.rule == ("same_pool_preemption" if allowed else None)
    assert found.refused == (None if allowed else "below_same_pool_threshold")


@pytest.mark.parametrize(("delta", "allowed"), [(5.0, True), (4.99, False)])
def test_another_pool_needs_the_cross_pool_threshold(delta, allowed):
    found = verdict(5.0 + delta, pool_name="q")
    assert found.rule == ("cross_pool_preemption" if allowed else None)
    assert found.refused == (None if allowed else "below_cross_pool_threshold")


def test_cross_pool_preemption_can_be_switched_off():
    found = verdict(100.0, pool_name="q", enable_cross_pool_preemption=False)
    assert (found.rule, found.refused) == (None, "cross_pool_disabled")


def test_a_protected_pool_is_safe_from_others_by_every_rule():
    by_number = verdict(100.0, pool_name="q", protected_pools=("q",))
    by_label = verdict(
        100.0,
        pool_name="q",
        protected_pools=("q",),
        high={"tier": "premium"},
        low={"tier": "batch"},
        label_preemption_rules=TIERS,
    )
    assert by_number.refused == by_label.refused == "protected_pool"
    assert by_number.rule is by_label.rule is None


def test_within_itself_a_protected_pool_is_like_any_other():
    assert verdict(6.0, protected_pools=("p",)).rule == "same_pool_preemption"


@pytest.mark.parametrize(
    ("high", "low", "rank"),
    [
        ("premium", "batch", 2),
        ("premium", "standard", 1),
        ("standard", "batch", 1),
        ("batch", "premium", 0),
        ("premium", "premium", 0),
        ("premium", "unheard of", 0),
    ],
)
def test_the_rank_is_the_longest_chain_from_high_to_low(high, low, rank):
    assert (
        LabelRanks(PreemptionPolicy(label_preemption_rules=TIERS).label_preemption_rules).rank(
            {"tier": high}, {"tier": low}
        )
        == rank
    )


def test_the_rank_and_the_labels_that_rules_name_are_the_same_however_many_there_are_of_either():
    rules = {f"k{number:04}": {"a": ["b"]} for number in range(500)}
    few, many = {"k0007": "a", "k0003": "a", "x": "a"}, {f"k{i:04}": "a" for i in range(2_000)}
    for of_rules in (rules, {name: rules[name] for name in ("k0007", "k0003")}):
        ranks, tasks = LabelRanks(of_rules), RunningTasks()
        tasks.partition_by(ranks.named())
        for labels in (few, many, dict(reversed(many.items()))):
            low = {"k0003": "b", "y": "b", **{f"z{i}": "b" for i in range(len(labels))}}
            assert ranks.rank(labels, low) == 1
            assert ranks.rank(low, labels) == 0
            named = sorted(set(labels) & set(of_rules))
            assert tasks.relevant(labels) == tuple((name, "a") for name in named)
            assert tasks.relevant(dict.fromkeys(labels, "c")) == ()


def test_of_several_matching_keys_the_highest_rank_counts():
    ranks = LabelRanks({**TIERS, "team": {"a": ["b"]}})
    assert ranks.rank({"tier": "premium", "team": "a"}, {"tier": "batch", "team": "b"}) == 2
    assert ranks.rank({"tier": "x", "team": "a"}, {"tier": "batch", "team": "b"}) == 1


@pytest.mark.parametrize(
    ("delta", "threshold", "effective"),
    [
        (0.0, 0.5, 2.0),
        (-4.0, 0.5, 2.0),
        (0.0, 1.0, 2.0),
        (0.0, 2.0, 2.0),
        (3.0, 2.5, 3.0),
        (9.0, 0.5, 9.0),
    ],
)
def test_a_label_match_counts_the_rank_or_the_plain_difference_whichever_is_more(
    delta, threshold, effective
):
    found = verdict(
        5.0 + delta,
        pool_name="q",
        high={"tier": "premium"},
        low={"tier": "batch"},
        label_preemption_rules=TIERS,
        label_priority_threshold=threshold,
    )
    assert (found.rule, found.refused, found.delta) == ("label_based_preemption", None, effective)


def test_a_match_that_misses_its_threshold_falls_through_with_the_plain_difference():
    labels = {"high": {"tier": "premium"}, "low": {"tier": "batch"}}
    group_request = {"label_preemption_rules": TIERS, "label_priority_threshold": 2.5}

    same = verdict(6.0, **labels, **group_request)
    assert (same.rule, same.delta) == ("same_pool_preemption", 1.0)
    assert verdict(5.0, **labels, **group_request).refused == "below_same_pool_threshold"
    assert (
        verdict(6.0, pool_name="q", **labels, **group_request).refused
        == "below_cross_pool_threshold"
    )


def test_who_dominates_by_label_is_safe_from_higher_numbers():
    found = verdict(
        100.0, high={"tier": "batch"}, low={"tier": "premium"}, label_preemption_rules=TIERS
    )
    assert (found.rule, found.refused) == (None, "dominates_by_label")


def test_that_safety_can_be_switched_off():
    found = verdict(
        100.0,
        high={"tier": "batch"},
        low={"tier": "premium"},
        label_preemption_rules=TIERS,
        label_dominance_protects=False,
    )
    assert found.rule == "same_pool_preemption"


@pytest.mark.parametrize(
    ("incoming", "reason"), [(5.0, "below_same_pool_threshold"), (7.0, "same_pool_preemption")]
)
def test_where_each_dominates_by_another_key_labels_are_silent(incoming, reason):
    found = verdict(
        incoming,
        high={"tier": "premium", "team": "b"},
        low={"tier": "batch", "team": "a"},
        label_preemption_rules={**TIERS, "team": {"a": ["b"]}},
    )
    assert (found.rule or found.refused) == reason


def test_labels_can_be_switched_off_altogether():
    labels = {"label_preemption_rules": TIERS, "enable_label_preemption": False}
    assert not verdict(high={"tier": "premium"}, low={"tier": "batch"}, **labels).rule
    assert verdict(9.0, high={"tier": "batch"}, low={"tier": "premium"}, **labels).rule


def test_the_score_is_the_difference_plus_weight_times_remaining_seconds():
    mesh = mesh_with(("t", 3.0, "p", {}, 30.0))
    mesh.now += 10

    (found,) = mesh.evaluate(5.0).candidates

    assert found.preempt_score == pytest.approx(2.0 + 0.1 * 20)
    assert (found.priority_delta, found.effective_delta, found.remaining_time) == (2.0, 2.0, 20.0)


def test_answers_carry_the_plain_and_the_effective_difference():
    mesh = mesh_with(("t", 9.0, "q", {"tier": "batch"}, None), label_preemption_rules=TIERS)
    (found,) = mesh.evaluate(5.0, labels={"tier": "premium"}).candidates
    assert (found.priority_delta, found.effective_delta, found.preempt_score) == (-4.0, 2.0, 2.0)
    assert found.reason == "label_based_preemption"


@pytest.mark.parametrize(("least", "named"), [(2.0, ["t"]), (2.01, [])])
def test_the_score_must_reach_the_least(least, named):
    mesh = mesh_with(("t", 3.0, "p", {}, None), min_preempt_score=least)
    found = mesh.evaluate(5.0)
    assert names(found.candidates) == named
    assert found.should_preempt is bool(named)
    assert found.reason == (None if named else "below_min_preempt_score")


def test_remaining_time_may_lift_a_task_over_the_least_score():
    mesh = mesh_with(("t", 3.0, "p", {}, 10.0), min_preempt_score=2.5)
    assert names(mesh.evaluate(5.0).candidates) == ["t"]
    mesh.now += 9
    assert names(mesh.evaluate(5.0).candidates) == []


def test_the_highest_score_goes_first_then_the_newest_start_then_the_id():
    mesh = Mesh(pool("p", cpu=1))
    mesh.announce("old", "a", priority=1.0)
    mesh.tick(5)
    mesh.announce("b", "b", priority=1.0)
    mesh.announce("a", "c", priority=1.0)
    mesh.announce("lowest", "d", priority=0.0)
    mesh.announce("long", "e", priority=3.0, duration=100.0)
    assert names(mesh.evaluate(9.0).candidates) == ["long", "lowest", "a", "b", "old"]


def test_where_remaining_time_weighs_nothing_the_newest_start_goes_first():
    mesh = Mesh(pool("p", cpu=1), remaining_time_weight=0.0)
    mesh.announce("old-long", "a", priority=1.0, duration=900.0)
    mesh.tick(5)
    mesh.announce("new-short", "b", priority=1.0, duration=10.0)
    mesh.tick(1)
    mesh.announce("newest", "c", priority=1.0)
    assert names(mesh.evaluate(9.0).candidates) == ["newest", "new-short", "old-long"]

    mesh.policy(remaining_time_weight=0.1)
    assert names(mesh.evaluate(9.0).candidates) == ["old-long", "new-short", "newest"]
    mesh.policy(remaining_time_weight=0.0)
    mesh.complete("old-long")
    assert names(mesh.evaluate(9.0).candidates) == ["newest", "new-short"]


def test_classes_are_merged_into_one_order():
    mesh = mesh_with(
        ("a", 1.0, "p", {}, 30.0),
        ("b", 1.0, "p", {}, 5.0),
        ("c", 2.0, "p", {}, 25.0),
        ("d", 0.0, "q", {}, None),
    )
    assert names(mesh.evaluate(9.0).candidates) == ["a", "c", "d", "b"]


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4])
def test_no_more_candidates_are_named_than_asked_for(limit):
    mesh = mesh_with(*((f"t{n}", float(n), "p", {}, None) for n in range(3)))
    found = mesh.evaluate(9.0, limit=limit)
    assert names(found.candidates) == ["t0", "t1", "t2"][:limit]
    assert found.should_preempt


def test_a_refusal_names_the_rule_that_turned_away_most_and_counts_them_all():
    mesh = mesh_with(
        ("a", 5.0, "p", {}, None),
        ("b", 5.0, "q", {}, None),
        ("c", 5.0, "q", {}, None),
        ("d", 5.0, "p", {"tier": "premium"}, None),
        label_preemption_rules=TIERS,
    )
    mesh.preempt(task_id="a")

    found = mesh.evaluate(5.0, labels={"tier": "batch"})

    assert not found.should_preempt
    assert found.reason == "below_cross_pool_threshold"
    assert found.turned_away == {
        "below_cross_pool_threshold": 2,
        "already_being_preempted": 1,
        "dominates_by_label": 1,
    }


def test_tasks_below_the_least_score_are_counted_as_such_beside_those_of_no_use():
    mesh = Mesh(pool("p", cpu=2), remaining_time_weight=0.1, min_preempt_score=5.0)
    mesh.announce("timed", "x", priority=1.0, duration=100.0)
    mesh.announce("brief", "y", priority=1.0, duration=5.0)
    mesh.announce("unknown", "z", priority=1.0)
    mesh.run("full", priority=9.0, cpu=2)

    found = mesh.evaluate(2.0, cpu=1)

    assert found.turned_away == {
        "below_min_preempt_score": 2,
        "below_same_pool_threshold": 1,
        "would_not_make_room": 1,
    }


def test_with_nobody_running_the_reason_says_so():
    assert Mesh(pool("p", cpu=1)).evaluate(5.0).reason == "no_running_tasks"


def test_a_task_already_being_preempted_is_no_candidate():
    mesh = mesh_with(("t", 1.0, "p", {}, None))
    mesh.preempt(task_id="t")
    found = mesh.evaluate(9.0)
    assert (found.candidates, found.reason) == ((), "already_being_preempted")


def test_a_changed_policy_speaks_at_once():
    mesh = mesh_with(("t", 4.5, "p", {}, None))
    assert not mesh.evaluate(5.0).should_preempt
    mesh.policy(same_pool_priority_threshold=0.5)
    assert mesh.evaluate(5.0).should_preempt


def test_if_a_may_evict_b_then_b_may_not_evict_a():
    labels = [{}, {"tier": "premium"}, {"tier": "batch"}, {"tier": "premium", "team": "b"}]
    labels += [{"tier": "batch", "team": "a"}]
    rules = {**TIERS, "team": {"a": ["b"]}}
    for one in labels:
        for other in labels:
            for delta in (-9.0, -1.0, 0.0, 1.0, 9.0):
                forth = verdict(5.0 + delta, high=one, low=other, label_preemption_rules=rules)
                back = verdict(5.0, 5.0 + delta, high=other, low=one, label_preemption_rules=rules)
                assert not (forth.rule and back.rule), (one, other, delta)


def test_evaluating_changes_nothing():
    mesh = mesh_with(("t", 1.0, "p", {}, 10.0))
    seen = len(mesh.facts)
    mesh.evaluate(9.0, cpu=1)
    mesh.evaluate(9.0)
    assert len(mesh.facts) == seen


LONG = [
    ("urgent", 4.0, "p", {}, 1000.0),
    ("low", 1.0, "p", {}, 10.0),
    ("lower", 0.0, "p", {}, None),
]


def test_every_order_of_victims_says_what_it_ranks_by():
    assert tuple(VICTIM_RANKINGS) == VICTIM_ORDERS


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("score", ["urgent", "low", "lower"]),
        ("priority_first", ["lower", "low", "urgent"]),
    ],
)
def test_a_bonus_of_time_crosses_priorities_only_by_score(order, expected):
    mesh = mesh_with(*LONG, victim_order=order)
    assert names(mesh.evaluate(9.0).candidates) == expected
    assert names(mesh.evaluate(9.0, limit=2).candidates) == expected[:2]


def test_within_a_priority_the_score_decides():
    mesh = mesh_with(
        ("short", 1.0, "p", {}, 10.0),
        ("long", 1.0, "p", {}, 100.0),
        ("zero", 0.0, "p", {}, None),
        victim_order="priority_first",
    )
    assert names(mesh.evaluate(9.0).candidates) == ["zero", "long", "short"]


def test_a_least_score_that_ends_one_priority_does_not_end_the_next():
    mesh = mesh_with(
        ("low", 4.6, "p", {}, None),
        ("timed", 4.8, "p", {}, 100.0),
        same_pool_priority_threshold=0.1,
        victim_order="priority_first",
    )
    assert names(mesh.evaluate(5.0).candidates) == ["timed"]


def started_one_after_another(**policy):
    """A mesh whose tasks started 10 s apart, the first with most time left."""
    mesh = Mesh(pool("p", cpu=4), **policy)
    for name, priority, duration in (("old", 1.0, 1000.0), ("mid", 2.0, None), ("new", 1.0, 50.0)):
        mesh.run(name, priority=priority, cpu=1, duration=duration)
        mesh.now += 10
    return mesh


def test_the_least_lost_work_goes_first():
    mesh = started_one_after_another(victim_order="least_lost_work")
    assert names(mesh.evaluate(9.0).candidates) == ["new", "mid", "old"]
    mesh.save("old")
    assert names(mesh.evaluate(9.0).candidates) == ["old", "new", "mid"]
    assert mesh.submit("x", priority=9.0, cpu=2).agent_name == "x"
    assert names(mesh.state.agents["x"].submission.evicting) == ["old"]


def test_the_order_may_be_changed_at_any_time():
    mesh = started_one_after_another()
    assert names(mesh.evaluate(9.0).candidates)[0] == "old"
    mesh.policy(victim_order="least_lost_work")
    assert names(mesh.evaluate(9.0).candidates)[0] == "new"
    mesh.policy(victim_order="priority_first")
    assert names(mesh.evaluate(9.0).candidates)[-1] == "mid"


def test_lost_work_does_not_hide_who_misses_the_least_score():
    mesh = mesh_with(
        ("now", 4.8, "p", {}, None),
        ("timed", 4.8, "p", {}, 100.0),
        same_pool_priority_threshold=0.1,
        victim_order="least_lost_work",
    )
    assert names(mesh.evaluate(5.0).candidates) == ["timed"]
    state, incoming = mesh.state, Incoming(priority=5.0, pool_name="p")
    found = Candidates(state.preemption, state.running, incoming, mesh.now).turned_away()
    assert found == {"below_min_preempt_score": 1, "would_not_make_room": 1}


def test_scores_that_rounding_makes_equal_go_by_newest_start():
    """At a priority of 1e9 a score has steps of 1e-7: the ends of these tasks are nearer to each other."""
    mesh = Mesh(pool("p", cpu=4), remaining_time_weight=1.0)
    mesh.run("old", priority=0.0, cpu=1, duration=50.0 + 3e-9)
    mesh.now += 10.0
    mesh.run("new", priority=0.0, cpu=1, duration=40.0 + 1e-9)
    mesh.now += 10.0
    mesh.run("newest", priority=0.0, cpu=1, duration=30.0)
    found = mesh.evaluate(1e9).candidates
    assert len({candidate.preempt_score for candidate in found}) == 1
    assert names(found) == ["newest", "new", "old"]


def test_a_rest_that_rounding_makes_nothing_ties_with_no_rest_at_all():
    mesh = Mesh(pool("p", cpu=4), remaining_time_weight=1.0)
    mesh.run("almost over", priority=0.0, cpu=1, duration=20.0 + 1e-9)
    mesh.now += 10.0
    mesh.run("over", priority=0.0, cpu=1, duration=10.0)
    mesh.now += 10.0
    assert names(mesh.evaluate(1e9).candidates) == ["over", "almost over"]


@pytest.mark.parametrize(
    ("pools", "pool_name", "allowed"),
    [
        (None, "p", True),
        (None, "q", True),
        ((), "p", False),
        ((), "q", False),
        (("p",), "p", True),
        (("p",), "q", False),
        (("q",), "q", True),
    ],
)
@pytest.mark.parametrize("by_label", [False, True])
def test_a_task_evicts_in_the_pools_of_its_token_only(pools, pool_name, allowed, by_label):
    rules = PreemptionPolicy(label_preemption_rules=TIERS)
    incoming = Incoming(
        priority=5.0 if by_label else 50.0,
        pool_name="p",
        labels={"tier": "premium"} if by_label else {},
        evict_pools=pools,
    )
    low = {"tier": "batch"} if by_label else {}
    found = judge(rules, LabelRanks(TIERS), incoming, pool_name, 5.0, low)
    assert (found.rule is not None) == allowed
    assert found.refused == (None if allowed else "beyond_token")


def test_tasks_that_differ_in_what_they_may_evict_are_judged_apart():
    """Of two queued tasks alike in all else, the one that may not evict keeps the other from nothing."""
    mesh = Mesh(pool("p", cpu=1))
    mesh.run("low", cpu=1, priority=0.0)
    queue_bound(mesh, "bound", ())
    low = mesh.state.running.by_id["low"]
    assert low.phase.value == "running"
    queue_bound(mesh, "free", None)
    assert "bound" in mesh.state.queue.by_id
    assert low.phase.value == "preempting"


def test_one_that_may_not_evict_does_not_say_for_a_whole_tick_that_evictions_are_in_vain():
    mesh = Mesh(pool("p", cpu=1))
    mesh.run("low", cpu=1, priority=9.0)
    queue_bound(mesh, "bound", ())
    queue_bound(mesh, "free", None)
    mesh.change("low", priority=0.0)
    for _ in range(3):
        mesh.tick(1.0)
    assert mesh.state.running.by_id["low"].phase.value == "preempting"
    assert mesh.waiting() == ["bound"]


def queue_bound(mesh, name, pools):
    """Queue a task that evicts in these pools only (None: in all)."""
    submitted = mesh.submission(name, cpu=1, priority=9.0, more={"queue": True})
    task = msgspec.structs.replace(submitted.task, evict_pools=pools)
    return mesh.handle(msgspec.structs.replace(submitted, task=task))
