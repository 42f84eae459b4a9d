"""Why a task waits: each reason is produced by the engine, with what is short, who holds it, what helps."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from schedulemesh.config.queueing import ORDERS
from schedulemesh.domain.budgets import parse_budget
from schedulemesh.domain.cohort import LoanLimit
from schedulemesh.domain.demand import ExternalDemand
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reason_uses import QUEUE_REASONS
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.texts.codes import CODES
from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.explanation import queued
from schedulemesh.engine.explanation.waiting import OF_SEARCH
from schedulemesh.engine.messages.stimuli import DrainRequested, WindowRequested
from tests.engine.builders import Mesh, amount, differences, node, pool


class Explained(Mesh):
    """A mesh whose explanations must change nothing."""

    def explain(self, task_id):
        before = self.rewritten()
        listed = self.cause_of(task_id)
        found = self.engine.explain(task_id, self.now)
        assert differences(self.state, before) == []
        if found.state == "queued":
            # A listing has the same reason: at once, or where it takes a search, from then on.
            assert listed.reason in codes(found) or found.reason in OF_SEARCH
            assert self.cause_of(task_id).reason == found.reason
        return found

    def cause_of(self, task_id):
        """Why a task waits by the listing; None: it does not."""
        waiting = self.state.queue.by_id.get(task_id)
        return waiting and self.engine.wait_causes(self.now).cause_of(waiting)


def strict(name, **quota):
    return msgspec.structs.replace(pool(name, **quota), queueing="strict")


def codes(explained):
    return [explained.reason, *(finding.reason for finding in explained.others)]


def full():
    """Pool p of 4 CPUs, all held by ``big`` and ``small``; ``t`` waits for 2 of them."""
    given = Explained(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    given.run("big", cpu=3, duration=100.0)
    given.run("small", cpu=1)
    given.queue("t", cpu=2)
    return given


def test_short_of_quota_it_says_by_how_much_and_who_holds_it():
    found = full().explain("t")
    assert (found.state, found.reason) == ("queued", Reason.INSUFFICIENT_QUOTA)
    assert found.short_quota == amount(cpu=2)
    assert [h.agent_name for h in found.holders] == ["big", "small"]
    assert found.error == (
        "pool 'p' lacks cpu 2 of the cpu 2 asked for; nothing of its cpu 4 is free; "
        "held by big (cpu 3), small (cpu 1)"
    )
    assert "resize the pool" in found.hint


def test_it_says_which_rule_spares_how_many_and_which_priority_would_do():
    found = full().explain("t")
    assert found.considered.tasks == 2
    assert found.considered.turned_away == {Reason.BELOW_SAME_POOL_THRESHOLD: 2}
    assert found.considered.sufficient_priority == 6.0
    assert found.considered.victims == ()


def test_its_position_counts_all_that_come_before_it_and_names_the_first():
    given = full()
    for number in range(7):
        given.queue(f"u{number}", cpu=2, priority=5.5)
    found = given.explain("t")
    assert (found.position, found.queue_length) == (8, 8)
    assert found.before == ("u0", "u1", "u2", "u3", "u4")
    assert given.explain("u0").before == ()


def test_the_earliest_start_is_when_estimates_free_enough():
    given = full()
    found = given.explain("t")
    assert (found.earliest_start, found.no_estimate) == (1100.0, "")
    assert not found.start_waits_for_overdue
    unknown = Explained(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    unknown.run("all", cpu=4)
    unknown.queue("t", cpu=2)
    found = unknown.explain("t")
    assert found.earliest_start is None
    assert found.no_estimate == "tasks that hold what is short have no estimated_duration"


def test_a_start_that_waits_for_a_task_that_runs_on_is_said_to_rest_on_a_guess():
    given = full()
    given.now += 200
    found = given.explain("t")
    assert (found.earliest_start, found.start_waits_for_overdue) == (1260.0, True)
    given.tick()
    assert given.explain("t") == found
    given.tick(3600 + 100)
    found = given.explain("t")
    assert (found.earliest_start, found.start_waits_for_overdue) == (6220.0, True)
    assert given.state.queue.by_id["t"].reservation.at is None, "that is no reserved start any more"


def test_a_start_for_which_others_that_run_on_do_not_matter_is_no_guess():
    given = Explained(pool("p", cpu=4), nodes=[node("n1", cpu=2), node("n2", cpu=2)])
    given.run("overdue", cpu=2, duration=100.0, node_id="n1")
    given.run("other", cpu=2, duration=205.0, node_id="n2")
    given.now += 202
    given.queue("t", cpu=2)
    found = given.explain("t")
    assert (found.earliest_start, found.start_waits_for_overdue) == (1205.0, False)


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_the_earliest_start_leaves_quota_to_those_before_it(weight):
    given = Explained(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    given.policy(remaining_time_weight=weight)
    for number in range(4):
        given.run(f"r{number}", cpu=1, priority=9, duration=100.0 * (number + 1))
    given.queue("first", cpu=2)
    given.queue("second", cpu=1)
    assert given.explain("first").earliest_start == 1200.0
    assert given.explain("second").earliest_start == 1300.0
    given.queue("third", cpu=2)
    assert "more than its pool has at once" in given.explain("third").no_estimate


def test_the_earliest_start_waits_for_room_on_one_node():
    given = Explained(pool("p", gpu=9), nodes=[node("n1", gpu=2), node("n2", gpu=2)])
    for name, where, duration in (
        ("a", "n1", 100.0),
        ("b", "n2", 200.0),
        ("c", "n2", 300.0),
        ("d", "n1", 400.0),
    ):
        given.run(name, gpu=1, priority=9, duration=duration, node_id=where)
    given.queue("t", gpu=2)
    found = given.explain("t")
    assert found.reason == Reason.INSUFFICIENT_RESOURCES
    assert found.earliest_start == 1300.0


def test_a_held_task_says_so_before_all_else():
    given = full()
    given.change("t", held=True)
    found = given.explain("t")
    assert codes(found) == [Reason.HELD_BY_USER, Reason.INSUFFICIENT_QUOTA]
    assert found.hint == "release_task('t') lets it start"
    assert (found.earliest_start, found.no_estimate) == (None, "it is held")


def test_a_task_that_found_no_room_in_ray_says_when_it_is_tried_again():
    given = Explained(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    given.queue("t", cpu=4)
    given.fail("t", reason=Reason.CLUSTER_OUT_OF_RESOURCES)
    found = given.explain("t")
    assert codes(found) == [Reason.BACK_OFF]
    assert found.error == ("it is tried again in 2 s, because its last start found no room in Ray")
    assert found.earliest_start == 1002.0


def test_nothing_passes_the_head_of_a_strict_pool():
    given = Explained(strict("p", cpu=4), nodes=[node("n1", cpu=8)])
    given.run("a", cpu=3)
    given.queue("head", cpu=4)
    given.queue("t", cpu=1)
    found = given.explain("t")
    assert codes(found) == [Reason.BEHIND_QUEUE_HEAD]
    assert found.error == "1 task of pool 'p' must start before it: the pool's queue is strict"
    assert found.before == ("head",)
    assert given.explain("head").reason == Reason.INSUFFICIENT_QUOTA


def test_a_task_that_its_strict_pool_cannot_hold_any_more_says_so_and_stops_nobody():
    given = Explained(strict("p", cpu=8), nodes=[node("n1", cpu=16)])
    given.run("a", cpu=4, duration=100.0)
    for name, cpu in (("large", 8), ("head", 5), ("t", 1)):
        given.queue(name, cpu=cpu)
    given.resize(strict("p", cpu=6))
    large, head, t = map(given.explain, ("large", "head", "t"))
    assert codes(large) == [Reason.EXCEEDS_POOL_CAPACITY]
    assert large.error.startswith("the task asks for cpu 8, but pool 'p' has cpu 6 in total")
    assert large.hint.endswith("; those behind it do not wait for it")
    assert (codes(head), head.position) == ([Reason.INSUFFICIENT_QUOTA], 2)
    assert head.earliest_start == given.now + 100.0
    assert t.error == "1 task of pool 'p' must start before it: the pool's queue is strict"


def test_a_task_that_waits_for_a_node_says_that_nothing_of_its_strict_pool_passes_it():
    given = Explained(strict("p", cpu=8), nodes=[node("n1", cpu=4)])
    given.queue("large", cpu=8)
    given.queue("t", cpu=1)
    assert given.explain("large").reason == Reason.CLUSTER_OUT_OF_RESOURCES
    assert given.explain("large").hint.endswith("; nothing of its strict pool starts before it")
    assert codes(given.explain("t")) == [Reason.BEHIND_QUEUE_HEAD]


def test_others_are_evicted_for_the_first_task_only():
    given = Explained(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    given.run("a", cpu=4, priority=1)
    given.queue("first", cpu=4, priority=1)
    given.queue("t", cpu=4, priority=1)
    given.change("first", to_front=True)
    given.change("t", priority=9.0)
    found = given.explain("t")
    assert codes(found) == [Reason.BEHIND_QUEUE_HEAD, Reason.INSUFFICIENT_QUOTA]
    assert found.considered.victims == ("a",)
    assert "move_to_front('t')" in found.hint


def test_a_task_that_fits_waits_where_it_would_delay_a_reserved_start():
    given = Explained(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    given.run("a", cpu=3, duration=60.0)
    given.queue("head", cpu=4)
    given.tick(1)
    given.queue("t", cpu=1, duration=600.0)
    found = given.explain("t")
    assert codes(found) == [Reason.HELD_FOR_QUEUE]
    assert found.error == (
        "cpu 1 is free, but its start would delay those that are reserved for 'head'"
    )
    head = given.explain("head")
    assert head.earliest_start == given.state.queue.by_id["head"].reservation.at == 1060.0


def test_the_next_pass_evicts_for_a_task_whose_priority_was_raised():
    given = Explained(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    given.run("a", cpu=4, priority=5)
    given.queue("t", cpu=4, priority=5)
    given.change("t", priority=20.0)
    found = given.explain("t")
    assert codes(found) == [Reason.NEXT_SCHEDULING_PASS, Reason.INSUFFICIENT_QUOTA]
    assert found.considered.victims == ("a",)
    given.tick(1)
    assert "a" in given.ends


def test_a_class_has_to_load_before_others_are_evicted():
    given = Explained(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    given.run("a", cpu=4, priority=1)
    given.queue("t", cpu=4, priority=9, class_key="new")
    found = given.explain("t")
    assert codes(found) == [Reason.CLASS_NOT_LOADED, Reason.INSUFFICIENT_QUOTA]
    assert found.considered.victims == ("a",)


def test_a_full_node_is_said_to_be_full():
    given = Explained(pool("p", gpu=9), nodes=[node("n1", gpu=2), node("n2", gpu=2)])
    given.run("a", gpu=2)
    given.run("b", gpu=1)
    given.queue("t", gpu=2)
    found = given.explain("t")
    assert codes(found) == [Reason.INSUFFICIENT_RESOURCES]
    assert found.short_node == amount(gpu=1)
    assert [h.agent_name for h in found.holders] == ["b"]
    assert found.error.startswith("no node has room for gpu 2; the closest, ")


def test_with_very_many_agents_only_the_rules_are_asked(monkeypatch):
    monkeypatch.setattr(queued, "_SEARCHED_AGENTS", 1)
    given = Explained(pool("p", gpu=9), nodes=[node("n1", gpu=2)])
    given.run("a", gpu=1, priority=1)
    given.run("b", gpu=1, priority=5)
    given.queue("t", gpu=2, priority=5)
    considered = given.explain("t").considered
    assert (considered.searched, considered.evictable) == (False, 1)
    assert considered.turned_away == {Reason.BELOW_SAME_POOL_THRESHOLD: 1}
    assert considered.sufficient_priority is None


def test_a_cordoned_node_with_room_is_named():
    given = Explained(pool("p", cpu=9), nodes=[node("n1", cpu=4), node("n2", cpu=4)])
    given.run("a", cpu=4, node_id="n1")
    given.cordon("n2")
    given.queue("t", cpu=4)
    found = given.explain("t")
    assert codes(found) == [Reason.NODES_CORDONED, Reason.INSUFFICIENT_RESOURCES]
    assert found.hint == "cordon_node('n2', cordoned=False) opens it again"


def test_what_opens_a_drained_node_is_not_what_opens_a_cordoned_one():
    given = Explained(pool("p", cpu=9), nodes=[node("n1", cpu=4)])
    given.handle(DrainRequested(node_id="n1", client="me"))
    given.queue("t", cpu=4)
    found = given.explain("t")
    assert found.reason == Reason.NODES_CORDONED
    assert found.error.endswith("it is drained")
    assert found.hint == "undrain_node('n1') opens it again"

    draining = msgspec.structs.replace(node("n1", cpu=4), draining=True)
    given = Explained(pool("p", cpu=9), nodes=[draining])
    given.queue("t", cpu=4)
    found = given.explain("t")
    assert found.error.endswith("Ray drains it")
    assert found.hint == "it starts on another node; add one"


def test_other_ray_work_is_named_where_it_takes_the_room():
    given = Explained(
        pool("p", cpu=9), nodes=[node("n1", cpu=4, others=amount(cpu=3)), node("n2", cpu=4)]
    )
    given.run("a", cpu=4, node_id="n2")
    given.queue("t", cpu=4)
    found = given.explain("t")
    assert codes(found) == [Reason.EXTERNAL_RAY_WORK, Reason.INSUFFICIENT_RESOURCES]
    assert [(e.node_id, e.resources) for e in found.external] == [("n1", amount(cpu=3))]
    assert "n1 would have room for cpu 4" in found.error


def test_quota_that_is_held_for_another_pool_is_named():
    given = Explained(pool("p", cpu=4), pool("q", cpu=1))
    given.run("a", cpu=4)
    given.preempt(agent_name="a", for_pool="q")
    given.leave("a")
    given.queue("t", cpu=4)
    found = given.explain("t")
    assert codes(found) == [Reason.INSUFFICIENT_QUOTA, Reason.QUOTA_ON_HOLD]
    assert found.others[0].error == (
        "cpu 4 of pool 'p' is held for others, after a requested eviction or for a task that is tried again"
    )


def test_quota_on_loan_is_named_with_its_borrower():
    given = Explained(pool("p", cpu=4), pool("q", cpu=2))
    given.run("full", "q", 50.0, cpu=2)
    given.run("study", priority=1.0, cpu=4)
    given.submit("urgent", "q", 20.0, cpu=2)
    given.slot("urgent")
    given.queue("t", cpu=4, priority=1.0)
    found = given.explain("t")
    assert codes(found) == [Reason.INSUFFICIENT_QUOTA, Reason.QUOTA_ON_LOAN]
    assert [h.agent_name for h in found.holders] == ["urgent"]
    assert found.others[0].error == (
        "pool 'p' has lent cpu 2 of its quota, or it is held for others: pool 'q' cpu 2"
    )
    assert found.others[0].hint == "a loan ends with the agent that holds it"


def in_cohort(name, cpu, **more):
    return msgspec.structs.replace(pool(name, cpu=cpu), cohort="c", **more)


def test_quota_that_is_not_taken_back_says_why():
    """Pool p has lent 6 of its 12; a task asks for 8 while other tasks of p hold the rest."""
    given = Explained(in_cohort("p", 12), in_cohort("q", 6), nodes=[node("n", cpu=18)])
    given.run("own", cpu=6)
    given.run("borrower", "q", cpu=12)
    given.queue("t", cpu=8)
    found = given.explain("t")
    (loan,) = [one for one in found.others if one.reason is Reason.QUOTA_ON_LOAN]
    assert loan.error == (
        "pool 'p' has lent cpu 6 of its quota, or it is held for others: pool 'q' cpu 6; it does not take "
        "that back for this task, which would lack cpu 2 even then: what its own tasks hold is not on loan"
    )
    assert loan.hint == "a loan ends with the agent that holds it"
    assert found.considered.turned_away[Reason.OWN_QUOTA] == 1
    assert CODES["own_quota"][0] == "it runs at least in part on its own pool's quota"


def test_quota_that_may_be_taken_back_says_so():
    given = Explained(in_cohort("p", 12), in_cohort("q", 6), nodes=[node("n", cpu=18)])
    given.run("own", cpu=6)
    given.run("borrower", "q", cpu=12)
    given.policy(protected_pools=frozenset({"q"}))
    given.queue("t", cpu=4)
    found = given.explain("t")
    (loan,) = [one for one in found.others if one.reason is Reason.QUOTA_ON_LOAN]
    assert loan.error.endswith(
        "pool 'q' cpu 6; with that back its own quota covers this task, so borrowers are evicted for it "
        "unless a rule spares them"
    )
    assert found.considered.turned_away[Reason.PROTECTED_POOL] == 1


def test_a_cohort_without_idle_quota_is_named():
    given = Explained(in_cohort("p", 2), in_cohort("q", 2))
    given.run("a", cpu=2)
    given.run("b", "q", cpu=2)
    given.queue("t", cpu=2)
    found = given.explain("t")
    assert codes(found) == [Reason.INSUFFICIENT_QUOTA, Reason.COHORT_EXHAUSTED]
    assert (
        found.others[0].error == "cohort 'c' has nothing idle for it to borrow, and it needs cpu 2"
    )


def test_a_borrowing_limit_is_named():
    limit = LoanLimit(nothing=True)
    given = Explained(in_cohort("p", 2, borrowing_limit=limit), in_cohort("q", 2))
    given.run("a", cpu=2)
    given.queue("t", cpu=1)
    found = given.explain("t")
    assert codes(found) == [Reason.INSUFFICIENT_QUOTA, Reason.COHORT_EXHAUSTED]
    assert "its borrowing_limit is" in found.others[0].error


def test_what_the_cohort_lacks_is_beyond_what_is_idle_there():
    given = Explained(in_cohort("p", 2), in_cohort("q", 4))
    given.run("a", "q", cpu=2)
    given.queue("t", cpu=6)
    found = given.explain("t")
    assert found.others[0].error == (
        "cohort 'c' has cpu 2 idle for it to borrow, and it needs cpu 2 more"
    )


def test_a_task_that_borrows_has_no_estimate_of_the_quota_of_others():
    given = Explained(in_cohort("p", 2), in_cohort("q", 2))
    given.run("a", "q", cpu=2, duration=60.0)
    given.queue("t", cpu=4)
    assert "cohort" in given.explain("t").no_estimate


def test_a_pool_that_has_shrunk_can_never_hold_it():
    given = Explained(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    given.run("a", cpu=2)
    given.queue("t", cpu=4)
    given.resize(pool("p", cpu=3))
    found = given.explain("t")
    assert found.reason == Reason.EXCEEDS_POOL_CAPACITY
    assert found.short_quota == amount(cpu=1)
    assert (found.earliest_start, found.no_estimate) == (
        None,
        "as things are it cannot start at all",
    )


def test_what_no_node_has_waits_for_a_larger_one():
    given = Explained(pool("p", cpu=16), nodes=[node("n1", cpu=8)])
    given.queue("t", cpu=16)
    found = given.explain("t")
    assert codes(found) == [Reason.CLUSTER_OUT_OF_RESOURCES]
    assert found.short_node == amount(cpu=8)
    assert found.hint.startswith("it starts when a node that is large enough joins")


def test_without_a_free_placement_group_it_says_why_there_is_none():
    spec = GroupsSpec(max_dynamic=1)
    given = Explained(pool("p", cpu=8, groups=spec), nodes=[node("n1", cpu=8)])
    given.submit("a", cpu=2)
    given.make_all()
    given.report("a")
    given.queue("t", cpu=2)
    found = given.explain("t")
    assert codes(found) == [Reason.GROUP_UNPLACEABLE]
    assert "1 of at most 1 dynamic ones are there" in found.error
    assert [h.agent_name for h in found.holders] == ["a"]
    assert "no estimated_duration" in found.no_estimate


def test_a_gang_says_what_its_group_lacks():
    given = Explained(pool("p", gpu=8), nodes=[node("n1", gpu=2), node("n2", gpu=2)])
    given.run("a", gpu=1)
    given.queue(
        "t", bundles=[{"gpu": 2}, {"gpu": 2}], payload=GangPayload(strategy="STRICT_SPREAD")
    )
    found = given.explain("t")
    assert found.reason == Reason.GROUP_UNPLACEABLE
    assert "a new one has no room" in found.error


def test_a_returned_victim_says_how_often_it_was_evicted():
    given = Explained(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    given.run("t", cpu=4, priority=1, on_preempted="requeue", class_key="k")
    given.submit("new", cpu=4, priority=9)
    given.leave("t", saved=True)
    given.report("new")
    found = given.explain("t")
    assert (found.state, found.preemptions) == ("queued", 1)
    assert found.eviction.rule == "same_pool_preemption"
    assert found.eviction.state_saved


def test_external_work_that_waits_for_the_same_room_is_named():
    mesh = Explained(pool("p", cpu=8), nodes=[node("n1", cpu=8)])
    mesh.run("low", cpu=8, priority=1.0)
    mesh.see_demand(ExternalDemand(amount=amount(cpu=2), job_id="07000000"))
    mesh.queue("t", cpu=8, priority=9.0)
    found = mesh.explain("t")
    assert found.reason == Reason.EXTERNAL_DEMAND
    assert "Ray job 07000000 waits in Ray for cpu 2" in found.error
    assert Reason.INSUFFICIENT_QUOTA in codes(found)


def test_the_tasks_that_it_starts_after_come_before_all_that_is_short():
    mesh = Explained(pool("p", cpu=1), nodes=[node("n1", cpu=8)])
    mesh.run("first", cpu=1)
    mesh.queue("t", cpu=1, limits={"after": ("ok:first",)})
    found = mesh.explain("t")
    assert found.reason == Reason.DEPENDENCY
    assert Reason.INSUFFICIENT_QUOTA in codes(found)


def test_an_owner_at_its_limit_is_told_so_before_what_is_short():
    limits = parse_owner_limits({"default": {"cpu": 2}})
    spec = msgspec.structs.replace(pool("p", cpu=4), owner_limits=limits)
    mesh = Explained(spec, nodes=[node("n1", cpu=4)])
    mesh.run("a1", cpu=2, owner="ada")
    mesh.run("b1", cpu=2, owner="ben")
    mesh.queue("a2", cpu=1, owner="ada")
    assert codes(mesh.explain("a2")) == [
        Reason.OWNER_LIMIT,
        Reason.INSUFFICIENT_QUOTA,
        Reason.INSUFFICIENT_RESOURCES,
    ]
    mesh.queue("c1", cpu=2, owner="cid")
    mesh.resize(msgspec.structs.replace(spec, owner_limits=parse_owner_limits({"cid": {"cpu": 1}})))
    assert mesh.explain("c1").reason == Reason.EXCEEDS_OWNER_LIMIT


def test_a_spent_budget_is_told_before_what_is_short_and_its_turn_is_the_earliest_start():
    budget = parse_budget({"gpu_hours": 1, "period": "day"})
    spec = msgspec.structs.replace(pool("p", cpu=4, gpu=1), budget=budget)
    mesh = Explained(spec, nodes=[node("n1", cpu=4, gpu=1)])
    mesh.run("a", gpu=1, duration=200_000.0)
    mesh.queue("before", gpu=1)
    mesh.tick(3600.0)
    mesh.queue("t", gpu=1)
    explained = mesh.explain("t")
    assert codes(explained)[:2] == [Reason.BUDGET_SPENT, Reason.INSUFFICIENT_QUOTA]
    assert explained.earliest_start is None or explained.earliest_start >= 86_400.0
    assert mesh.explain("before").reason == Reason.BUDGET_SPENT


def test_in_a_fair_pool_it_says_who_comes_first_and_by_what():
    spec = msgspec.structs.replace(pool("p", cpu=4), owner_order="fair")
    mesh = Explained(spec, nodes=[node("n1", cpu=4)])
    mesh.run("a1", cpu=3, owner="ada", priority=9.0)
    mesh.run("b1", cpu=1, owner="ben", priority=9.0)
    mesh.queue("a2", cpu=2, owner="ada", priority=9.0)
    mesh.queue("b2", cpu=2, owner="ben", priority=1.0)
    explained = mesh.explain("a2")
    assert explained.reason == Reason.BEHIND_OWNER
    assert explained.error == (
        "behind ben, who has used less of pool 'p': 25.0%, and owner 'ada' 75.0%"
    )
    assert explained.before == ("b2",)
    assert [(f.factor, f.value) for f in explained.order] == [
        ("promotion", 0.0),
        ("owner's share", 0.75),
        ("priority", 9.0),
        ("number", 3.0),
    ]
    assert mesh.explain("b2").reason == Reason.INSUFFICIENT_QUOTA


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"order": "fifo"}, ["promotion", "number"]),
        ({"ageing_per_hour": 2.0}, ["promotion", "priority", "age", "number"]),
        ({"order": "two_level_las"}, ["promotion", "level", "size", "number"]),
        ({"order": "shortest_remaining"}, ["promotion", "remaining", "number"]),
        ({"order": "dominant_share"}, ["promotion", "pool's use", "priority", "number"]),
    ],
)
def test_each_order_of_the_queue_has_its_factors(policy, expected):
    mesh = full()
    mesh.order_by(**policy)
    mesh.now += 3600.0
    factors = {factor.factor: factor.value for factor in mesh.explain("t").order}
    assert list(factors) == expected
    assert factors.get("age", 2.0) == 2.0
    assert factors.get("pool's use", 1.0) == 1.0


#: Factors of which the larger value comes first.
LARGER_FIRST = {"promotion", "priority", "age"}


@pytest.mark.parametrize("order", ORDERS)
def test_the_factors_of_two_tasks_decide_as_the_queue_does(order):
    """Of the first: larger, shorter, and with more left in GPU-seconds."""
    mesh = Explained(pool("p", gpu=4), nodes=[node("n1", gpu=4)])
    mesh.order_by(order=order)
    mesh.run("holder", gpu=4, priority=9.0)
    mesh.queue("large", gpu=4, duration=60.0)
    mesh.queue("small", gpu=1, duration=90.0)
    mesh.queue("urgent", gpu=2, duration=600.0, priority=7.0)

    def place(task_id):
        factors = mesh.explain(task_id).order
        return [-f.value if f.factor in LARGER_FIRST else f.value for f in factors]

    assert sorted(("large", "small", "urgent"), key=place) == [
        task.task_id for task in mesh.state.queue.of_pool("p")
    ]


def test_a_borrower_has_its_pools_share_among_its_factors():
    lender, borrower = ({"cohort": "c"}, {"cohort": "c", "weight": 2.0})
    mesh = Explained(
        pool("p", cpu=2, lending=borrower),
        pool("q", cpu=2, lending=lender),
        nodes=[node("n", cpu=4)],
    )
    mesh.run("a", cpu=4)
    mesh.queue("t", cpu=2)
    (share,) = [f.value for f in mesh.explain("t").order if f.factor == "pool's share"]
    assert share == 0.25


def test_an_array_of_which_as_many_members_run_as_may_says_so():
    mesh = Explained(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    mesh.queue("t", cpu=1, class_key="c", run="go", limits={"array": "0-3%2"})
    found = mesh.explain("t")
    assert found.reason == Reason.ARRAY_LIMIT
    assert found.error == "2 members of array 't' run, and at most 2 may at once"


def test_a_maintenance_window_comes_before_what_is_short():
    mesh = Explained(pool("p", cpu=8), nodes=[node("a", cpu=4), node("b", cpu=2)])
    window = MaintenanceWindow(name="w", start=mesh.now + 60.0, duration_s=60.0, node_ids=("a",))
    mesh.handle(WindowRequested(window=window))
    mesh.queue("t", cpu=4)
    found = mesh.explain("t")
    assert codes(found) == [Reason.MAINTENANCE_WINDOW, Reason.INSUFFICIENT_RESOURCES]
    assert found.hint.startswith("it starts there in 2m")


def test_a_pool_that_has_lost_its_flavor_says_which_it_has():
    models = {name: {"model": name} for name in ("h100", "a100")}
    given = Explained(
        pool("p", custom={"gpu@h100": 1, "gpu@a100": 1}, flavors=models),
        nodes=[node(name, gpu=1, labels=labels) for name, labels in models.items()],
    )
    given.run("a", gpu=1, node_labels=models["h100"])
    given.queue("t", gpu=1, node_labels=models["h100"])
    given.resize(pool("p", custom={"gpu@a100": 1}, flavors={"a100": models["a100"]}))
    found = given.explain("t")
    assert codes(found) == [Reason.NO_FLAVOR]
    assert found.error == (
        "the task asks for gpu 1 on nodes with model=h100, and pool 'p' has no such flavor: "
        "a100 (model=a100)"
    )
    given.resize(pool("p", custom={"gpu@h100": 1}, flavors={"h100": models["h100"]}))
    found = given.explain("t")
    assert [(one.flavor, one.reason) for one in found.alternatives] == [
        ("h100", Reason.INSUFFICIENT_QUOTA)
    ]


def test_nodes_that_are_reserved_for_others_come_before_what_is_short():
    mesh = Explained(pool("p", cpu=8), pool("q", cpu=1), nodes=[node("a", cpu=4), node("b", cpu=2)])
    times = {"start": mesh.now - 60.0, "duration_s": 120.0, "node_ids": ("a",)}
    window = MaintenanceWindow(name="w", pools=("q",), labels={"team": "x"}, **times)
    mesh.handle(WindowRequested(window=window))
    mesh.queue("t", cpu=4)
    found = mesh.explain("t")
    assert codes(found) == [Reason.NODE_RESERVED, Reason.INSUFFICIENT_RESOURCES]
    assert found.error == (
        "a would have room for cpu 4, but window 'w', which reserves it for tasks of pool 'q', with team=x, "
        "is open there for another 1m"
    )


@pytest.mark.parametrize("order", ["fifo", "shortest_remaining", "two_level_las"])
def test_no_priority_is_named_where_it_puts_nobody_first(order):
    mesh = Explained(strict("p", gpu=2), nodes=[node("n1", gpu=2)])
    mesh.order_by(order=order)
    mesh.run("big", gpu=2, duration=1000.0)
    mesh.queue("first", gpu=1, duration=10.0)
    mesh.queue("later", gpu=2, duration=20.0)
    found = mesh.explain("later")
    assert found.reason == Reason.BEHIND_QUEUE_HEAD
    assert found.hint == "move_to_front('later') puts it first; a higher priority does not"
    assert found.considered.sufficient_priority is None
    mesh.order_by(order="priority")
    found = mesh.explain("later")
    assert found.hint == "move_to_front('later') or a higher priority puts it first"
    assert found.considered.sufficient_priority == 6.0
    mesh.change("first", priority=9.0)
    assert mesh.explain("later").considered.sufficient_priority is None


def test_no_priority_is_enough_for_an_array_behind_its_own_members():
    mesh = Explained(pool("p", gpu=1), nodes=[node("n1", gpu=1)])
    mesh.queue("a", gpu=1, class_key="c", run="go", limits={"array": "0-9"})
    mesh.report("a[0]")
    assert mesh.explain("a").considered.sufficient_priority is None


def test_the_priority_with_which_it_passes_one_that_came_first_by_its_age_is_enough():
    mesh = Explained(pool("p", gpu=2), nodes=[node("n1", gpu=2)])
    mesh.order_by(ageing_per_hour=100.0)
    mesh.run("other", priority=12.0, gpu=1)
    mesh.run("busy", priority=30.0, gpu=1)
    mesh.queue("low", priority=0.1, gpu=1)
    mesh.now += 72.0
    mesh.queue("t", priority=1.0, gpu=1)
    mesh.complete("busy")
    mesh.report("low")
    assert mesh.explain("t").considered.sufficient_priority == 2.11
    mesh.change("t", priority=2.1)
    mesh.tick()
    assert "low" not in mesh.ends
    mesh.change("t", priority=2.11)
    mesh.tick()
    assert "low" in mesh.ends


def with_members_that_end(spec):
    """A gang that waits for its next attempt while extra members of the last one are ending."""
    mesh = Explained(spec, nodes=[node("n1", gpu=2), node("n2", gpu=2)])
    gang = {"bundles": [{"gpu": 1}], "payload": GangPayload(replicas=3), "class_key": "c"}
    mesh.queue("g", on_preempted="requeue", **gang)
    mesh.make_all()
    mesh.report("g", capabilities=("save_state",))
    mesh.tick()
    for name in list(mesh.starts):
        mesh.report(name, capabilities=("save_state",))
    for drained in (True, False):
        for node_id in ("n1", "n2"):
            mesh.handle(DrainRequested(node_id=node_id, drained=drained, client="me"))
    mesh.leave("g", saved=True)
    for group_id in list(mesh.removes):
        mesh.remove(group_id)
    return mesh


def test_a_gang_that_returns_waits_for_the_end_of_its_extra_members():
    mesh = with_members_that_end(pool("p", gpu=8))
    found = mesh.explain("g")
    assert codes(found) == [Reason.MEMBERS_ENDING]
    assert found.error.endswith("of its last attempt, is still being saved or stopped")
    for name in list(mesh.ends):
        mesh.leave(name, saved=True)
    mesh.tick()
    assert mesh.explain("g").state == "starting"


@pytest.mark.parametrize(
    ("limits", "reasons"),
    [
        ({"gpu": 1}, [Reason.MEMBERS_ENDING, Reason.OWNER_LIMIT]),
        ({"running": 1}, [Reason.MEMBERS_ENDING, Reason.OWNER_LIMIT]),
        # What its own members hold is free when it starts.
        ({"gpu": 2}, [Reason.MEMBERS_ENDING]),
        ({"running": 2}, [Reason.MEMBERS_ENDING]),
    ],
)
def test_a_gang_whose_members_end_says_which_limit_of_its_owner_keeps_it_then(limits, reasons):
    spec = pool("p", gpu=8)
    mesh = with_members_that_end(spec)
    mesh.run("other", gpu=1)
    owner_limits = parse_owner_limits({"default": limits})
    mesh.resize(msgspec.structs.replace(spec, owner_limits=owner_limits))
    assert codes(mesh.explain("g")) == reasons


def test_every_reason_of_a_queued_task_is_produced_here():
    text = Path(__file__).read_text(encoding="utf-8")
    assert [r for r in QUEUE_REASONS if f"Reason.{r.name}" not in text] == []
