"""Owners take back what tasks have borrowed that do not run yet: their starts are cancelled."""

from __future__ import annotations

import pytest

from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.facts import EvictionStarted
from schedulemesh.engine.messages.outcomes import Pending, Queued, Refused
from schedulemesh.engine.messages.stimuli import ClassProbed, RecoveryObserved
from tests.engine.builders import Mesh, amount, leaving_for, names, node, pool

LENDING = {"cohort": "all"}


def lent(*nodes, a=8, b=8, **policy):
    """Pools a and b of a cohort."""
    return Mesh(
        pool("a", gpu=a, cpu=64, lending=LENDING),
        pool("b", gpu=b, cpu=64, lending=LENDING),
        nodes=nodes or [node("n1", gpu=16, cpu=64)],
        **policy,
    )


def evictions(mesh):
    return [fact.task_id for fact in mesh.facts if isinstance(fact, EvictionStarted)]


def remove_all(mesh):
    """Ray removes all groups that it was asked to remove."""
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)


@pytest.fixture
def saving():
    """x and y of b are being saved for a borrower of all GPUs; y holds what b has borrowed."""
    mesh = lent()
    for name in ("x", "y"):
        mesh.queue(name, "b", 1.0, gpu=8, on_preempted="requeue", class_key="c")
        mesh.report(name)
    mesh.handle(ClassProbed(class_key="c"))
    mesh.queue("borrower", "b", 9.0, gpu=16, class_key="c")
    assert leaving_for(mesh.state.agents["borrower"]) == ["x", "y"]
    return mesh


@pytest.fixture
def starting():
    """A borrower of all GPUs that has been starting for a minute."""
    mesh = lent()
    mesh.queue("borrower", "b", 9.0, gpu=16)
    mesh.tick(60)
    assert list(mesh.starts) == ["borrower"]
    return mesh


# borrowers that wait for their victims


def test_an_owner_takes_back_what_a_borrower_waits_for(saving):
    assert saving.queue("owner", "a", gpu=8).position == 0
    assert saving.waiting("b") == ["borrower"]
    assert leaving_for(saving.state.agents["owner"]) == ["y"]
    saving.leave("y")
    saving.report("owner")
    saving.leave("x")
    saving.tick(1)
    assert set(saving.starts) == {"x"}, "there is room for it again"
    assert evictions(saving) == ["x", "y"]


def test_the_owner_may_come_when_some_victims_have_left(saving):
    saving.leave("y")
    saving.queue("owner", "a", gpu=8)
    assert list(saving.starts) == ["owner"]
    saving.leave("x")
    saving.tick(1)
    assert list(saving.starts) == ["owner", "x"]
    assert saving.waiting("b") == ["borrower", "y"]


def test_a_borrower_from_which_was_taken_back_starts_when_the_owner_has_ended(saving):
    saving.queue("owner", "a", gpu=8)
    for name in ("x", "y"):
        saving.leave(name)
    saving.report("owner")
    saving.tick(1)
    saving.report("x")
    for _ in range(5):
        saving.tick(1)
    assert evictions(saving) == ["x", "y"], "evicting x again would not help the borrower"
    saving.cancel("y")
    saving.complete("owner")
    saving.tick(1)
    saving.leave("x")
    saving.report("borrower")
    assert saving.state.agents["borrower"].paid == amount(gpu=16)


def test_a_submission_without_queue_is_refused_when_its_claim_is_taken_back(saving):
    saving.cancel("borrower")
    saving.submit("direct", "b", 9.0, gpu=16, class_key="c", more={"request_id": "r"})
    assert leaving_for(saving.state.agents["direct"]) == ["x", "y"]
    saving.queue("owner", "a", gpu=8)
    outcome = saving.state.answers["r"].outcome
    assert isinstance(outcome, Refused)
    assert outcome.reason == Reason.PREEMPTION_FAILED
    assert "gave way to a task of a pool that gets its own quota back" in outcome.error
    assert "direct" not in saving.state.agents


