"""Limits on evictions: run time, number of evictions, cooldown and lost work, whatever the rules say."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.engine.messages.outcomes import Accepted, Refused
from schedulemesh.engine.state.preemption_rules import Incoming, LabelRanks, judge
from tests.engine.builders import Mesh, names, node, pool

HOUR = 3600.0


def full(*low, **policy):
    """Two pools of 8 GPUs on one node of 16; the named tasks of priority 1 fill pool p."""
    mesh = Mesh(
        pool("p", cpu=64, gpu=8), pool("q", cpu=64, gpu=8), nodes=[node("a", cpu=128, gpu=16)]
    )
    mesh.policy(**policy)
    for name in low:
        mesh.run(name, priority=1.0, cpu=1, gpu=8 // len(low))
    return mesh


def run_immune(mesh, **how):
    """Run a task of priority 1 on all GPUs of pool p that names 0 as its number of evictions."""
    stimulus = mesh.submission("low", priority=1.0, cpu=1, gpu=8, **how)
    task = msgspec.structs.replace(stimulus.task, max_preemptions=0)
    mesh.handle(msgspec.structs.replace(stimulus, task=task))
    mesh.report("low")


# -- run time


def test_a_task_is_evicted_only_after_its_least_run_time():
    mesh = full("low", min_runtime=60.0)
    mesh.tick(59.0)
    refused = mesh.dry("high", priority=9.0, cpu=1, gpu=8)
    assert isinstance(refused, Refused)
    assert refused.turned_away == {"below_min_runtime": 1}
    assert mesh.evaluate(9.0).reason == "below_min_runtime"
    mesh.tick(1.0)
    assert names(mesh.dry("high", priority=9.0, cpu=1, gpu=8).preempted) == ["low"]


def test_the_least_run_time_counts_from_the_present_run_not_from_the_admission():
    mesh = full(min_runtime=60.0)
    mesh.submit("low", priority=1.0, cpu=1, gpu=8)
    mesh.tick(100.0)
    mesh.report("low")
    assert isinstance(mesh.dry("high", priority=9.0, cpu=1, gpu=8), Refused)


def test_a_policy_that_comes_later_spares_tasks_that_run_already():
    mesh = full("low")
    mesh.tick(10.0)
    assert mesh.evaluate(9.0).should_preempt
    mesh.policy(min_runtime=60.0)
    assert mesh.evaluate(9.0).turned_away == {"below_min_runtime": 1}
    mesh.policy(min_runtime=5.0)
    assert mesh.evaluate(9.0).should_preempt


# -- the number of evictions


def test_a_task_that_may_never_be_evicted_is_spared_by_every_rule():
    mesh = full(label_preemption_rules={"tier": {"gold": ["iron"]}})
    run_immune(mesh, labels={"tier": "iron"})
    for labels in ({}, {"tier": "gold"}):
        found = mesh.evaluate(9.0, labels=labels)
        assert (found.should_preempt, found.turned_away) == (False, {"preempted_too_often": 1})


def test_a_person_may_evict_a_task_that_no_rule_may():
    mesh = full()
    run_immune(mesh)
    mesh.preempt(task_id="low", end_agent=True)
    mesh.leave("low")
    assert "low" not in mesh.state.running.by_id


# -- cooldown


def test_after_an_eviction_for_a_pool_none_is_made_for_it_until_the_cooldown_is_over():
    mesh = full("a1", "a2", preemption_cooldown=30.0)
    mesh.submit("high", priority=9.0, cpu=1, gpu=4)
    mesh.slot("high")
    mesh.tick(29.0)
    refused = mesh.dry("next", priority=9.0, cpu=1, gpu=4)
    assert refused.turned_away == {"in_preemption_cooldown": 1, "below_same_pool_threshold": 1}
    assert mesh.evaluate(9.0, "q").should_preempt, "another pool is not affected"
    mesh.tick(1.0)
    assert names(mesh.dry("next", priority=9.0, cpu=1, gpu=4).preempted) == ["a2"]


def test_all_victims_of_one_submission_are_one_preemption():
    mesh = full("a1", "a2", preemption_cooldown=30.0)
    assert len(mesh.dry("high", priority=9.0, cpu=1, gpu=8).preempted) == 2


def test_an_eviction_by_hand_starts_no_cooldown():
    mesh = full("a1", "a2", preemption_cooldown=30.0)
    mesh.preempt(task_id="a1", end_agent=True)
    mesh.leave("a1")
    assert names(mesh.dry("high", priority=9.0, cpu=1, gpu=8).preempted) == ["a2"]


# -- lost work


def test_a_task_that_would_lose_more_than_the_budget_is_spared():
    mesh = full("a1", "a2", lost_work_budget=400.0)
    mesh.tick(100.0)
    assert names(mesh.dry("high", priority=9.0, cpu=1, gpu=4).preempted) == ["a1"]
    mesh.tick(1.0)
    refused = mesh.dry("high", priority=9.0, cpu=1, gpu=4)
    assert refused.turned_away == {"exceeds_lost_work_budget": 2}
    mesh.save("a2")
    assert names(mesh.dry("high", priority=9.0, cpu=1, gpu=4).preempted) == ["a2"]


def test_victims_together_stay_within_the_budget():
    mesh = full("a1", "a2", lost_work_budget=400.0)
    mesh.tick(60.0)
    refused = mesh.dry("high", priority=9.0, cpu=1, gpu=8)
    assert isinstance(refused, Refused)
    assert refused.turned_away == {"exceeds_lost_work_budget": 2}
    mesh.save("a2")
    assert len(mesh.dry("high", priority=9.0, cpu=1, gpu=8).preempted) == 2


def test_work_that_was_lost_counts_for_an_hour():
    mesh = full("a1", "a2", lost_work_budget=400.0)
    mesh.tick(80.0)
    mesh.submit("high", priority=9.0, cpu=1, gpu=4)
    mesh.slot("high")
    assert mesh.state.evictions.lost_work_in("p", mesh.now) == 320.0
    assert mesh.dry("next", priority=20.0, cpu=1, gpu=8).turned_away == {
        "exceeds_lost_work_budget": 1,
        "would_not_make_room": 1,
    }
    mesh.save("a2")
    mesh.tick(10.0)
    assert isinstance(mesh.dry("next", priority=9.0, cpu=1, gpu=4), Accepted)
    mesh.tick(HOUR + 60.0)
    assert mesh.state.evictions.lost_work_in("p", mesh.now) == 0.0


def test_work_that_is_saved_by_the_eviction_is_returned_to_the_budget():
    mesh = full("a1", lost_work_budget=1000.0)
    mesh.tick(100.0)
    mesh.submit("high", priority=9.0, cpu=1, gpu=8)
    assert mesh.state.evictions.lost_work_in("p", mesh.now) == 800.0
    mesh.tick(3.0)
    mesh.leave("a1", saved=True)
    assert mesh.state.evictions.lost_work_in("p", mesh.now) == 0.0


def test_an_eviction_by_hand_counts_towards_the_budget_and_is_not_limited_by_it():
    mesh = full("a1", "a2", lost_work_budget=500.0)
    mesh.tick(100.0)
    for victim in ("a1", "a2"):
        mesh.preempt(task_id=victim, end_agent=True)
        mesh.leave(victim)
    assert mesh.state.evictions.lost_work_in("p", mesh.now) == 800.0


def test_tasks_without_gpus_lose_nothing_that_is_counted():
    mesh = Mesh(pool("p", cpu=1), lost_work_budget=1.0)
    mesh.run("low", priority=1.0, cpu=1)
    mesh.tick(HOUR)
    assert isinstance(mesh.dry("high", priority=9.0, cpu=1), Accepted)


def test_the_limits_survive_a_restart():
    mesh = full("a1", "a2", preemption_cooldown=30.0, lost_work_budget=400.0, min_runtime=1.0)
    mesh.tick(80.0)
    mesh.submit("high", priority=9.0, cpu=1, gpu=4)
    for state in (mesh.refolded(), mesh.rewritten()):
        assert state.evictions.last_for == {"p": mesh.now}
        assert state.evictions.lost_work_in("p", mesh.now) == 320.0


# -- no two tasks evict each other

tasks = st.builds(
    Incoming,
    priority=st.sampled_from([0.0, 0.5, 1.0, 2.0, 6.0, 11.0]),
    pool_name=st.sampled_from(["p", "q"]),
    labels=st.fixed_dictionaries(
        {},
        optional={
            "tier": st.sampled_from(["gold", "silver", "iron"]),
            "team": st.sampled_from(["a", "b"]),
        },
    ),
)
policies = st.builds(
    PreemptionPolicy,
    same_pool_priority_threshold=st.sampled_from([0.5, 1.0, 3.0]),
    cross_pool_priority_threshold=st.sampled_from([0.5, 5.0]),
    label_priority_threshold=st.sampled_from([0.1, 0.5, 1.5, 2.0, 5.0]),
    enable_cross_pool_preemption=st.booleans(),
    enable_label_preemption=st.booleans(),
    label_dominance_protects=st.booleans(),
    protected_pools=st.sampled_from([(), ("p",), ("p", "q")]),
    label_preemption_rules=st.sampled_from(
        [
            {},
            {"tier": {"gold": ["silver", "iron"], "silver": ["iron"]}},
            {"tier": {"gold": ["iron"]}, "team": {"a": ["b"]}},
        ]
    ),
)


@given(policy=policies, one=tasks, other=tasks)
def test_of_two_tasks_at_most_one_may_evict_the_other(policy, one, other):
    ranks = LabelRanks(policy.label_preemption_rules)

    def may_evict(high, low):
        return judge(policy, ranks, high, low.pool_name, low.priority, low.labels).rule is not None

    assert not (may_evict(one, other) and may_evict(other, one))


@pytest.mark.parametrize(("priority", "refused"), [(1.0, "below_same_pool_threshold"), (9.5, None)])
def test_without_protection_by_labels_a_match_wins_only_where_it_could_not_be_reversed(
    priority, refused
):
    policy = PreemptionPolicy(
        label_dominance_protects=False, label_preemption_rules={"tier": {"gold": ["iron"]}}
    )
    high = Incoming(priority=priority, pool_name="p", labels={"tier": "gold"})
    ranks = LabelRanks(policy.label_preemption_rules)
    assert judge(policy, ranks, high, "p", 10.0, {"tier": "iron"}).refused == refused
