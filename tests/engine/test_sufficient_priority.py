"""The priority that a refusal names is the lowest with which the same submission is accepted."""

from __future__ import annotations

import math
import random

import pytest

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.engine.messages.outcomes import Accepted, Refused
from schedulemesh.engine.preemption import sufficient_priority
from schedulemesh.engine.state.preemption_rules import Incoming
from tests.engine.builders import Mesh, node, pool, shape


def enough(mesh, *where, **how):
    refused = mesh.submit("u", *where, **how)
    assert isinstance(refused, Refused)
    return refused.sufficient_priority


def test_within_a_pool_it_is_the_threshold_above_the_lowest_that_makes_room():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("low", priority=3.0, cpu=1)
    mesh.run("high", priority=8.0, cpu=1)
    assert enough(mesh, priority=3.0, cpu=1) == 4.0
    assert enough(mesh, priority=3.0, cpu=2) == 9.0


def test_across_pools_it_is_the_larger_threshold():
    mesh = Mesh(pool("p", cpu=2), pool("q", cpu=2), nodes=[node("a", cpu=2)])
    mesh.run("t", "q", priority=3.0, cpu=2)
    assert enough(mesh, priority=5.0, cpu=1) == 8.0


def test_the_least_score_counts():
    mesh = Mesh(pool("p", cpu=1), min_preempt_score=4.0)
    mesh.run("t", priority=3.0, cpu=1)
    assert enough(mesh, priority=3.0, cpu=1) == 7.0


def test_no_priority_is_named_where_none_would_do():
    mesh = Mesh(
        pool("p", cpu=2), pool("q", cpu=2), nodes=[node("a", cpu=2)], protected_pools=("q",)
    )
    mesh.run("t", "q", priority=3.0, cpu=2)
    assert enough(mesh, priority=5.0, cpu=1) is None


def test_a_reserved_group_needs_the_priority_that_entitles():
    mesh = Mesh(
        pool("p", cpu=4, groups=GroupsSpec(reserved=(shape({"cpu": 2}),), dynamic=False)),
        nodes=[node("a", cpu=4)],
    )
    mesh.make_all()
    assert enough(mesh, priority=3.0, cpu=2) == 5.0


def test_a_victim_that_may_go_sooner_does_not_entitle_to_a_reserved_group():
    reserved = (shape({"cpu": 2}), shape({"cpu": 1}))
    kept = GroupsSpec(reserved=reserved, dynamic=False, entitled_above=6.0)
    mesh = Mesh(
        pool("p", cpu=2, groups=kept),
        pool("q", cpu=2),
        nodes=[node("a", cpu=4)],
        cross_pool_priority_threshold=2.0,
    )
    mesh.make_all()
    mesh.run("big", priority=8.0, cpu=2)
    mesh.run("lender", "q", priority=3.0, cpu=1)
    assert enough(mesh, priority=1.0, cpu=1) == 6.0


def test_with_too_many_classes_it_is_not_asked(monkeypatch):
    monkeypatch.setattr(sufficient_priority, "MAX_CLASSES", 1)
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("low", priority=3.0, cpu=1)
    mesh.run("high", priority=8.0, cpu=1)
    assert enough(mesh, priority=3.0, cpu=1) is None


@pytest.mark.parametrize("seed", range(60))
def test_the_named_priority_is_accepted_and_the_next_lower_one_is_not(seed):
    rng = random.Random(seed)
    mesh = Mesh(
        pool("p", cpu=4),
        pool("q", cpu=4),
        nodes=[node("a", cpu=3), node("b", cpu=3)],
        label_preemption_rules={"tier": {"gold": ("iron",)}},
        label_priority_threshold=rng.choice([0.5, 2.0]),
        same_pool_priority_threshold=rng.choice([0.1, 1.0]),
        cross_pool_priority_threshold=rng.choice([0.7, 5.0]),
    )
    for number in range(8):
        name = f"t{number}"
        mesh.submit(
            name,
            rng.choice("pq"),
            priority=rng.choice([1.1, 3.3, 7.0]),
            labels=rng.choice([{}, {"tier": "iron"}]),
            cpu=rng.choice([1, 2]),
            duration=rng.choice([None, 100.0]),
        )
        if name in mesh.starts:
            mesh.report(name)
    how = {"pool_name": "p", "labels": rng.choice([{}, {"tier": "gold"}]), "cpu": 2}
    outcome = mesh.dry("u", priority=-50.0, **how)
    if isinstance(outcome, Accepted):
        return
    if outcome.sufficient_priority is None:
        assert isinstance(mesh.dry("u", priority=1e6, **how), Refused)
        return
    assert isinstance(mesh.dry("u", priority=outcome.sufficient_priority, **how), Accepted)
    lower = math.nextafter(outcome.sufficient_priority, -math.inf)
    assert isinstance(mesh.dry("u", priority=lower, **how), Refused)


def test_no_priority_is_tried_twice():
    mesh = Mesh(pool("p", cpu=8))
    for number in range(8):
        mesh.run(f"t{number}", priority=float(number % 3), cpu=1)
    tried = []

    def victims(priority):
        tried.append(priority)
        plan = mesh.evaluate(priority, "p", cpu=8).candidates
        return plan if len(plan) == 8 else None

    incoming = Incoming(priority=0.5, pool_name="p")
    found = sufficient_priority.sufficient_priority(mesh.state, incoming, victims, lambda: 2.0)
    assert found == 3.0
    assert sorted(set(tried)) == sorted(tried)