def test_who_waits_until_the_borrower_runs_goes_on_waiting(saving):
    saving.cancel("borrower")
    outcome = saving.queue(
        "again", "b", 9.0, gpu=16, class_key="c", more={"request_id": "r", "until_runs": True}
    )
    assert isinstance(outcome, Pending)
    saving.queue("owner", "a", gpu=8)
    assert "r" not in saving.state.answers
    assert saving.waiting("b") == ["again"]


def test_a_submission_without_queue_takes_back_too(saving):
    assert saving.dry("owner", "a", gpu=8).preempted == ()
    assert isinstance(saving.submit("owner", "a", gpu=8), Pending)
    saving.leave("y")
    assert list(saving.starts) == ["owner"]
    assert saving.waiting("b") == ["borrower", "y"]


def test_a_claim_on_own_quota_alone_is_not_taken_back():
    mesh = Mesh(
        pool("a", gpu=8, cpu=64, lending=LENDING),
        pool("b", gpu=8, cpu=64, lending={**LENDING, "borrowing_limit": {"gpu": 0}}),
        nodes=[node("n1", gpu=8, cpu=64)],
    )
    mesh.run("x", "b", 1.0, gpu=8)
    mesh.queue("urgent", "b", 9.0, gpu=8)
    mesh.queue("other", "a", gpu=8)
    assert leaving_for(mesh.state.agents["urgent"]) == ["x"]
    assert mesh.waiting("a") == ["other"]


def test_what_the_owner_would_use_beyond_its_quota_is_not_taken_back(saving):
    saving.queue("large", "a", gpu=9)
    assert saving.waiting("a") == ["large"]
    assert "borrower" in saving.state.agents


# borrowers that start


def test_the_start_of_a_borrower_is_cancelled_for_an_owner(starting):
    starting.queue("owner", "a", gpu=8)
    assert list(starting.ends) == ["borrower"]
    assert leaving_for(starting.state.agents["owner"]) == ["borrower"]
    starting.leave("borrower")
    assert list(starting.starts) == ["owner"]
    assert starting.waiting("b") == ["borrower"]
    assert evictions(starting) == []
    assert starting.state.queue.by_id["borrower"].attempts.preemptions == 0


def test_a_borrower_whose_start_was_cancelled_starts_as_soon_as_there_is_room(starting):
    starting.queue("owner", "a", gpu=8)
    starting.leave("borrower")
    starting.report("owner")
    starting.tick(1)
    assert starting.waiting("b") == ["borrower"]
    starting.complete("owner")
    assert list(starting.starts) == ["borrower"]


def test_a_report_of_the_cancelled_start_that_comes_late_changes_nothing(starting):
    order = starting.starts["borrower"]
    starting.queue("owner", "a", gpu=8)
    starting.starts["borrower"] = order
    starting.report("borrower")
    assert "borrower" in starting.ends
    starting.leave("borrower")
    assert starting.waiting("b") == ["borrower"]


def test_a_borrower_that_is_cancelled_while_its_start_is_stopped_does_not_return(starting):
    starting.queue("owner", "a", gpu=8)
    starting.cancel("borrower")
    starting.leave("borrower")
    assert starting.waiting("b") == []
    assert list(starting.starts) == ["owner"]


def test_a_start_that_fails_while_it_is_cancelled_counts_as_cancelled(starting):
    order = starting.starts["borrower"]
    starting.queue("owner", "a", gpu=8)
    starting.starts["borrower"] = order
    starting.fail("borrower")
    assert list(starting.starts) == ["owner"]
    assert starting.waiting("b") == ["borrower"]


def test_after_a_restart_the_cancelled_start_is_stopped_and_waits_again(starting):
    starting.queue("owner", "a", gpu=8)
    starting.handle(RecoveryObserved(living=frozenset()))
    assert starting.waiting("b") == ["borrower"]
    assert list(starting.starts) == ["owner"]


def test_a_direct_submission_whose_start_is_cancelled_is_refused():
    mesh = lent()
    mesh.submit("direct", "b", 9.0, gpu=16, more={"request_id": "r"})
    mesh.queue("owner", "a", gpu=8)
    mesh.leave("direct")
    outcome = mesh.state.answers["r"].outcome
    assert (outcome.reason, "gave way" in outcome.error) == (Reason.PREEMPTION_FAILED, True)
    assert list(mesh.starts) == ["owner"]


