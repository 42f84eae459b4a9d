"""Cohorts: the tree, and how it is created and changed."""

from __future__ import annotations

import pytest

from schedulemesh.domain.cohort import CohortSpec
from schedulemesh.engine.messages import stimuli as s
from tests.engine.builders import Mesh, differences, pool


def member(name, cohort):
    return pool(name, cpu=4, lending={"cohort": cohort})


def nested():
    """root { a { p, q }, b { r } , s }, and t in a tree of its own."""
    mesh = Mesh()
    for name, parent in (("root", None), ("a", "root"), ("b", "root")):
        assert mesh.cohort(name, parent).change == "created"
    for name, cohort in (("p", "a"), ("q", "a"), ("r", "b"), ("s", "root"), ("t", "other")):
        mesh.resize(member(name, cohort))
    return mesh


def near(mesh, name):
    return mesh.state.ledger.cohorts.neighbours(name).by_distance


def test_pools_of_one_cohort_are_neighbours_and_a_cohort_exists_once_it_is_named():
    mesh = Mesh(member("p", "c"), member("q", "c"), pool("r", cpu=1))
    assert near(mesh, "p") == ((0, "q"),)
    assert near(mesh, "r") == ()
    assert mesh.state.ledger.cohorts.specs == {"c": CohortSpec(name="c")}


def test_the_nearest_pools_of_nested_cohorts_come_first():
    mesh = nested()
    assert near(mesh, "p") == ((0, "q"), (1, "r"), (1, "s"))
    assert near(mesh, "s") == ((0, "p"), (0, "q"), (0, "r"))
    assert near(mesh, "t") == ()
    assert sorted(mesh.state.ledger.cohorts.pools_below("a")) == ["p", "q"]


def test_a_pool_changes_its_cohort_and_leaves_it():
    mesh = nested()
    mesh.resize(member("q", "other"))
    assert near(mesh, "p") == ((1, "r"), (1, "s"))
    assert near(mesh, "t") == ((0, "q"),)
    mesh.resize(member("q", None))
    assert near(mesh, "t") == ()


def test_a_cohort_that_leaves_its_parent_takes_its_pools_along():
    mesh = nested()
    assert mesh.cohort("a").change == "changed"
    assert near(mesh, "p") == ((0, "q"),)
    assert near(mesh, "r") == ((1, "s"),)


def test_the_same_definition_again_changes_nothing():
    mesh = nested()
    seen = len(mesh.facts)
    assert mesh.cohort("a", "root").change == "unchanged"
    assert mesh.cohort("a", "root", weight=2.0).change == "changed"
    assert len(mesh.facts) == seen + 1


def test_an_unknown_parent_is_refused_with_the_known_ones():
    refused = nested().cohort("a", "rot")
    assert refused.reason == "cohort_not_found"
    assert "'rot'" in refused.error
    assert "a, b, other, root" in refused.error


@pytest.mark.parametrize("parent", ["root", "a", "deep"])
def test_a_cohort_is_never_above_itself(parent):
    mesh = nested()
    mesh.cohort("deep", "a")
    refused = mesh.cohort("root", parent)
    assert refused.reason == "cohort_cycle"
    assert "'root'" in refused.error


def test_cohorts_and_loans_come_back_from_facts_and_from_snapshots():
    mesh = nested()
    mesh.run("x", "p", cpu=6)
    assert mesh.state.ledger.loans
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


# loans that the tree does not allow any more


def lent(*, moved=None):
    """p has lent 4 CPUs to q."""
    mesh = Mesh()
    mesh.cohort("top")
    mesh.cohort("c", "top")
    for name, cpu, cohort in (("p", 4, "c"), ("q", 0, "top")):
        mesh.resize(pool(name, cpu=cpu, lending={"cohort": cohort}))
    mesh.run("b", "q", 20.0, cpu=4)
    return mesh


LEAVES = {
    "the owner leaves": lambda m: m.resize(pool("p", cpu=4)),
    "the owner moves": lambda m: m.resize(pool("p", cpu=4, lending={"cohort": "other"})),
    "the borrower leaves": lambda m: m.resize(pool("q")),
    "the tree is divided": lambda m: m.cohort("c", None),
}


@pytest.mark.parametrize("how", LEAVES)
def test_an_owner_gets_back_what_it_lent_before_the_cohort_was_changed(how):
    mesh = lent()
    outcome = LEAVES[how](mesh)
    assert ["pool 'p' has cpu 4 on loan to pool 'q'" in w for w in outcome.warnings] == [True]
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []
    mesh.submit("own", "p", 0.0, cpu=4)
    mesh.slot("own")
    assert mesh.state.past.preemption_counts == {"reclaim": 1}


@pytest.mark.parametrize("how", LEAVES)
def test_neither_is_a_loan_forgotten_that_was_only_promised(how):
    """The borrower waits for what is leaving while the cohort is changed."""
    mesh = Mesh()
    mesh.cohort("top")
    mesh.cohort("c", "top")
    for name, cpu, cohort in (("p", 4, "c"), ("q", 0, "top")):
        mesh.resize(pool(name, cpu=cpu, lending={"cohort": cohort}))
    mesh.run("done", "p", cpu=4)
    mesh.handle(s.TaskFinished(task_id="done", end_agent=True))
    mesh.submit("b", "q", 20.0, cpu=4)
    assert mesh.state.ledger.promises
    outcome = LEAVES[how](mesh)
    assert ["pool 'p' has cpu 4 on loan to pool 'q'" in w for w in outcome.warnings] == [True]
    mesh.leave("done")
    mesh.report("b")
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []
    mesh.submit("own", "p", 0.0, cpu=4)
    mesh.slot("own")
    assert mesh.state.past.preemption_counts == {"reclaim": 1}


def test_what_a_task_of_another_pool_got_by_preemption_is_not_reclaimed():
    mesh = Mesh(pool("p", cpu=4), pool("q", cpu=4))
    mesh.run("low", "p", 0.0, cpu=4)
    mesh.run("own", "q", 20.0, cpu=4)
    mesh.submit("high", "q", 20.0, cpu=4)
    mesh.slot("high")
    assert mesh.state.ledger.loans
    refused = mesh.submit("again", "p", 0.0, cpu=4)
    assert refused.reason == "preemption_failed"


def test_a_limit_below_what_is_on_loan_is_warned_of():
    mesh = lent()
    outcome = mesh.resize(pool("p", cpu=4, lending={"cohort": "c", "lending_limit": 0}))
    assert "lending_limit of pool 'p' is below the cpu 4 that it has lent" in outcome.warnings[0]
