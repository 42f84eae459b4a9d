"""Tasks that were started from inside another task end with it, unless it is completed."""

from __future__ import annotations

import pytest

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Pending, Refused
from tests.engine.builders import Mesh, amount, differences, node, pool


@pytest.fixture
def mesh():
    """A task ``top`` that runs by itself, with a child that runs, one that waits, and a grandchild."""
    mesh = Mesh(pool("p", cpu=9), nodes=[node("a", cpu=9)])
    mesh.run("top", cpu=2, run="train", class_key="k", on_preempted="requeue", priority=1.0)
    mesh.run("child", cpu=2, parent="top", class_key="k", on_preempted="requeue", retries=3)
    mesh.run("grandchild", cpu=2, parent="child")
    mesh.queue("waits", cpu=4, parent="top", class_key="k")
    yield mesh
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


def assert_all_ended(mesh):
    """Assert that the three ended because of their parents, and leave nothing behind."""
    for task_id in ("child", "waits", "grandchild"):
        past = mesh.state.ended[task_id]
        assert (past.state, past.reason) == (EndState.CANCELLED, "parent_ended"), task_id
    assert "'top', which started it" in mesh.state.ended["child"].error
    assert "'child', which started it" in mesh.state.ended["grandchild"].error
    for name in ("child", "grandchild"):
        if name in mesh.ends:
            mesh.leave(name)
    assert {"child", "grandchild"}.isdisjoint(mesh.state.agents)
    assert not mesh.state.queue.by_id.keys() & {"child", "waits", "grandchild"}


def test_children_end_with_a_parent_that_is_cancelled(mesh):
    mesh.cancel("top")
    assert_all_ended(mesh)
    mesh.leave("top")
    assert mesh.free() == amount(cpu=9)


def test_children_end_with_a_parent_whose_run_fails(mesh):
    mesh.run_ends("top", reason=TaskEndReason.RUN_RAISED, error="ValueError: no")
    assert_all_ended(mesh)


def test_children_end_with_a_parent_that_is_lost(mesh):
    mesh.die("top")
    assert mesh.state.ended["top"].state is EndState.LOST
    assert_all_ended(mesh)


def test_children_end_with_a_parent_whose_agent_is_deleted(mesh):
    mesh.delete("top")
    assert_all_ended(mesh)


def test_children_stay_when_their_parent_is_completed_and_have_none_then(mesh):
    mesh.run_ends("top")
    mesh.leave("top")
    state = mesh.state
    assert [state.running.by_id[name].spec.parent for name in ("child", "grandchild")] == [
        "",
        "child",
    ]
    started = state.running.by_id["waits"]
    assert started.spec.parent == "", "it started with what the parent freed"
    mesh.run("top", cpu=1)
    mesh.cancel("top")
    assert {"child", "waits", "grandchild"} <= state.running.by_id.keys(), "it is another task"


def test_a_queued_child_of_a_completed_parent_waits_on(mesh):
    mesh.queue("later", cpu=8, parent="top")
    mesh.run_ends("top")
    assert mesh.state.queue.by_id["later"].spec.parent == ""


def test_children_of_an_evicted_parent_stay_until_its_grace_is_over(mesh):
    mesh.preempt(agent_name="top")
    assert {"child", "grandchild"} <= mesh.state.running.by_id.keys(), "it may need them to save"
    mesh.run("more", cpu=1, parent="top")

    mesh.save("top")

    assert_all_ended(mesh)
    assert mesh.state.ended["more"].reason == "parent_ended"
    mesh.leave("more")
    mesh.leave("top")
    assert mesh.state.running.by_id["top"].attempts.preemptions == 1, "it is started again alone"
    assert mesh.state.queue.by_id == {}


def test_children_end_with_an_evicted_parent_whose_state_is_not_saved(mesh):
    mesh.preempt(agent_name="top")
    mesh.handle(s.StateNotSaved(task_id="top", error="it has no save_state"))
    assert_all_ended(mesh)


def test_children_end_with_a_parent_that_dies_while_it_is_evicted(mesh):
    mesh.preempt(agent_name="top")
    mesh.leave("top")
    assert_all_ended(mesh)


def test_children_stay_with_a_parent_that_could_not_be_evicted(mesh):
    mesh.preempt(task_id="top", end_agent=False)
    mesh.save("top")
    mesh.handle(s.CancelAnswered(task_id="top", cancel_success=False, runs_on=True))
    assert {"top", "child", "grandchild"} <= mesh.state.running.by_id.keys()