def test_victims_of_a_cancelled_start_run_again_where_that_is_possible():
    mesh = lent(node("n1", gpu=12, cpu=64), a=4)
    mesh.handle(ClassProbed(class_key="c"))
    mesh.queue("x", "b", 1.0, gpu=8, class_key="c")
    mesh.report("x")
    mesh.queue("borrower", "b", 9.0, gpu=12, class_key="c")
    mesh.leave("x", saved=True)
    assert list(mesh.starts) == ["borrower"]
    mesh.queue("owner", "a", gpu=4)
    mesh.leave("borrower")
    assert sorted(mesh.starts) == ["owner", "x"]


def test_the_start_of_a_gang_that_borrows_is_cancelled_with_its_group():
    mesh = lent(node("n1", gpu=8, cpu=64), node("n2", gpu=8, cpu=64))
    mesh.queue(
        "gang", "b", 9.0, bundles=[{"gpu": 8}] * 2, payload=GangPayload(strategy="STRICT_SPREAD")
    )
    mesh.queue("first", "a", gpu=8)
    assert mesh.waiting("b") == ["gang"], "its group is still being created"
    remove_all(mesh)
    assert list(mesh.starts) == ["first"]


def test_a_gang_whose_group_is_there_and_that_starts_is_stopped():
    mesh = lent(node("n1", gpu=8, cpu=64), node("n2", gpu=8, cpu=64))
    mesh.queue(
        "gang", "b", 9.0, bundles=[{"gpu": 8}] * 2, payload=GangPayload(strategy="STRICT_SPREAD")
    )
    mesh.make_all()
    assert list(mesh.starts) == ["gang"]
    mesh.queue("owner", "a", gpu=8)
    mesh.leave("gang")
    remove_all(mesh)
    assert list(mesh.starts) == ["owner"]
    assert mesh.waiting("b") == ["gang"]


def test_an_owner_with_a_placement_group_takes_back():
    groups = GroupsSpec(max_dynamic=4)
    mesh = Mesh(
        pool("a", gpu=8, cpu=64, groups=groups, lending=LENDING),
        pool("b", gpu=8, cpu=64, lending=LENDING),
        nodes=[node("n1", gpu=16, cpu=64)],
    )
    mesh.queue("borrower", "b", 9.0, gpu=16)
    mesh.queue("owner", "a", gpu=8)
    mesh.leave("borrower")
    mesh.make_all()
    assert list(mesh.starts) == ["owner"]


# who it is taken back from


def test_nobody_is_evicted_while_cancelled_starts_are_enough():
    mesh = lent(a=8, b=0)
    mesh.run("runs", "b", gpu=4)
    mesh.tick(1000)
    mesh.queue("starts", "b", gpu=4)
    mesh.queue("owner", "a", gpu=4)
    assert list(mesh.ends) == ["starts"]
    assert evictions(mesh) == []


def test_a_small_task_that_runs_is_taken_back_before_a_large_one_that_starts():
    mesh = lent(node("n1", gpu=17, cpu=64), a=17, b=0)
    mesh.run("small", "b", gpu=1)
    mesh.queue("large", "b", gpu=16)
    mesh.queue("owner", "a", gpu=1)
    assert list(mesh.ends) == ["small"]
    assert list(mesh.starts) == ["large"]


def test_both_are_taken_back_where_neither_is_enough():
    mesh = lent(a=8, b=0)
    mesh.run("runs", "b", gpu=4)
    mesh.queue("starts", "b", gpu=4)
    mesh.queue("owner", "a", gpu=8)
    assert sorted(mesh.ends) == ["runs", "starts"]
    for name in ("runs", "starts"):
        mesh.leave(name)
    assert list(mesh.starts) == ["owner"]
    assert mesh.waiting("b") == ["starts"]


