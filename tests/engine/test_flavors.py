"""Flavors of pools: a quota for each set of nodes, and tasks that take the first in which they can start."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.payloads import GangPayload, JobPayload, LeasePayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Pending, Refused
from tests.engine.builders import Mesh, amount, node, pool
from tests.engine.test_service import pass_time

MODEL = "ray.io/accelerator-type"
H100, A100 = {MODEL: "H100"}, {MODEL: "A100"}
BOTH = {"h100": H100, "a100": A100}


def quota(**gpus):
    """A quota of GPUs by flavor, and enough CPUs."""
    return {"cpu": 64, "custom": {f"gpu@{name}": count for name, count in gpus.items()}}


def nodes(h=4, a=4):
    return [node("h", gpu=h, cpu=32, labels=H100), node("a", gpu=a, cpu=32, labels=A100)]


def mesh(*pools, **counts):
    return Mesh(*pools, nodes=nodes(**counts))


def one_pool(**gpus):
    return mesh(pool("p", flavors=BOTH, **quota(**(gpus or {"h100": 2, "a100": 2}))))


def run(m, name, pool_name="p", **how):
    outcome = m.submit(name, pool_name, **how)
    assert isinstance(outcome, Pending), outcome
    m.make_all()
    if name in m.starts:
        m.report(name)
    return m.state.agents[name].spec


KINDS = {
    "agent": {"gpu": 1},
    "job": {"payload": JobPayload(), "gpu": 1},
    "gang": {"payload": GangPayload(strategy="PACK"), "bundles": [{"gpu": 1}]},
    "lease": {"payload": LeasePayload(strategy="PACK"), "bundles": [{"gpu": 1}]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_flavor_in_which_it_starts_is_taken(kind):
    m = one_pool(h100=1, a100=1)
    first = run(m, "x", **KINDS[kind])
    assert (first.taken_flavor, first.label_selector) == ("h100", H100)
    assert first.quota == amount(custom={"gpu@h100": 1})
    second = run(m, "y", **KINDS[kind])
    assert (second.taken_flavor, second.label_selector) == ("a100", A100)
    assert m.state.ledger.accounts["p"].free == amount(cpu=64)
    refused = m.submit("z", **KINDS[kind])
    assert refused.reason in (Reason.PREEMPTION_FAILED, Reason.INSUFFICIENT_QUOTA)
    assert refused.short_quota == amount(custom={"gpu@h100": 1})


def test_alternatives_whose_pools_have_different_flavors_are_refused():
    small = pool("p", labels={"team": "a"}, flavors={"h100": H100}, **quota(h100=1))
    large = pool("q", labels={"team": "a"}, flavors=BOTH, **quota(h100=2, a100=2))
    m = mesh(small, large, h=1, a=1)
    for name, labels in (("x", H100), ("y", A100)):
        assert run(m, name, "q", priority=9.0, gpu=1, node_labels=labels).flavor is not None
    both = {"selector": {"team": "a"}, "gpu": 1, "fallbacks": [{"takes": {"gpu": 2}}]}
    refused = m.submit("z", "", **both)
    assert "priority 10 would be enough" in refused.error


def test_a_selector_chooses_among_the_flavors():
    m = one_pool()
    assert run(m, "x", gpu=1, node_labels=A100).taken_flavor == "a100"
    assert run(m, "y", gpu=1, node_labels={MODEL: "!H100"}).taken_flavor == "a100"
    both = run(m, "z", gpu=1, node_labels={MODEL: "in(A100,H100)", "zone": "!b"})
    assert (both.taken_flavor, both.flavor.asked_labels[-1]) == ("h100", ("zone", "!b"))


def test_what_no_flavor_has_is_refused_with_the_flavors():
    refused = one_pool().submit("x", gpu=1, node_labels={MODEL: "L40S"})
    assert refused.reason is Reason.NO_FLAVOR
    assert "h100 (ray.io/accelerator-type=H100)" in refused.error


def test_what_needs_no_covered_kind_runs_in_no_flavor():
    m = one_pool()
    spec = run(m, "x", cpu=1)
    assert (spec.flavor, spec.quota) == (None, amount(cpu=1))


def test_alternatives_are_tried_in_every_flavor_before_the_next():
    m = one_pool(h100=1, a100=2)
    how = {"gpu": 2, "fallbacks": [{"takes": {"gpu": 1}}]}
    spec = run(m, "x", **how)
    assert (spec.alternative, spec.taken_flavor) == (0, "a100")
    spec = run(m, "y", **how)
    assert (spec.alternative, spec.taken_flavor) == (1, "h100")


def test_a_flavor_with_quota_and_without_room_is_passed_over():
    m = mesh(pool("p", flavors=BOTH, **quota(h100=4, a100=4)), h=1)
    assert [run(m, name, gpu=1).taken_flavor for name in "xyz"] == ["h100", "a100", "a100"]


def test_a_flavor_is_lent_and_taken_back_by_itself():
    m = mesh(
        pool("a", flavors=BOTH, lending={"cohort": "all"}, **quota(h100=2)),
        pool("b", flavors=BOTH, lending={"cohort": "all"}, **quota(a100=2)),
    )
    borrowed = run(m, "x", "b", gpu=2, priority=5.0)
    assert borrowed.taken_flavor == "h100"
    assert m.state.ledger.loans == {("a", "b"): amount(custom={"gpu@h100": 2})}
    assert run(m, "y", "b", gpu=2, priority=5.0).taken_flavor == "a100"
    m.submit("z", "a", gpu=1, priority=1.0)
    assert list(m.ends) == ["x"], "whoever holds the H100 of the owner, not the A100"
    m.leave("x", saved=True)
    m.report("z")
    assert m.state.agents["z"].spec.taken_flavor == "h100"


def test_a_pool_borrows_no_more_of_a_flavor_than_its_limits():
    few = {"cohort": "all", "borrowing_limit": {"gpu@h100": 1}}
    m = mesh(
        pool("a", flavors=BOTH, lending={"cohort": "all"}, **quota(h100=2)),
        pool("b", flavors=BOTH, lending=few, **quota(a100=1)),
    )
    taken = [run(m, name, "b", gpu=1).taken_flavor for name in "xy"]
    assert taken == ["h100", "a100"]
    assert isinstance(m.submit("z", "b", gpu=1), Refused)


def test_what_is_evicted_frees_the_right_flavor_and_returns_to_all():
    m = one_pool(h100=1, a100=1)
    run(m, "x", gpu=1, priority=1.0, on_preempted="requeue", class_key="c")
    run(m, "y", gpu=1, priority=1.0, on_preempted="requeue", class_key="c")
    m.submit("top", gpu=1, priority=9.0, node_labels=A100)
    assert list(m.ends) == ["y"]
    m.leave("y", saved=True)
    m.report("top")
    (waiting,) = m.state.queue.by_id.values()
    assert (waiting.submission.agent.flavor, waiting.submission.agent.node_labels) == (None, ())
    m.complete("x")
    assert m.state.agents["y"].spec.taken_flavor == "h100"


def test_what_waits_is_explained_for_each_flavor_and_starts_in_the_one_that_is_freed():
    m = one_pool(h100=1, a100=1)
    run(m, "x", gpu=1)
    run(m, "y", gpu=1)
    m.queue("z", gpu=1)
    told = m.engine.explain("z", m.now)
    assert [one.alternative for one in told.alternatives] == [
        "gpu@h100 1 on nodes with ray.io/accelerator-type=H100",
        "gpu@a100 1 on nodes with ray.io/accelerator-type=A100",
    ]
    assert all("lacks gpu@" in one.error for one in told.alternatives)
    pass_time(m, 1.0)
    m.complete("y")
    assert m.state.agents["z"].spec.taken_flavor == "a100"


def test_owners_are_limited_in_all_flavors_and_in_one():
    limits = parse_owner_limits({"default": {"gpu": 2, "custom": {"gpu@h100": 1}}})
    spec = pool("p", flavors=BOTH, **quota(h100=4, a100=4))
    m = mesh(msgspec.structs.replace(spec, owner_limits=limits))
    taken = [run(m, name, gpu=1, owner="ada").taken_flavor for name in "xy"]
    assert taken == ["h100", "a100"]
    assert m.submit("z", gpu=1, owner="ada").reason is Reason.OWNER_LIMIT


def test_a_pool_may_lose_a_flavor_in_which_tasks_run_and_for_which_one_waits():
    m = one_pool(h100=1, a100=1)
    run(m, "x", gpu=1)
    run(m, "y", gpu=1)
    m.queue("z", gpu=1)
    pass_time(m, 1.0)
    assert m.state.queue.by_id["z"].reservation.flavor == "h100"
    m.resize(pool("p", flavors={"a100": A100}, **quota(a100=1)))
    pass_time(m, 1.0)
    assert m.state.queue.by_id["z"].reservation.flavor == "a100"
    m.complete("x")
    assert "z" not in m.state.agents
    m.complete("y")
    assert m.state.agents["z"].spec.taken_flavor == "a100"


def test_a_snapshot_and_the_journal_keep_the_flavor():
    m = one_pool(h100=1, a100=1)
    run(m, "x", gpu=1)
    for state in (m.refolded(), m.rewritten()):
        assert state.agents["x"].spec == m.state.agents["x"].spec
        assert state.ledger.flavored == {"p"}


def test_a_submission_that_chooses_its_pool_is_tried_in_the_flavors_of_that():
    m = mesh(
        pool("p", flavors=BOTH, labels={"team": "a"}, **quota(h100=1, a100=1)),
        pool("q", labels={"team": "b"}, gpu=1, cpu=1),
    )
    m.submit("x", selector={"team": "a"}, gpu=1)
    spec = m.state.agents["x"].spec
    assert (spec.pool_name, spec.taken_flavor) == ("p", "h100")


@pytest.mark.parametrize("queueing", ["best_effort", "strict"])
def test_an_owner_at_its_limit_in_every_flavor_is_passed_over(queueing):
    limits = parse_owner_limits({"ada": {"custom": {"gpu@h100": 1, "gpu@a100": 0}}})
    spec = pool("p", flavors=BOTH, **quota(h100=2, a100=1))
    m = mesh(msgspec.structs.replace(spec, owner_limits=limits, queueing=queueing))
    run(m, "x", gpu=1, owner="ada")
    m.queue("y", gpu=1, owner="ada", priority=9.0)
    m.queue("z", gpu=1, owner="ada", priority=9.0, node_labels=H100)
    pass_time(m, 1.0)
    assert m.state.queue.by_id["y"].reservation is None
    told = m.engine.explain("y", m.now)
    assert told.reason == "owner_limit"
    m.queue("b", gpu=1, owner="ben")
    assert m.state.agents["b"].spec.taken_flavor == "h100"
    m.complete("x")
    assert m.state.agents["y"].spec.taken_flavor == "h100"
    assert m.waiting() == ["z"]


def test_a_pool_keeps_its_flavors_with_another_name():
    m = one_pool(h100=1, a100=1)
    run(m, "x", gpu=1)
    m.queue("y", gpu=1, node_labels=H100)
    assert isinstance(m.submit("large", gpu=2), Refused), "no flavor has as many"
    m.rename_pool("p", "q")
    assert run(m, "z", "q", gpu=1).taken_flavor == "a100"
    assert m.waiting("q") == ["y"]
    m.complete("x")
    assert m.state.agents["y"].spec.taken_flavor == "h100"
    m.report("y")
    for name in "yz":
        m.complete(name)
    m.delete_pool("q")
    assert m.state.ledger.flavored == set()


def test_what_names_no_resources_gets_its_part_of_all_flavors():
    spec = pool("p", agents=2, flavors=BOTH, **quota(h100=2, a100=2))
    m = mesh(spec)
    m.queue("x", more={"default_resources": True})
    assert (m.state.agents["x"].spec.resources, m.state.agents["x"].spec.taken_flavor) == (
        amount(cpu=32, gpu=2),
        "h100",
    )
    m.queue("y", more={"default_resources": True})
    m.queue("z", more={"default_resources": True})
    assert m.state.agents["y"].spec.taken_flavor == "a100"
    assert m.waiting() == ["z"]
    m.resize(pool("p", agents=8, flavors={"a100": A100}, **quota(a100=8)))
    m.report("y")
    m.complete("y")
    assert m.state.agents["z"].spec.resources == amount(cpu=8, gpu=1)
    assert m.state.agents["z"].spec.taken_flavor == "a100"
