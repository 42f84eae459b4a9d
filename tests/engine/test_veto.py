"""Strategies in the decision: priorities, places, and who may leave for whom."""

from __future__ import annotations

import pytest

from schedulemesh.engine.messages.outcomes import Pending, Refused
from schedulemesh.plugins import SchedulingStrategyPlugin
from tests.engine.builders import Mesh, amount, names, node, pool

LABELS = {"tier": {"premium": ["batch"]}}


class Policy(SchedulingStrategyPlugin):
    """Answers from a table {(high, low): answer}, and remembers what it was asked."""

    def __init__(self, **table):
        self.table = {tuple(key.split("_")): answer for key, answer in table.items()}
        self.asked = []

    def preemption_policy(self, high, low):
        self.asked.append((high.id, low.id))
        return self.table.get((high.id, low.id))


class Always(SchedulingStrategyPlugin):
    def __init__(self, answer):
        self.answer = answer

    def preemption_policy(self, high, low):
        return self.answer


class Plus(SchedulingStrategyPlugin):
    """Adds to the priority."""

    def __init__(self, more):
        self.more = more
        self.seen = []

    def priority(self, task):
        self.seen.append(task)
        return task.priority + self.more


class Likes(SchedulingStrategyPlugin):
    """Scores one name 1 and others 0, or whatever it is told."""

    def __init__(self, name, other=0.0):
        self.name, self.other = name, other
        self.seen = []

    def score(self, task, resources):
        self.seen.append(resources)
        return 1.0 if resources.name == self.name else self.other


def full(*plugins, running=(("a", 1.0), ("b", 2.0)), labels=None, more=None, **policy):
    """A pool that these tasks fill, one CPU each."""
    policy = {"remaining_time_weight": 0.0, "min_preempt_score": -100.0, **policy}
    mesh = Mesh(
        pool("p", cpu=len(running)),
        pool("q", cpu=0),
        nodes=[node("n", cpu=99)],
        plugins=plugins,
        **policy,
    )
    for name, priority in running:
        mesh.run(name, priority=priority, cpu=1, labels=(labels or {}).get(name), **(more or {}))
    return mesh


def evicted_for(mesh, name, **how):
    outcome = mesh.submit(name, cpu=1, **how)
    if isinstance(outcome, Refused):
        return None
    return names(mesh.state.agents[name].submission.evicting)


def test_a_veto_passes_on_to_the_next_candidate():
    policy = Policy(new_a=False)
    assert evicted_for(full(policy), "new", priority=9.0) == ["b"]
    assert policy.asked == [("new", "a"), ("new", "b")]


def test_candidates_are_asked_lazily_and_once():
    policy = Policy()
    mesh = full(policy, running=[(f"r{i}", float(i)) for i in range(9)])
    assert evicted_for(mesh, "new", priority=20.0) == ["r0"]
    assert policy.asked == [("new", "r0")]


def test_a_veto_of_all_is_a_refusal_that_says_so():
    mesh = full(Always(False))
    outcome = mesh.submit("new", cpu=1, priority=9.0)
    assert outcome.turned_away == {"vetoed_by_strategy": 2}


def test_an_allowance_opens_what_rule_3_refused():
    policy = Policy(new_b=True)
    mesh = full(policy)
    assert evicted_for(mesh, "new", priority=2.0) == ["a"]  # by rule 3, and it scores higher
    mesh = full(policy, running=[("b", 2.0)])
    (found,) = mesh.evaluate(2.0).candidates or [None]
    assert found is None  # asked without an id, the table says nothing
    assert evicted_for(mesh, "new", priority=2.0) == ["b"]
    assert mesh.state.agents["new"].submission.evicting[0].reason == "strategy_preemption"


def test_an_allowance_opens_what_rule_4_refused():
    for off in (False, True):
        mesh = Mesh(
            pool("p", cpu=1),
            pool("q", cpu=1),
            plugins=[Policy(new_a=True)],
            min_preempt_score=0.0,
            enable_cross_pool_preemption=off,
        )
        mesh.run("a", "q", priority=5.0, cpu=1)
        mesh.run("own", "p", priority=9.0, cpu=1)
        assert evicted_for(mesh, "new", priority=5.5) == ["a"]