def test_all_that_run_and_all_that_start_are_taken_back_where_they_are_just_enough():
    mesh = lent(node("n1", gpu=5, cpu=64), a=5, b=0)
    for name in ("b1", "b2", "b3"):
        mesh.run(name, "b", 50.0, gpu=1)
    for name in ("start1", "start2"):
        mesh.queue(name, "b", gpu=1)
    mesh.queue("owner", "a", gpu=5)
    assert sorted(mesh.ends) == ["b1", "b2", "b3", "start1", "start2"]


def test_a_borrower_that_runs_gives_back_only_what_it_has_borrowed_beside_a_cancelled_start():
    """``runs`` holds quota of its own pool, too, which is no reason to leave ``starts`` its loan."""
    mesh = Mesh(
        pool("owner", gpu=2, cpu=64, lending=LENDING),
        pool("b", gpu=1, cpu=64, lending=LENDING),
        pool("c", gpu=0, cpu=64, lending=LENDING),
        nodes=[node("n1", gpu=8, cpu=64)],
    )
    mesh.run("runs", "b", gpu=2)
    mesh.queue("starts", "c", gpu=1)
    mesh.queue("t", "owner", gpu=2)
    assert sorted(mesh.ends) == ["runs", "starts"]
    for name in ("runs", "starts"):
        mesh.leave(name)
    mesh.report("t")
    assert {share.pool_name for share in mesh.state.agents["t"].shares} == {"owner"}


def test_no_more_starts_are_cancelled_than_needed():
    mesh = lent(*(node(f"n{i}", gpu=8, cpu=64) for i in (1, 2)), a=16, b=0)
    for number in range(4):
        mesh.queue(f"t{number}", "b", gpu=4)
    mesh.queue("owner", "a", gpu=4)
    assert len(mesh.ends) == 1
    mesh.queue("large", "a", gpu=8)
    assert len(mesh.ends) == 3


def test_tasks_of_lower_priority_are_evicted_with_it_where_it_needs_their_room():
    mesh = lent(node("n1", gpu=8, cpu=64), a=8, b=0)
    mesh.run("own", "a", 1.0, gpu=4)
    mesh.queue("starts", "b", 5.0, gpu=4)
    mesh.queue("owner", "a", 9.0, gpu=8)
    assert sorted(mesh.ends) == ["own", "starts"]
    assert evictions(mesh) == ["own"]


def test_what_dominates_by_label_is_not_taken_back():
    mesh = lent(label_preemption_rules={"tier": {"gold": ["bronze"]}})
    mesh.queue("borrower", "b", gpu=16, labels={"tier": "gold"})
    mesh.queue("owner", "a", gpu=8, labels={"tier": "bronze"})
    assert mesh.waiting("a") == ["owner"]


def test_a_task_in_a_protected_pool_is_not_taken_back():
    mesh = lent()
    mesh.queue("borrower", "b", gpu=16)
    mesh.policy(protected_pools=frozenset({"b"}))
    mesh.queue("owner", "a", gpu=8)
    assert mesh.waiting("a") == ["owner"]


def test_a_reserved_start_before_the_owner_does_not_keep_it_from_taking_back(starting):
    starting.queue("first", "a", 20.0, gpu=16)
    starting.tick(1)
    starting.queue("owner", "a", gpu=8)
    starting.tick(1)
    assert list(starting.ends) == ["borrower"]
    starting.leave("borrower")
    assert "owner" in starting.starts


def test_explain_says_that_the_start_of_the_borrower_will_be_cancelled(starting):
    starting.cordon("n1")
    starting.queue("owner", "a", gpu=8)
    assert starting.waiting("a") == ["owner"]
    starting.cordon("n1", cordoned=False)
    found = starting.engine.explain("owner", starting.now)
    assert found.reason == Reason.NEXT_SCHEDULING_PASS
    assert "the cancelled start of 1 task that borrows makes room for it" in found.error
    starting.tick(1)
    assert list(starting.ends) == ["borrower"]


def test_a_class_is_not_loaded_first_where_nobody_is_evicted(starting):
    starting.queue("owner", "a", gpu=8, class_key="never loaded")
    assert (list(starting.ends), starting.probes) == (["borrower"], {})


