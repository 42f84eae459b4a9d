"""Budgets: the rules of ``docs/budgets.md``, one by one."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.budgets import parse_budget, parse_owner_budgets
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.pool_facts import BudgetLevelChanged
from tests.engine.builders import Mesh, differences, node, pool

HOUR = 3600.0
DAY = 24 * HOUR


def with_budgets(spec, budget=None, **owners):
    """The pool with this budget, and these by owner."""
    owner_budgets = parse_owner_budgets(owners)
    return msgspec.structs.replace(spec, budget=parse_budget(budget), owner_budgets=owner_budgets)


def mesh_of(budget=None, *, gpus=8, **owners):
    """Eight GPUs, at 01:00 of a day."""
    mesh = Mesh(nodes=[node("n", cpu=64, gpu=gpus)])
    mesh.now = HOUR
    mesh.resize(with_budgets(pool("p", cpu=64, gpu=gpus), budget, **owners))
    return mesh


def daily(gpu_hours, **more):
    return {"gpu_hours": gpu_hours, "period": "day", **more}


def pass_time(mesh, seconds):
    """A tick after so many seconds."""
    mesh.now += seconds
    mesh.tick()


def run(mesh, name, **how):
    mesh.queue(name, **how)
    mesh.report(name)


def differs(mesh):
    """Where the state differs from the one that its facts, or its snapshot, make."""
    return differences(mesh.state, mesh.refolded()) + differences(mesh.state, mesh.rewritten())


def used(mesh, owner=None):
    """The GPU-hours that a budget of the pool was charged for in the present period."""
    budgets = mesh.state.budgets.by_pool["p"]
    meter = budgets.total if owner is None else budgets.owners[owner]
    return meter.used(budgets.budget(owner), mesh.now) / HOUR


def levels(mesh):
    return [
        (fact.owner, fact.level, fact.at) for fact in mesh.facts if type(fact) is BudgetLevelChanged
    ]


def test_a_claim_is_charged_from_its_start_until_its_process_is_gone():
    mesh = mesh_of(daily(100))
    mesh.queue("a", gpu=2)
    pass_time(mesh, HOUR)
    assert used(mesh) == 0
    mesh.report("a")
    pass_time(mesh, HOUR)
    assert used(mesh) == 2
    mesh.delete("a")
    pass_time(mesh, HOUR / 2)
    assert used(mesh) == 3
    mesh.leave("a")
    pass_time(mesh, HOUR)
    assert used(mesh) == 3
    assert differs(mesh) == []


def test_a_spent_budget_holds_what_waits_and_lets_run_what_runs():
    mesh = mesh_of(daily(4))
    run(mesh, "a", gpu=2)
    pass_time(mesh, 2 * HOUR)
    mesh.queue("b", gpu=1)
    mesh.queue("c", cpu=1)
    assert list(mesh.starts) == ["c"]
    assert mesh.waiting() == ["b"]
    explained = mesh.engine.explain("b", mesh.now)
    assert explained.reason == "budget_spent"
    assert explained.error == (
        "budget spent: pool 'p' has used 4 of 4 GPU-hours of this day, which ends on "
        "1970-01-02 00:00 UTC"
    )
    assert explained.earliest_start == DAY
    assert mesh.ends == {}
    assert differs(mesh) == []


def test_it_starts_when_the_period_turns():
    mesh = mesh_of(daily(4))
    run(mesh, "a", gpu=2)
    pass_time(mesh, 2 * HOUR)
    mesh.queue("b", gpu=1)
    mesh.now = DAY - 1
    mesh.tick()
    assert mesh.waiting() == ["b"]
    mesh.now = DAY
    mesh.tick()
    assert list(mesh.starts) == ["b"]
    assert levels(mesh) == [(None, 100, 3 * HOUR), (None, 0, DAY)]
    mesh.now += HOUR
    assert used(mesh) == 2
    assert differs(mesh) == []


def test_eighty_percent_and_a_hundred_are_told_once_each():
    mesh = mesh_of(daily(10))
    run(mesh, "a", gpu=1)
    for _ in range(24):
        pass_time(mesh, HOUR / 2)
    assert levels(mesh) == [(None, 80, 9 * HOUR), (None, 100, 11 * HOUR)]


def test_without_queue_a_task_is_refused():
    mesh = mesh_of(daily(1))
    run(mesh, "a", gpu=1)
    pass_time(mesh, HOUR)
    refused = mesh.submit("b", gpu=1)
    assert isinstance(refused, Refused)
    assert refused.reason == "budget_spent"
    assert mesh.dry("b", gpu=1).earliest_start == DAY


def test_a_task_that_is_beyond_its_owners_limit_too_is_told_both():
    mesh = mesh_of(default=daily(2))
    mesh.resize(
        msgspec.structs.replace(
            mesh.state.ledger.accounts["p"].spec,
            owner_limits=parse_owner_limits({"default": {"running": 1}}),
        )
    )
    run(mesh, "a", gpu=1, owner="ada")
    pass_time(mesh, 2 * HOUR)
    mesh.queue("b", gpu=1, owner="ada")
    explained = mesh.engine.explain("b", mesh.now)
    assert explained.reason == "budget_spent"
    assert [other.reason for other in explained.others] == ["owner_limit"]


def test_a_budget_that_warns_starts_everything():
    mesh = mesh_of(daily(1, then="warn"))
    run(mesh, "a", gpu=1)
    pass_time(mesh, 2 * HOUR)
    mesh.queue("b", gpu=1)
    assert "b" in mesh.starts
    assert levels(mesh) == [(None, 100, 3 * HOUR)]


def test_a_lowered_priority_is_that_of_what_waits_and_runs_until_the_period_turns():
    mesh = mesh_of(daily(4, then="lower_priority"), gpus=2)
    run(mesh, "a", gpu=2, priority=5.0)
    mesh.queue("b", gpu=2, priority=3.0)
    mesh.queue("c", cpu=64, priority=2.0)
    pass_time(mesh, 2 * HOUR)
    assert mesh.state.running.by_id["a"].spec.priority == 0.1
    assert mesh.state.queue.by_id["b"].spec.priority == 0.1
    assert differs(mesh) == []
    mesh.now = DAY
    mesh.tick()
    assert mesh.state.running.by_id["a"].spec.priority == 5.0
    assert mesh.state.queue.by_id["b"].spec.priority == 3.0
    assert differs(mesh) == []


def test_a_task_whose_priority_is_lowered_is_evicted_for_others():
    lowering = {"gpu_hours": 2, "period": "day", "then": "lower_priority", "priority": "low"}
    mesh = mesh_of(gpus=2, ada=lowering)
    run(mesh, "a", gpu=2, priority=5.0, owner="ada")
    mesh.queue("b", gpu=2, priority=3.0, owner="ben")
    mesh.tick()
    assert mesh.ends == {}
    pass_time(mesh, HOUR)
    assert list(mesh.ends) == ["a"]
    assert mesh.submit("a2", gpu=1, priority=5.0, owner="ada").reason != "budget_spent"


def test_each_owner_has_its_own_and_those_that_have_none_share_none():
    mesh = mesh_of(default=daily(2), ada={"gpu_hours": 4}, nightly={"gpu_hours": None})
    for owner in ("ada", "ben", "nightly"):
        run(mesh, f"{owner}-1", gpu=1, owner=owner)
    pass_time(mesh, 2 * HOUR)
    for owner in ("ada", "ben", "nightly", "cid"):
        mesh.queue(f"{owner}-2", gpu=1, owner=owner)
    assert mesh.waiting() == ["ben-2"]
    assert mesh.engine.explain("ben-2", mesh.now).error == (
        "budget spent: owner 'ben' in pool 'p' has used 2 of 2 GPU-hours of this day, which ends on "
        "1970-01-02 00:00 UTC"
    )
    assert used(mesh, "ada") == 2
    assert "nightly" not in mesh.state.budgets.by_pool["p"].owners
    assert differs(mesh) == []


def test_a_strict_pool_does_not_wait_for_what_a_budget_holds():
    mesh = Mesh(nodes=[node("n", cpu=8, gpu=8)])
    spec = msgspec.structs.replace(pool("p", cpu=8, gpu=8), queueing="strict")
    mesh.resize(with_budgets(spec, default=daily(1)))
    run(mesh, "a", gpu=1, owner="ada")
    pass_time(mesh, HOUR)
    mesh.queue("a2", gpu=1, owner="ada", priority=9.0)
    mesh.queue("b", gpu=1, owner="ben")
    mesh.tick()
    assert list(mesh.starts) == ["b"]
    assert mesh.state.queue.by_id["a2"].reservation is None


def test_a_raised_budget_lets_start_what_waits_and_a_lowered_one_holds():
    mesh = mesh_of(daily(2))
    run(mesh, "a", gpu=1)
    pass_time(mesh, 2 * HOUR)
    mesh.queue("b", gpu=1)
    assert mesh.waiting() == ["b"]
    spec = pool("p", cpu=64, gpu=8)
    mesh.resize(with_budgets(spec, daily(10)))
    assert "b" in mesh.starts
    mesh.queue("c", gpu=7)
    mesh.resize(with_budgets(spec, daily(1)))
    assert mesh.waiting() == ["c"]
    mesh.complete("a")
    assert mesh.waiting() == ["c"]
    mesh.resize(spec)
    assert mesh.waiting() == []
    mesh.resize(with_budgets(spec, daily(1)))
    assert used(mesh) == 0
    assert differs(mesh) == []


def test_borrowed_quota_is_charged_to_the_pool_that_uses_it():
    mesh = Mesh(nodes=[node("n", cpu=8, gpu=8)])
    for name in ("p", "q"):
        spec = pool(name, cpu=8, gpu=4, lending={"cohort": "all"})
        mesh.resize(with_budgets(spec, daily(100)))
    run(mesh, "a", gpu=8)
    pass_time(mesh, HOUR)
    assert used(mesh) == 8
    lender = mesh.state.budgets.by_pool["q"]
    assert lender.total.used(lender.spec.budget, mesh.now) == 0


def test_an_agent_without_a_task_is_charged_to_the_first_owner_whose_task_is_registered_on_it():
    mesh = mesh_of(daily(100), default=daily(50))
    mesh.submit("worker", gpu=1, task=False)
    mesh.report("worker")
    pass_time(mesh, HOUR)
    assert (used(mesh), used(mesh, "")) == (1, 1)
    mesh.announce("t", "worker", owner="ada")
    pass_time(mesh, HOUR)
    assert (used(mesh), used(mesh, ""), used(mesh, "ada")) == (2, 1, 1)
    assert differs(mesh) == []


def test_it_survives_a_rename_and_ends_with_its_pool():
    mesh = mesh_of(daily(4))
    run(mesh, "a", gpu=2)
    pass_time(mesh, 2 * HOUR)
    mesh.queue("b", gpu=1)
    mesh.rename_pool("p", "r")
    assert mesh.engine.explain("b", mesh.now).reason == "budget_spent"
    assert differs(mesh) == []
    mesh.delete_pool("r", drain=True)
    mesh.tick()
    mesh.leave("a")
    assert mesh.state.budgets.by_pool == {}


@pytest.mark.parametrize(
    ("period", "offset", "now", "begin", "end"),
    [
        ("day", "+00:00", 1.5 * DAY, DAY, 2 * DAY),
        ("day", "+08:00", 1.5 * DAY, 2 * DAY - 8 * HOUR - DAY, 2 * DAY - 8 * HOUR),
        ("day", "-03:30", DAY, 3.5 * HOUR, DAY + 3.5 * HOUR),
        # 1970-01-01 was a Thursday.
        ("week", "+00:00", 4 * DAY, 4 * DAY, 11 * DAY),
        ("week", "+00:00", 4 * DAY - 1, -3 * DAY, 4 * DAY),
        ("month", "+00:00", 30.5 * DAY, 0, 31 * DAY),
        ("month", "+00:00", 31 * DAY, 31 * DAY, 59 * DAY),
        ("month", "+08:00", 31 * DAY - 8 * HOUR, 31 * DAY - 8 * HOUR, 59 * DAY - 8 * HOUR),
    ],
)
def test_periods_are_those_of_the_calendar(period, offset, now, begin, end):
    budget = parse_budget({"gpu_hours": 1, "period": period, "utc_offset": offset})
    assert (budget.begin(now), budget.end(now)) == (begin, end)