def test_the_least_score_still_holds():
    mesh = full(Policy(new_b=True), running=[("b", 2.0)], min_preempt_score=0.5)
    assert evicted_for(mesh, "new", priority=2.0) is None


def test_an_allowance_that_fails_by_the_score_is_counted_under_the_score():
    running = [("b", 2.0), ("c", 2.0)]
    mesh = full(Policy(new_b=True), running=running, min_preempt_score=0.5)
    outcome = mesh.submit("new", cpu=1, priority=2.0)
    assert outcome.turned_away == {"below_min_preempt_score": 1, "below_same_pool_threshold": 1}


def test_an_allowance_that_would_not_make_room_is_counted_as_such():
    mesh = full(Policy(new_b=True), running=[("b", 2.0), ("c", 2.0)])
    outcome = mesh.submit("new", cpu=2, priority=2.0)
    assert outcome.turned_away == {"would_not_make_room": 1, "below_same_pool_threshold": 1}


def test_an_allowance_that_a_limit_spares_is_counted_under_the_limit():
    mesh = full(Policy(new_b=True), running=[("b", 2.0)], min_runtime=3600.0)
    outcome = mesh.submit("new", cpu=1, priority=2.0)
    assert outcome.turned_away == {"below_min_runtime": 1}


def test_an_allowance_that_goes_both_ways_is_void():
    mesh = full(Always(True), running=[("b", 2.0)])
    outcome = mesh.submit("new", cpu=1, priority=2.0)
    assert outcome.turned_away == {"below_same_pool_threshold": 1}


def test_an_allowance_is_void_where_the_rules_permit_the_reverse():
    policy = Policy(new_b=True)
    assert evicted_for(full(policy, running=[("b", 9.0)]), "new", priority=2.0) is None
    assert policy.asked == [("new", "b"), ("b", "new")]


def test_a_reverse_that_is_vetoed_is_not_permitted():
    mesh = full(Policy(new_b=True, b_new=False), running=[("b", 9.0)])
    assert evicted_for(mesh, "new", priority=2.0) == ["b"]


def test_a_protected_pool_is_never_opened():
    mesh = Mesh(
        pool("p", cpu=1),
        pool("q", cpu=1),
        plugins=[Policy(new_a=True)],
        protected_pools=("q",),
        min_preempt_score=-100.0,
    )
    mesh.run("a", "q", priority=0.0, cpu=1)
    mesh.run("own", "p", priority=99.0, cpu=1)
    assert evicted_for(mesh, "new", priority=50.0) is None


@pytest.mark.parametrize("protects", [True, False])
def test_a_label_rule_is_never_overruled(protects):
    policy = Policy(new_b=True, b_new=False)
    mesh = full(
        policy,
        running=[("b", 5.0)],
        labels={"b": {"tier": "premium"}},
        label_preemption_rules=LABELS,
        label_dominance_protects=protects,
    )
    assert evicted_for(mesh, "new", priority=5.0, labels={"tier": "batch"}) is None


def test_a_label_match_can_be_vetoed():
    mesh = full(
        Policy(new_b=False),
        running=[("b", 5.0)],
        labels={"b": {"tier": "batch"}},
        label_preemption_rules=LABELS,
    )
    assert evicted_for(mesh, "new", priority=5.0, labels={"tier": "premium"}) is None


def test_a_node_is_freed_only_by_those_that_may_go():
    mesh = Mesh(
        pool("p", cpu=99), nodes=[node("x", cpu=1), node("y", cpu=1)], plugins=[Policy(new_a=False)]
    )
    mesh.run("a", priority=0.0, cpu=1, node_id="x")
    mesh.run("b", priority=1.0, cpu=1, node_id="y")
    assert evicted_for(mesh, "new", priority=9.0) == ["b"]
    assert mesh.state.agents["new"].node_id == "y"