def test_queued_answers_tell_that_the_owner_does_not_wait(starting):
    assert starting.queue("owner", "a", gpu=8) == Queued(
        task_id="owner", agent_name="owner", pool_name="a", position=0
    )


# what is not taken back in turn


def test_who_takes_back_pays_with_its_own_quota_though_other_quota_is_idle_then():
    mesh = lent(a=12, b=4)
    mesh.handle(ClassProbed(class_key="c"))
    mesh.run("before", "a", gpu=12)
    mesh.run("v", "a", 1.0, gpu=4, class_key="c")
    mesh.complete("before")
    mesh.run("u", "a", 9.0, gpu=3)
    mesh.queue("borrower", "a", 5.0, gpu=12, class_key="c")
    assert leaving_for(mesh.state.agents["borrower"]) == ["v"]
    mesh.queue("owner", "b", gpu=4)
    owner = mesh.state.agents["owner"]
    assert {share.pool_name for share in (*owner.shares, *owner.promised)} == {"b"}
    mesh.complete("u")
    mesh.tick(1)
    assert "owner" in mesh.state.agents, "the borrower takes nothing back from it"
    mesh.leave("v")
    mesh.tick(1)
    assert sorted(mesh.starts) == ["borrower", "owner"]


def test_an_owner_that_borrows_another_kind_is_not_taken_back_for_the_kind_that_it_owns():
    """The start of ``first`` is cancelled for ``owner``, which borrows CPUs, and not the other way round."""
    mesh = Mesh(
        pool("a", gpu=8, cpu=4, lending=LENDING),
        pool("b", gpu=12, cpu=64, lending=LENDING),
        nodes=[node("n1", gpu=8, cpu=64), node("n2", gpu=8, cpu=64)],
    )
    mesh.run("own", "b", 9.0, gpu=4, cpu=1)
    mesh.run("beside", "b", 9.0, gpu=4, cpu=1)
    mesh.queue("first", "b", gpu=8, cpu=1)
    mesh.queue("owner", "a", gpu=8, cpu=8)
    mesh.leave("first")
    assert list(mesh.starts) == ["owner"]
    mesh.complete("own")
    mesh.tick(1)
    assert list(mesh.starts) == ["owner"]
    assert mesh.waiting("b") == ["first"]


@pytest.mark.parametrize("room_of", ["the victim of the borrower", "another borrower"])
def test_an_owner_that_borrows_cpus_takes_back_the_gpus_that_a_borrower_waits_with(room_of):
    """Its GPUs are free when the claim is revoked; the room for it is not."""
    mesh = Mesh(
        pool("owner", gpu=3, cpu=0, lending=LENDING),
        pool("b", gpu=3, cpu=64, lending=LENDING),
        nodes=[node(n, gpu=2, cpu=64, labels={"name": n}) for n in ("n1", "n2")],
    )
    mesh.run("x", "b", 1.0, gpu=2, class_key="c", node_labels={"name": "n1"})
    mesh.run("y", "b", 9.0, gpu=2, class_key="c", node_labels={"name": "n2"})
    mesh.queue("borrower", "b", 9.0, gpu=2, class_key="c")
    assert leaving_for(mesh.state.agents["borrower"]) == ["x"]
    where = "n1" if room_of == "the victim of the borrower" else "n2"
    mesh.queue("t", "owner", gpu=2, cpu=1, class_key="c", node_labels={"name": where})
    assert leaving_for(mesh.state.agents["t"]) == ["x" if where == "n1" else "y"]
    assert mesh.waiting("b") == ["borrower"]
    assert mesh.state.agents["t"].paid == amount(gpu=2, cpu=1)


def test_a_claim_that_would_be_revoked_does_not_make_a_pool_one_that_uses_more_than_its_quota():
    """Without ``borrower``, pool b uses no more than its quota, and ``first`` is not reclaimed for others."""
    mesh = lent(node("n1", gpu=4, cpu=64), a=4, b=3)
    for name, priority in (("first", 20.0), ("x", 1.0), ("done", 9.0), ("y", 9.0)):
        mesh.queue(name, "b", priority, gpu=1, class_key="c", on_preempted="requeue")
        mesh.report(name, capabilities=("save_state", "restore_state"))
    mesh.complete("done")
    mesh.queue("borrower", "b", 9.0, gpu=2, class_key="c")
    assert leaving_for(mesh.state.agents["borrower"]) == ["x"]
    mesh.queue("owner", "a", 3.0, gpu=4, class_key="c")
    mesh.tick(1)
    assert mesh.waiting("a") == ["owner"], "there is no room for it"
    assert "borrower" in mesh.state.agents


