"""How long tasks run by earlier runs: what is learned, and what is estimated from it."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given as given_that
from hypothesis import strategies as st
from msgspec import structs

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.resources import UNIT
from schedulemesh.domain.task_kinds import TaskKind
from schedulemesh.engine.state import estimates
from schedulemesh.engine.state.estimates import Estimates, RunKey, expected_total_s
from tests.engine.builders import Mesh, differences, node, pool

ALICE = TaskKind(owner="alice", pool_name="p", pattern="train-*", gpu=8 * UNIT)


def of(*durations, kind=ALICE):
    """What these runs tell."""
    known = Estimates()
    for seconds in durations:
        known.learn(kind, seconds)
    return known


def ran(mesh, name, seconds, **how):
    """A task runs for so long and is completed."""
    mesh.run(name, **{"cpu": 1, **how})
    mesh.now += seconds
    mesh.complete(name)


def durations(mesh):
    """What is known of the pool's runs."""
    return dict(mesh.state.past.estimates.items()).get(RunKey(pool_name="p"), ())


@pytest.fixture
def mesh():
    return Mesh(pool("p", cpu=4), nodes=[node("n1", cpu=4)])


# estimates


def test_an_estimate_is_the_median_with_the_quartiles():
    found = of(100.0, 200.0, 300.0, 400.0, 1000.0).estimate(ALICE)
    assert (found.seconds, found.low_s, found.high_s, found.runs) == (300.0, 200.0, 400.0, 5)
    assert found.key == RunKey(owner="alice", pattern="train-*", gpu=8 * UNIT)


def test_two_runs_are_too_few():
    assert of(1.0, 2.0).estimate(ALICE) is None


def test_the_most_specific_sort_of_runs_with_enough_of_them_counts():
    known = of(10.0, 10.0, 10.0)
    other_name = structs.replace(ALICE, pattern="eval-*")
    other_owner = structs.replace(ALICE, owner="bob")
    other_size = structs.replace(other_owner, gpu=UNIT)
    assert known.estimate(other_name).key == RunKey(owner="alice", gpu=8 * UNIT)
    assert known.estimate(other_owner).key == RunKey(pool_name="p", gpu=8 * UNIT)
    assert known.estimate(other_size).key == RunKey(pool_name="p")
    assert known.estimate(structs.replace(other_size, pool_name="q")) is None
    for seconds in (500.0, 500.0, 500.0):
        known.learn(other_name, seconds)
    assert known.estimate(ALICE).seconds == 10.0
    assert known.estimate(other_name).seconds == 500.0


def test_without_an_owner_runs_of_the_same_name_and_pool_are_alike():
    nobody = structs.replace(ALICE, owner="")
    found = of(1.0, 2.0, 3.0, kind=nobody).estimate(nobody)
    assert found.key == RunKey(pool_name="p", pattern="train-*", gpu=8 * UNIT)


def test_one_that_has_run_for_long_is_compared_with_longer_runs_only():
    known = of(5.0, 10.0, 10.0, 100.0, 200.0, 300.0)
    assert known.estimate(ALICE, 7.0).seconds == 100.0
    assert known.estimate(ALICE, 10.0).seconds == 200.0
    assert known.estimate(ALICE, 250.0).seconds == 300.0


def test_one_that_has_outlived_all_runs_goes_on_as_long_again():
    known = of(10.0, 20.0, 30.0)
    assert known.estimate(ALICE, 30.0).seconds == 60.0
    assert known.estimate(ALICE, 59.0).seconds == 60.0
    assert known.estimate(ALICE, 60.0).seconds == 120.0
    assert of(0.0, 0.0, 0.0).estimate(ALICE, 3.0).seconds == 4.0