def test_an_evaluation_asks_too():
    mesh = full(Always(False))
    found = mesh.evaluate(9.0)
    assert not found.should_preempt
    assert found.reason == "vetoed_by_strategy"


def test_the_first_opinion_counts():
    mesh = full(Always(None), Policy(new_a=False), Always(True))
    assert evicted_for(mesh, "new", priority=9.0) == ["b"]


def test_a_priority_is_recorded_with_what_was_asked():
    mesh = Mesh(pool("p", cpu=4), plugins=[Plus(2.0)])
    mesh.run("t", priority=5.0, cpu=1)
    spec = mesh.state.running.by_id["t"].spec
    assert (spec.priority, spec.asked_priority) == (7.0, 5.0)
    assert mesh.refolded().running.by_id["t"].spec == spec


def test_a_task_that_runs_again_is_shown_with_the_priority_that_was_asked():
    plus = Plus(2.0)
    mesh = full(plus, running=[("a", 1.0)], more={"class_key": "c"})
    mesh.submit("new", cpu=1, priority=9.0)
    mesh.leave("a")
    mesh.fail("new")
    assert mesh.state.running.by_id["a"].spec.priority == 3.0
    assert [task.priority for task in plus.seen if task.id == "a"] == [1.0, 1.0]


def test_the_same_task_registered_again_is_the_same_whatever_priority_it_got():
    mesh = Mesh(pool("p", cpu=4), plugins=[Plus(2.0)])
    mesh.run("t", priority=5.0, cpu=1)
    assert mesh.announce("t", "t", priority=5.0).change == "already_registered"
    assert mesh.announce("t", "t", priority=7.0).reason == "duplicate_task"


def test_nodes_are_scored_and_equals_go_to_the_built_in_order():
    mesh = Mesh(pool("p", cpu=9), nodes=[node("a", cpu=1), node("b", cpu=4)], plugins=[Likes("b")])
    mesh.submit("t", cpu=1)
    assert mesh.state.agents["t"].node_id == "b"
    mesh = Mesh(pool("p", cpu=9), nodes=[node("b", cpu=4), node("a", cpu=1)], plugins=[Likes("x")])
    mesh.submit("t", cpu=1)
    assert mesh.state.agents["t"].node_id == "a"


def test_a_node_is_shown_with_its_devices_and_pools_with_their_quota():
    likes = Likes("p")
    mesh = Mesh(
        pool("p", labels={"k": "v"}, cpu=9, gpu=2), nodes=[node("a", cpu=4, gpu=2)], plugins=[likes]
    )
    mesh.submit("t", pool_name="", cpu=1, gpu=0.5, selector={"k": "v"})
    of_pool, of_node = likes.seen
    assert (of_pool.kind, of_pool.name, of_pool.free["gpu"]) == ("pool", "p", 2.0)
    assert (of_node.kind, of_node.devices) == ("node", (1.0, 1.0))
    assert of_node.total == {"cpu": 4.0, "memory": 0.0, "gpu": 2.0, "custom": {}}


@pytest.mark.parametrize("other", [float("nan"), None, "best"])
def test_one_bad_score_skips_the_strategy_for_this_decision(other):
    nodes = [node("a", cpu=1), node("b", cpu=4)]
    mesh = Mesh(pool("p", cpu=9), nodes=nodes, plugins=[Likes("b", other), Likes("b")])
    mesh.submit("t", cpu=1)
    assert mesh.state.agents["t"].node_id == "b"  # the second strategy's choice
    assert mesh.guarded[0].failures == (0 if other is None else 1)


def test_no_strategy_makes_room_where_there_is_none():
    mesh = Mesh(pool("p", cpu=9), nodes=[node("a", cpu=1)], plugins=[Likes("a")])
    assert mesh.submit("t", cpu=2).reason == "cluster_out_of_resources"
    assert isinstance(mesh.submit("u", cpu=1), Pending)
    assert mesh.free() == amount(cpu=8)