# a dry run says what the submission does


@pytest.mark.parametrize("queue", [True, False])
def test_a_dry_run_names_the_node_on_which_the_owner_starts_when_a_claim_is_revoked(queue):
    """``borrower`` waits for n1 until the quota of ``v`` is back, which leaves n0. Without that claim there
    is room on n1 at once, and nobody waits for ``v``.
    """
    mesh = Mesh(
        pool("a", gpu=2, cpu=8, lending=LENDING),
        pool("b", gpu=2, cpu=8, lending=LENDING),
        nodes=[node("n0", gpu=2, cpu=8), node("n1", gpu=4, cpu=8)],
    )
    mesh.run("v", "b", 1.0, gpu=2, cpu=1, class_key="c")
    assert mesh.state.agents["v"].place.node_id == "n0"
    mesh.handle(ClassProbed(class_key="c"))
    mesh.queue("borrower", "b", 9.0, gpu=4, cpu=1, class_key="c")
    assert leaving_for(mesh.state.agents["borrower"]) == ["v"]
    how = {"gpu": 2, "cpu": 1, "class_key": "c", "more": {"queue": queue}}
    dry = mesh.dry("owner", "a", **how)
    assert (dry.cancelled_starts, dry.node_id) == (("borrower",), "n1")
    mesh.submit("owner", "a", **how)
    assert mesh.state.agents["owner"].place.node_id == "n1"
    assert list(mesh.starts) == ["owner"]


def test_a_start_that_has_been_cancelled_no_longer_counts_for_what_its_pool_uses_beyond_its_quota():
    """Without ``borrower`` pool b uses only CPUs beyond its quota, so ``victim``, with two GPUs of its own
    quota, may be reclaimed: when that is looked for, and when the start of ``borrower`` has been cancelled.
    """
    mesh = Mesh(
        pool("a", gpu=9, cpu=64, lending=LENDING),
        pool("b", gpu=3, cpu=2, lending=LENDING),
        nodes=[node("n1", gpu=2, cpu=64), node("n2", gpu=2, cpu=64)],
    )
    how = {"class_key": "c", "on_preempted": "requeue"}
    mesh.handle(ClassProbed(class_key="c"))
    mesh.queue("victim", "b", 9.0, gpu=2, cpu=2, **how)
    mesh.report("victim", capabilities=("save_state", "restore_state"))
    mesh.run("beside", "b", 9.0, cpu=2, class_key="c")
    mesh.queue("borrower", "b", 1.0, gpu=2, cpu=2, **how)
    gang = {"bundles": [{"gpu": 2, "cpu": 1}] * 2, "payload": GangPayload(), "class_key": "c"}
    dry = mesh.dry("owner", "a", 1.0, **gang, more={"queue": True})
    mesh.queue("owner", "a", 1.0, **gang)
    assert dry.cancelled_starts == ("borrower",)
    assert names(dry.preempted) == evictions(mesh) == ["victim"]


# what costs least


def beside_borrowers_that_run(*starts, worked, busy_of="b"):
    """Borrowers of 1 GPU have run on a node of 8 GPUs for this long; a victim of 4 GPUs leaves already, and
    starts of as many GPUs wait for it. Pool a owns 4 GPUs, which are lent.
    """
    mesh = Mesh(nodes=[node("n", gpu=8, cpu=32)])
    mesh.cohort("all")
    mesh.handle(ClassProbed(class_key="c"))
    for name, gpu in (("a", 4), ("idle", 16), ("b", 0)):
        mesh.resize(pool(name, gpu=gpu, cpu=16, lending=LENDING))
    for name, gpu, priority, of in (
        ("b1", 1, 50.0, busy_of),
        ("b2", 1, 50.0, busy_of),
        ("victim", 4, 1.0, "b"),
        ("b3", 1, 1.0, "b"),
    ):
        mesh.run(name, of, priority, gpu=gpu, class_key="c", on_preempted="requeue")
    mesh.now += worked
    mesh.cancel("victim")
    for number, gpu in enumerate(starts):
        mesh.submit(f"start{number}", "b", 9.0, gpu=gpu, class_key="c")
    return mesh