def test_a_child_that_is_evicted_returns_while_its_parent_runs(mesh):
    mesh.preempt(agent_name="child")
    mesh.leave("child")
    assert mesh.state.ended["grandchild"].reason == "parent_ended"
    assert "child" in mesh.state.queue.by_id or "child" in mesh.state.running.by_id
    mesh.cancel("top")
    assert mesh.state.ended["child"].reason == "parent_ended"


def test_a_child_that_is_being_evicted_does_not_return_without_its_parent(mesh):
    mesh.preempt(agent_name="child")
    mesh.cancel("top")
    mesh.leave("child")
    assert_all_ended(mesh)


@pytest.mark.parametrize("order", [("top", "child"), ("child", "top")])
def test_a_child_that_was_lost_with_its_parent_is_not_started_again(mesh, order):
    for name in order:
        if name in mesh.state.agents:
            mesh.die(name)
    assert not {"child", "waits", "grandchild"} & (
        mesh.state.running.by_id.keys() | mesh.state.queue.by_id.keys()
    )


def test_children_of_a_parent_lost_while_the_supervisor_was_down_end_at_the_recovery(mesh):
    living = {
        (name, agent.incarnation) for name, agent in mesh.state.agents.items() if name != "top"
    }
    mesh.handle(s.RecoveryObserved(living=frozenset(living)))
    assert_all_ended(mesh)


def test_children_lost_with_their_parent_while_the_supervisor_was_down_do_not_return(mesh):
    mesh.handle(s.RecoveryObserved(living=frozenset()))
    assert mesh.state.running.by_id == {}
    assert mesh.state.queue.by_id == {}


def test_a_lost_child_is_rebuilt_only_while_its_parent_runs():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("a", cpu=8)])
    mesh.run("top", cpu=2)
    for name in ("one", "two"):
        mesh.run(name, cpu=2, parent="top", class_key="k")
        mesh.die(name)
    again = mesh.handle(s.RebuildRequested(agent_name="one", request_id="r1")).outcome
    assert isinstance(again, Pending)
    mesh.cancel("top")
    refused = mesh.handle(s.RebuildRequested(agent_name="two", request_id="r2")).outcome
    assert refused.reason is Reason.PARENT_ENDED


@pytest.mark.parametrize("how", ["cancelled", "waits"])
def test_a_task_that_does_not_run_starts_no_children(mesh, how):
    if how == "cancelled":
        mesh.cancel("top")
    else:
        mesh.preempt(agent_name="top")
        mesh.run("urgent", cpu=2, priority=9.0)
        mesh.handle(s.DrainRequested(pool_name="p", drained=True))
        mesh.leave("top")
    for submit in (mesh.submit, mesh.queue):
        refused = submit("late", cpu=1, parent="top")
        assert isinstance(refused, Refused)
        assert (refused.reason, "detached=True" in refused.hint) == (Reason.PARENT_ENDED, True)


@pytest.mark.parametrize("known", [True, False])
def test_a_child_of_a_completed_or_forgotten_task_has_no_parent(known):
    mesh = Mesh(pool("p", cpu=8), nodes=[node("a", cpu=8)])
    if known:
        mesh.run("top", cpu=1, run="train")
        mesh.run_ends("top")
    mesh.run("late", cpu=1, parent="top")
    assert mesh.state.running.by_id["late"].spec.parent == ""


def test_a_child_evicts_neither_its_parent_nor_who_started_that():
    mesh = Mesh(pool("p", cpu=6), nodes=[node("a", cpu=6)], same_pool_priority_threshold=1.0)
    mesh.run("top", cpu=2, priority=0.0)
    mesh.run("middle", cpu=2, priority=0.0, parent="top")
    mesh.run("other", cpu=2, priority=1.0)
    mesh.submit("low", cpu=2, priority=9.0, parent="middle")
    evicted = [victim.task_id for victim in mesh.state.agents["low"].submission.evicting]
    assert evicted == ["other"]
    refused = mesh.submit("large", cpu=4, priority=9.0, parent="middle")
    assert refused.reason is Reason.PREEMPTION_FAILED


def test_many_queued_tasks_end_with_the_parent_of_their_parent():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("a", cpu=8)])
    mesh.run("top", cpu=1)
    mesh.run("child", cpu=1, parent="top")
    for number in range(50):
        mesh.queue(f"waits-{number}", cpu=8, parent="child")
    mesh.cancel("top")
    assert mesh.state.queue.by_id == {}
    assert mesh.state.running.by_id == {}
