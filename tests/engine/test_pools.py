"""Pools that are made smaller than what is in use, deleted and renamed."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.engine.lifecycle import pools
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import EvictionStarted
from schedulemesh.engine.messages.outcomes import Done, Queued
from schedulemesh.engine.messages.pool_facts import PoolDeleted
from schedulemesh.engine.messages.queue_facts import TaskCancelled
from schedulemesh.engine.state.pool_names import KEPT, PoolNames
from schedulemesh.engine.state.snapshot import take_snapshot
from tests.engine.builders import Mesh, amount, differences, node, pool, shape

NODES = tuple(node(name, cpu=8, gpu=8, memory=8192, custom={"x": 1}) for name in ("a", "b"))


def mesh_of(*pools, **policy):
    return Mesh(*pools, nodes=NODES, **policy)


def cohort_of(*sizes, **more):
    """Pools p, q, … of these numbers of GPUs that lend each other what is idle."""
    lending = {"cohort": "all"}
    names = "pqrstu"[: len(sizes)]
    return [
        pool(name, gpu=size, lending=lending, **more)
        for name, size in zip(names, sizes, strict=True)
    ]


def run_queued(mesh, name, pool_name="p", **how):
    """Start a task that came from the queue and may be started again."""
    mesh.queue(name, pool_name, class_key="c", **how)
    return mesh.report(name)


def is_stored(mesh):
    """The state is the same after its facts, and a snapshot of it, were written and read."""
    return (
        differences(mesh.state, mesh.refolded()) + differences(mesh.state, mesh.rewritten()) == []
    )


def reasons_of(mesh, kind):
    return [fact.reason.value for fact in mesh.facts if isinstance(fact, kind)]


# -- a quota below what is in use -------------------------------------------------------------------------


def test_a_quota_below_what_is_in_use_says_what_is_above_it():
    mesh = mesh_of(pool("p", gpu=8, memory=4096))
    for name in "vw":
        mesh.run(name, gpu=4, memory=2048)
    outcome = mesh.resize(pool("p", gpu=4, memory=3072))
    assert outcome.change is Change.CHANGED
    (warning,) = outcome.warnings
    assert warning == (
        "pool 'p' has memory 4 GB in use, 1 GB above the new quota; gpu 8 in use, 4 above the new quota: it"
        " shrinks as tasks end"
    )
    assert list(mesh.state.ledger.over_quota) == ["p"]
    assert is_stored(mesh)


def test_a_pool_above_its_quota_starts_nothing_of_that_kind_and_shrinks_as_tasks_end():
    mesh = mesh_of(pool("p", cpu=8, gpu=8))
    for name in "vw":
        mesh.run(name, gpu=4)
    mesh.resize(pool("p", cpu=8, gpu=4))
    assert mesh.queue("x", gpu=1).position == 1
    assert mesh.queue("y", cpu=1) == Queued(task_id="y", agent_name="y", pool_name="p", position=0)
    mesh.complete("v")
    assert mesh.waiting() == ["x"]
    assert not mesh.state.ledger.over_quota
    mesh.complete("w")
    assert mesh.waiting() == []


def test_a_kind_that_a_quota_loses_is_above_it_as_long_as_it_is_in_use():
    mesh = mesh_of(pool("p", cpu=4, custom={"x": 1}))
    mesh.run("t", cpu=1, custom={"x": 1})
    assert mesh.resize(pool("p", cpu=4)).warnings == (
        "pool 'p' has x 1 in use, 1 above the new quota: it shrinks as tasks end",
    )


def test_what_a_smaller_pool_has_lent_is_called_back_as_far_as_it_is_above():
    mesh = mesh_of(*cohort_of(8, 0))
    mesh.run("own", gpu=2)
    for number in range(3):
        run_queued(mesh, f"b{number}", "q", gpu=2, on_preempted="requeue")
        mesh.now += 10.0
    outcome = mesh.resize(cohort_of(5, 0)[0])
    assert "gpu 8 in use, 3 above the new quota: it shrinks as tasks end" in outcome.warnings[0]
    assert outcome.warnings[0].endswith("; what it has lent is called back")
    # The newest lose least work.
    assert sorted(mesh.ends) == ["b1", "b2"]
    assert reasons_of(mesh, EvictionStarted) == ["called_back", "called_back"]
    mesh.tick()
    assert sorted(mesh.ends) == ["b1", "b2"]
    for name in ("b1", "b2"):
        mesh.leave(name, saved=True)
    # One of the two GPUs that are free is idle, too little for a borrower.
    assert mesh.free() == amount(gpu=1)
    assert mesh.waiting("q") == ["b1", "b2"]
    assert is_stored(mesh)


def test_a_borrower_that_starts_is_called_back_when_it_runs():
    mesh = mesh_of(*cohort_of(4, 0))
    mesh.submit("b", "q", gpu=4)
    mesh.resize(cohort_of(0, 0)[0])
    assert mesh.ends == {}
    mesh.report("b")
    mesh.tick()
    assert sorted(mesh.ends) == ["b"]


def test_borrowers_that_cannot_save_stay_where_the_policy_says_so():
    mesh = mesh_of(*cohort_of(4, 0), reclaim_unsavable=False)
    mesh.run("b", "q", gpu=4)
    mesh.resize(cohort_of(0, 0)[0])
    assert mesh.ends == {}
    mesh.delete_pool(drain=True)
    assert sorted(mesh.ends) == ["b"]


# -- deletion ---------------------------------------------------------------------------------------------


def test_a_pool_that_nothing_uses_is_deleted():
    mesh = mesh_of(*cohort_of(4, 4))
    assert mesh.delete_pool() == Done(change=Change.DELETED)
    assert list(mesh.state.ledger.accounts) == ["q"]
    assert mesh.delete_pool().reason == "pool_not_found"
    assert mesh.submit("t", gpu=1).reason == "pool_not_found"
    assert is_stored(mesh)


@pytest.mark.parametrize("use", ["runs", "starts", "waits", "lends", "agent"])
def test_a_pool_in_use_is_not_deleted_and_its_holders_are_named(use):
    mesh = mesh_of(*cohort_of(4, 0))
    if use == "runs":
        mesh.run("t", gpu=1)
    elif use == "starts":
        mesh.submit("t", gpu=1)
    elif use == "waits":
        mesh.run("u", "q", gpu=1)
        mesh.run("v", "q", gpu=3)
        mesh.policy(protected_pools=("q",))
        for number in range(4):
            mesh.queue(f"t{number}", gpu=4)
    elif use == "lends":
        mesh.run("b", "q", gpu=1)
    else:
        mesh.run("t", gpu=1, task=False)
    refused = mesh.delete_pool()
    assert (refused.reason, len(mesh.state.ledger.accounts)) == ("pool_in_use", 2)
    holders = {
        "runs": "1 task ('t') runs in it",
        "starts": "1 task ('t') runs in it",
        "waits": "4 tasks ('t0', 't1', 't2', …) wait in its queue; pool 'q' has gpu 4 of it on loan",
        "lends": "pool 'q' has gpu 1 of it on loan",
        "agent": "1 agent ('t') runs in it",
    }
    assert refused.error == f"pool 'p' is in use: {holders[use]}"
    assert "drain=True" in refused.hint


def test_a_drain_cancels_what_waits_evicts_what_runs_and_then_deletes():
    mesh = mesh_of(pool("p", gpu=4), pool("q", gpu=4))
    run_queued(mesh, "t", gpu=4)
    mesh.run("alone", task=False)
    mesh.queue("w", gpu=4)
    assert mesh.delete_pool(drain=True) == Done(change=Change.ENDING)
    assert mesh.waiting() == []
    assert reasons_of(mesh, TaskCancelled) == ["pool_ending"]
    assert mesh.state.ended["w"].state == "cancelled"
    assert sorted(mesh.ends) == ["alone", "t"]
    refused = mesh.queue("late", gpu=1)
    assert (refused.reason, refused.error) == (
        "pool_ending",
        "pool 'p' is being deleted, so it takes nothing new",
    )
    assert is_stored(mesh)
    assert mesh.delete_pool() == Done(change=Change.UNCHANGED)
    mesh.leave("alone")
    mesh.leave("t", saved=True)
    # What was evicted does not wait in a pool that is going, and its state is kept.
    assert list(mesh.state.ledger.accounts) == ["q"]
    assert mesh.state.preempted["t"].state_key == "state-t"
    assert mesh.facts[-1] == PoolDeleted(pool_name="p", at=mesh.now)
    assert is_stored(mesh)


def test_a_deadline_lets_tasks_finish():
    mesh = mesh_of(pool("p", gpu=4))
    run_queued(mesh, "t", gpu=1, duration=20.0)
    assert mesh.delete_pool(drain=True, deadline_s=600.0).change is Change.ENDING
    mesh.tick()
    detail = mesh.engine.explain("t", mesh.now).detail
    assert detail.endswith(
        "; its pool is ending, so it is evicted within 10m unless it ends before, and "
        "does not wait again"
    )
    assert mesh.ends == {}
    mesh.complete("t")
    assert mesh.state.ledger.accounts == {}


def test_a_restarted_supervisor_goes_on_with_a_deletion():
    mesh = mesh_of(pool("p", gpu=4))
    run_queued(mesh, "t", gpu=1)
    mesh.delete_pool(drain=True)
    restored = mesh.refolded()
    assert list(restored.drains.ending) == ["p"]
    assert list(mesh.rewritten().drains.ending) == ["p"]
    mesh.engine.state = restored
    mesh.leave("t")
    assert mesh.state.ledger.accounts == {}


def test_a_deletion_can_be_taken_back():
    mesh = mesh_of(pool("p", gpu=4))
    run_queued(mesh, "t", gpu=1)
    mesh.delete_pool(drain=True)
    assert mesh.handle(s.DrainRequested(pool_name="p", drained=False)).outcome == Done()
    mesh.leave("t", saved=True)
    # It was evicted while the pool was to go, and waits again now that it stays.
    assert mesh.starts["t"].state_key == "state-t"


def test_a_drain_of_a_pool_that_is_being_deleted_deletes_it_all_the_same():
    mesh = mesh_of(pool("p", gpu=4))
    run_queued(mesh, "t", gpu=1, duration=5.0)
    mesh.delete_pool(drain=True, deadline_s=900.0)
    mesh.handle(s.DrainRequested(pool_name="p", deadline_s=600.0))
    assert list(mesh.state.drains.ending) == ["p"]


def test_a_pool_that_is_being_deleted_is_not_declared_anew_but_may_be_changed():
    mesh = mesh_of(pool("p", gpu=4))
    run_queued(mesh, "t", gpu=1)
    mesh.delete_pool(drain=True)
    assert mesh.resize(pool("p", gpu=4), must_last=True).reason == "pool_ending"
    changed = mesh.resize(pool("p", gpu=2))
    assert changed.warnings[0] == (
        "pool 'p' is being deleted all the same; undrain_pool('p') keeps it"
    )
    assert list(mesh.state.drains.ending) == ["p"]


def test_what_a_deleted_pool_has_lent_is_called_back_first():
    mesh = mesh_of(*cohort_of(4, 0))
    run_queued(mesh, "b", "q", gpu=2, on_preempted="requeue")
    mesh.submit("starts", "q", gpu=2)
    assert mesh.delete_pool(drain=True).change is Change.ENDING
    assert sorted(mesh.ends) == ["b"]
    mesh.leave("b", saved=True)
    assert mesh.waiting("q") == ["b"]
    mesh.report("starts")
    mesh.tick()
    mesh.leave("starts")
    assert list(mesh.state.ledger.accounts) == ["q"]


def test_placement_groups_go_before_their_pool():
    groups = GroupsSpec(reserved=(shape({"gpu": 2}),))
    mesh = mesh_of(pool("p", gpu=4, groups=groups))
    mesh.make_all()
    (group_id,) = mesh.state.groups.by_id
    assert mesh.delete_pool().change is Change.ENDING
    assert mesh.removes == {group_id}
    mesh.remove(group_id)
    assert mesh.state.ledger.accounts == {}
    assert mesh.state.groups.of_pool == {}
    assert is_stored(mesh)


def test_a_cohort_whose_name_is_nearly_that_of_another_one_is_warned_of():
    mesh = Mesh()
    mesh.cohort("company")
    (warning,) = mesh.resize(pool("p", cpu=1, lending={"cohort": "compnay"})).warnings
    assert warning == (
        "cohort 'compnay' is new (did you mean 'company'?): pool 'p' borrows from nobody as long as it is "
        "alone in it"
    )
    assert mesh.resize(pool("q", cpu=1, lending={"cohort": "compnay"})).warnings == ()
    assert mesh.resize(pool("r", cpu=1, lending={"cohort": "lab"})).warnings == ()
    (warning,) = mesh.resize(pool("r", cpu=1, lending={"cohort": "labs"})).warnings
    assert "(did you mean 'lab'?)" in warning


def test_what_still_names_a_deleted_pool_is_told():
    mesh = mesh_of(pool("p", gpu=4), protected_pools=("p",))
    token = TokenSpec(name="t", role=Role.SUBMITTER, secret_hash="a" * 64, pools=("p", "q"))
    mesh.handle(s.TokenRequested(spec=token, lifetime_s=60.0, client="c"))
    assert mesh.delete_pool().warnings == (
        (
            "pool 'p' is still named by token 't', protected_pools of the policy; a new pool of this name is "
            "meant, too"
        ),
    )
    assert mesh.state.tokens["t"].pools == ("p", "q")


def test_a_new_pool_of_the_same_name_knows_nothing_of_the_deleted_one():
    mesh = mesh_of(pool("p", gpu=4))
    mesh.handle(s.StateHandlersGiven(pool_name="p", preserver_key="save", restorer_key=None))
    mesh.run("t", gpu=4)
    mesh.complete("t")
    mesh.delete_pool()
    mesh.resize(pool("p", gpu=2))
    assert mesh.state.handlers == {}
    assert mesh.free() == amount(gpu=2)


def test_no_selector_chooses_a_pool_that_is_being_deleted():
    mesh = mesh_of(pool("p", labels={"a": "b"}, gpu=4))
    mesh.run("t", gpu=1)
    mesh.delete_pool(drain=True)
    assert mesh.queue("u", "", selector={"a": ["b"]}, gpu=1).reason == "no_matching_pool"


# -- other names ------------------------------------------------------------------------------------------

#: A name that no other text of a state contains.
OLD, NEW = "zebra", "yak"


def busy_mesh():
    """A mesh in which much refers to the pool ``OLD``."""
    lending = {"cohort": "all"}
    groups = GroupsSpec(reserved=(shape({"cpu": 1}),))
    mesh = mesh_of(
        pool(OLD, cpu=4, gpu=4, lending=lending),
        pool("q", cpu=4, gpu=4, lending=lending),
        protected_pools=(),
    )
    token = TokenSpec(
        name="t", role=Role.SUBMITTER, secret_hash="a" * 64, pools=(OLD,), evict_pools=(OLD, "q")
    )
    mesh.handle(s.TokenRequested(spec=token, lifetime_s=60.0, client="c"))
    mesh.handle(s.StateHandlersGiven(pool_name=OLD, preserver_key="save", restorer_key="back"))
    mesh.run("done", OLD, gpu=1)
    mesh.complete("done")
    mesh.run("lent", "q", gpu=6)
    run_queued(mesh, "own", "q", priority=1.0, gpu=1, on_preempted="requeue")
    mesh.run("low", OLD, priority=0.0, gpu=1, class_key="c")
    mesh.submit("high", OLD, priority=9.0, gpu=1, more={"request_id": "r"})
    mesh.queue("w1", OLD, gpu=3)
    mesh.queue("w2", OLD, gpu=3)
    mesh.change("w2", held=True)
    mesh.announce("u", "elsewhere", OLD)
    mesh.policy(protected_pools=(OLD,))
    mesh.resize(msgspec.structs.replace(mesh.state.ledger.accounts[OLD].spec, groups=groups))
    mesh.make_all()
    mesh.tick()
    return mesh


def text_of(state):
    """A state as text, without what only remembers."""
    snapshot = take_snapshot(state)
    past = ("answers", "audit", "ended", "policy_changes", "pool_names")
    snapshot = msgspec.structs.replace(snapshot, **{key: [] for key in past})
    return msgspec.json.encode(snapshot).decode()


def test_after_a_rename_nothing_that_lives_has_the_old_name():
    mesh = busy_mesh()
    before = text_of(mesh.state)
    assert before.count(f'"{OLD}"') > 20
    assert mesh.rename_pool(OLD, NEW) == Done(change=Change.CHANGED)
    after = text_of(mesh.state)
    assert f'"{OLD}"' not in after
    assert is_stored(mesh)


def test_a_renamed_pool_goes_on_as_one_that_always_had_the_name():
    mesh = busy_mesh()
    mesh.rename_pool(OLD, NEW)
    assert mesh.waiting(NEW) == ["w2"]
    assert mesh.state.running.by_id["low"].spec.pool_name == NEW
    for victim in ("low", "lent", "own"):
        mesh.leave(victim, saved=True)
    assert mesh.starts["w1"].agent.pool_name == NEW
    for name in ("high", "w1"):
        mesh.report(name)
        mesh.complete(name)
    assert mesh.state.ledger.accounts[NEW].used == amount()
    assert mesh.submit("x", OLD, gpu=1).reason == "pool_not_found"
    assert is_stored(mesh)


def test_a_refusal_of_the_old_name_says_the_new_one():
    mesh = mesh_of(pool("p", gpu=1))
    mesh.rename_pool("p", "research")
    mesh.rename_pool("research", "science")
    assert mesh.submit("t", "p").error.startswith(
        "there is no pool 'p', which was renamed to 'science'; pools are: science."
    )


def test_a_name_that_is_taken_is_refused_and_the_same_name_changes_nothing():
    mesh = mesh_of(pool("p", gpu=1), pool("q", gpu=1))
    refused = mesh.rename_pool("p", "q")
    assert (refused.reason, refused.error) == (
        "pool_exists",
        (
            "pool 'p' cannot be renamed to 'q', which is the name of another pool; choose another name, or "
            "delete that pool first"
        ),
    )
    assert mesh.rename_pool("p", "p") == Done(change=Change.UNCHANGED)
    assert mesh.rename_pool("n", "m").reason == "pool_not_found"


def test_a_pool_that_is_being_deleted_goes_under_its_new_name():
    mesh = mesh_of(pool("p", gpu=1))
    mesh.run("t", gpu=1)
    mesh.delete_pool(drain=True)
    mesh.rename_pool("p", "q")
    assert list(mesh.state.drains.ending) == ["q"]
    mesh.leave("t")
    assert mesh.state.ledger.accounts == {}


def test_all_names_of_a_pool_are_known_until_another_pool_gets_one():
    names = PoolNames()
    names.note_renamed("a", "b")
    names.note_renamed("b", "c")
    assert names.all_of("a") == names.all_of("c") == ("a", "b", "c")
    assert names.current("a") == "c"
    names.note_created("a")
    assert (names.all_of("a"), names.all_of("c")) == (("a",), ("b", "c"))
    names.note_renamed("c", "b")
    assert (names.current("c"), names.current("b")) == ("b", "b")


def test_former_names_are_kept_in_bounds():
    names = PoolNames()
    for number in range(KEPT + 5):
        names.note_renamed(f"n{number}", f"n{number + 1}")
    assert len(names.next_of) == KEPT


# -- cohorts ----------------------------------------------------------------------------------------------


def test_a_cohort_in_use_is_not_deleted():
    mesh = mesh_of(*cohort_of(4, 0))
    mesh.cohort("above")
    mesh.cohort("all", "above")
    refused = mesh.handle(s.CohortDeletionRequested(name="all")).outcome
    assert (refused.reason, refused.error) == (
        "cohort_in_use",
        "cohort 'all' is in use: pools 'p', 'q' are in it",
    )
    refused = mesh.handle(s.CohortDeletionRequested(name="above")).outcome
    assert refused.error == "cohort 'above' is in use: cohort 'all' is in it"
    for name in "pq":
        mesh.resize(pool(name, gpu=1))
    for name in ("all", "above"):
        outcome = mesh.handle(s.CohortDeletionRequested(name=name)).outcome
        assert outcome == Done(change=Change.DELETED)
    assert mesh.state.ledger.cohorts.specs == {}
    missing = mesh.handle(s.CohortDeletionRequested(name="al")).outcome
    assert missing.reason == "cohort_not_found"
    assert is_stored(mesh)


def test_a_renamed_cohort_lends_as_before():
    mesh = mesh_of(*cohort_of(4, 0))
    mesh.cohort("above")
    mesh.cohort("all", "above")
    rename = s.CohortRenameRequested(name="above", new_name="top")
    assert mesh.handle(rename).outcome == Done(change=Change.CHANGED)
    assert mesh.handle(rename).outcome.reason == "cohort_not_found"
    mesh.handle(s.CohortRenameRequested(name="all", new_name="every"))
    assert mesh.state.ledger.accounts["q"].spec.cohort == "every"
    assert mesh.state.ledger.cohorts.path("q") == ("every", "top")
    mesh.run("b", "q", gpu=4)
    taken = s.CohortRenameRequested(name="every", new_name="top")
    assert mesh.handle(taken).outcome.reason == "cohort_exists"
    assert is_stored(mesh)


def test_a_cohort_that_must_be_new_may_not_exist_otherwise():
    mesh = mesh_of()
    mesh.cohort("c", weight=2.0)
    spec = mesh.state.ledger.cohorts.specs["c"]
    again = s.CohortRequested(spec=spec, must_be_new=True)
    assert mesh.handle(again).outcome == Done(change=Change.UNCHANGED)
    other = msgspec.structs.replace(spec, weight=3.0)
    refused = mesh.handle(s.CohortRequested(spec=other, must_be_new=True)).outcome
    assert refused.reason == "cohort_exists"


def test_many_that_wait_in_a_pool_that_is_deleted_are_cancelled_in_parts(monkeypatch):
    monkeypatch.setattr(pools, "_CANCELLED", 10)
    mesh = Mesh(pool("p", cpu=1), pool("q", cpu=1), nodes=[node("a", cpu=2)])
    mesh.run("runs", cpu=1)
    for number in range(60):
        mesh.queue(f"t{number}", cpu=1)
    assert mesh.delete_pool("p").error == (
        "pool 'p' is in use: 1 task ('runs') runs in it; 60 tasks ('t0', 't1', 't2', …) wait in its queue"
    )
    mesh.delete_pool("p", drain=True)
    assert len(mesh.waiting()) == 40
    mesh.leave("runs")
    while (before := len(mesh.waiting())) > 0:
        assert mesh.dry("late", cpu=1).reason is Reason.POOL_ENDING
        mesh.tick()
        assert 0 < before - len(mesh.waiting()) <= 10
    assert "p" not in mesh.state.ledger.accounts
    assert {past.reason for past in mesh.state.ended.values()} >= {"pool_ending"}