def decision_for_owner(mesh):
    """Who goes for a task of 4 GPUs of pool a, apart from those that were leaving; the dry run and the
    submission say the same.
    """
    starts = {name for name in mesh.state.agents if name.startswith("start")}
    before, seen = set(mesh.ends), len(mesh.facts)
    dry = mesh.dry("owner", "a", 5.0, gpu=4, class_key="c")
    mesh.queue("owner", "a", 5.0, gpu=4, class_key="c")
    evicted = [f.task_id for f in mesh.facts[seen:] if isinstance(f, EvictionStarted)]
    assert sorted(evicted) == sorted(names(dry.preempted))
    assert "owner" in mesh.state.agents
    cancelled = starts - set(mesh.state.agents)
    return sorted(cancelled | set(mesh.ends) - before)


@pytest.mark.parametrize("busy_of", ["b", "idle"])
@pytest.mark.parametrize("worked", [20, 3600])
@pytest.mark.parametrize(("starts", "cancelled"), [((2, 4), "start1"), ((4, 2), "start0")])
def test_one_start_is_cancelled_where_one_is_enough(starts, cancelled, worked, busy_of):
    mesh = beside_borrowers_that_run(*starts, worked=worked, busy_of=busy_of)
    assert decision_for_owner(mesh) == [cancelled]


def test_starts_are_cancelled_where_evictions_cost_more():
    mesh = beside_borrowers_that_run(2, 2, worked=3600)
    assert decision_for_owner(mesh) == ["start0", "start1"]


def test_a_start_is_left_for_an_eviction_that_costs_less():
    """30 s of 2 GPUs against 30 s and 20 s of work of one."""
    mesh = beside_borrowers_that_run(2, 2, worked=20)
    assert decision_for_owner(mesh) == ["b1", "start1"]


def test_of_starts_that_cost_the_same_the_fewest_are_cancelled():
    mesh = lent(node("n1", gpu=8, cpu=64), a=8, b=0)
    for name, gpu in (("two", 2), ("other", 2), ("four", 4)):
        mesh.queue(name, "b", gpu=gpu)
    mesh.queue("owner", "a", gpu=4)
    assert list(mesh.ends) == ["four"]


def test_the_cheapest_of_the_starts_that_are_enough_is_cancelled():
    mesh = lent(node("n1", gpu=8, cpu=64), a=8, b=0)
    for name, gpu in (("large", 6), ("small", 2)):
        mesh.queue(name, "b", gpu=gpu)
    mesh.queue("owner", "a", gpu=2)
    assert list(mesh.ends) == ["small"]


def test_further_starts_are_cancelled_where_evictions_cost_more_than_they():
    """``large`` alone costs 240 s of a GPU, the others 30 s; the victims cost 50 s each."""
    mesh = lent(node("n1", gpu=13, cpu=64), a=13, b=0)
    mesh.handle(ClassProbed(class_key="c"))
    for name in ("b1", "b2", "b3"):
        mesh.run(name, "b", 50.0, gpu=1, class_key="c", on_preempted="requeue")
    mesh.now += 20
    for name, gpu in (("large", 8), ("start1", 1), ("start2", 1)):
        mesh.queue(name, "b", gpu=gpu)
    dry = mesh.dry("owner", "a", gpu=4, class_key="c")
    mesh.queue("owner", "a", gpu=4, class_key="c")
    assert sorted(dry.cancelled_starts) == ["start1", "start2"]
    assert names(dry.preempted) == evictions(mesh)
    assert sorted(mesh.ends) == sorted([*evictions(mesh), "start1", "start2"])