@given_that(
    st.lists(st.floats(0.0, 1e9), min_size=3, max_size=40), st.floats(0.0, 1e9), st.floats(0.0, 1e9)
)
def test_an_estimate_lies_in_the_future_and_grows_with_age(seconds, age, more):
    known = of(*seconds)
    found = known.estimate(ALICE, age)
    assert found.low_s <= found.seconds <= found.high_s
    assert found.seconds > age or found.seconds == age == 0.0
    assert known.estimate(ALICE, age + more).seconds >= found.seconds
    assert known.estimate(ALICE).seconds == pytest.approx(statistics.median(seconds[-32:]))


@given_that(st.floats(0.0, 1e9), st.floats(0.0, 1e9))
def test_what_outlives_an_estimate_goes_on_for_at_most_as_long_again(expected, age):
    seconds = expected_total_s(expected, age)
    assert seconds > age
    assert seconds <= max(expected, 1.0, 2.0 * age)


KINDS = st.builds(
    TaskKind,
    owner=st.sampled_from(["", "a", "b"]),
    pool_name=st.sampled_from(["p", "q"]),
    pattern=st.sampled_from(["x-*", "y"]),
    gpu=st.sampled_from([UNIT, 8 * UNIT]),
)


@given_that(st.lists(st.tuples(KINDS, st.floats(0.0, 1e6)), max_size=60), KINDS, st.integers(0, 60))
def test_what_is_known_is_bounded_and_comes_back_from_where_it_was_stored(runs, kind, cut):
    known, again = Estimates(), Estimates()
    for one, seconds in runs[:cut]:
        known.learn(one, seconds)
    again.restore(known.items())
    for one, seconds in runs[cut:]:
        known.learn(one, seconds)
        again.learn(one, seconds)
    assert list(known.items()) == list(again.items())
    assert known.estimate(kind) == again.estimate(kind)
    assert all(len(durations) <= 32 for _, durations in known.items())


def test_the_sort_of_runs_learned_from_least_recently_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(estimates, "_KEYS", 4)
    known = Estimates()
    for owner in ("a", "b", "a", "c"):
        for _ in range(3):
            known.learn(structs.replace(ALICE, owner=owner), 1.0)
        assert len(known) <= 4
    assert "b" not in {key.owner for key, _ in known.items()}
    assert known.estimate(structs.replace(ALICE, owner="c")).key.owner == "c"


# learning


def test_a_completed_task_is_learned_with_all_its_attempts(mesh):
    mesh.queue("t", cpu=4, class_key="k", on_preempted="requeue")
    mesh.report("t")
    mesh.now += 100
    mesh.submit("urgent", priority=9.0, cpu=4)
    mesh.leave("t", saved=True)
    mesh.report("urgent")
    mesh.now += 1000
    mesh.complete("urgent")
    mesh.report("t")
    mesh.now += 50
    mesh.complete("t")
    assert durations(mesh) == (1000.0, 150.0)


def test_a_task_that_was_not_completed_is_not_learned(mesh):
    for name in ("cancelled", "lost", "deleted", "evicted"):
        mesh.run(name, cpu=1)
    mesh.now += 100
    mesh.cancel("cancelled")
    mesh.leave("cancelled")
    mesh.die("lost")
    mesh.delete("deleted")
    mesh.leave("deleted")
    mesh.submit("urgent", priority=9.0, cpu=4)
    mesh.leave("evicted")
    assert durations(mesh) == ()


def test_a_run_that_raised_is_not_learned(mesh):
    mesh.run("t", cpu=1, run="go")
    mesh.now += 10
    mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED, error="it failed")
    assert durations(mesh) == ()


def test_a_run_that_ended_is_learned(mesh):
    mesh.run("t", cpu=1, run="go")
    mesh.now += 10
    mesh.run_ends("t")
    assert durations(mesh) == (10.0,)


def test_what_was_learned_survives_a_recovery_from_facts_and_from_a_snapshot(mesh):
    for number in range(5):
        ran(mesh, f"train-{number}", 10.0 + number, owner="alice")
    assert durations(mesh) == (10.0, 11.0, 12.0, 13.0, 14.0)
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []
