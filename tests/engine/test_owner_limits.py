"""Owners at their limits are passed over: the rules of ``docs/owners.md``, one by one."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.engine.messages.outcomes import Queued, Refused
from tests.engine.builders import Mesh, differences, node, pool


def limited(spec, **limits):
    """The pool with these limits by owner."""
    return msgspec.structs.replace(spec, owner_limits=parse_owner_limits(limits))


def mesh_of(quota=8, **limits):
    return Mesh(
        limited(pool("p", cpu=quota), **(limits or {"default": {"cpu": 4}})),
        nodes=[node("n", cpu=quota)],
    )


def differs(mesh):
    """Where the state differs from the one that its facts, or its snapshot, make."""
    return differences(mesh.state, mesh.refolded()) + differences(mesh.state, mesh.rewritten())


def held_by(mesh, owner):
    return mesh.state.owners.use_of("p", owner).held.cpu // 10_000


def test_an_owner_at_its_limit_is_passed_over_and_the_next_starts():
    mesh = mesh_of()
    mesh.queue("a1", cpu=3, owner="ada")
    mesh.queue("a2", cpu=2, owner="ada")
    mesh.queue("b1", cpu=4, owner="ben")
    assert list(mesh.starts) == ["a1", "b1"]
    mesh.tick()
    assert mesh.state.queue.by_id["a2"].reservation is None
    assert held_by(mesh, "ada") == 3
    assert differs(mesh) == []


def test_it_starts_when_a_task_of_its_owner_has_ended():
    mesh = mesh_of()
    mesh.queue("a1", cpu=4, owner="ada")
    mesh.queue("a2", cpu=4, owner="ada")
    mesh.queue("a3", cpu=1, owner="ada")
    mesh.report("a1")
    assert mesh.waiting() == ["a2", "a3"]
    mesh.complete("a1")
    assert "a2" in mesh.starts
    assert mesh.waiting() == ["a3"]
    assert differs(mesh) == []


def test_a_smaller_task_of_the_same_owner_starts_within_the_limit():
    mesh = mesh_of()
    mesh.queue("a1", cpu=3, owner="ada")
    mesh.queue("a2", cpu=2, owner="ada")
    mesh.queue("a3", cpu=1, owner="ada")
    assert list(mesh.starts) == ["a1", "a3"]
    assert mesh.waiting() == ["a2"]


def test_nobody_is_evicted_for_an_owner_at_its_limit():
    mesh = mesh_of()
    mesh.queue("a1", cpu=4, owner="ada", priority=1.0)
    mesh.queue("b1", cpu=4, owner="ben", priority=1.0)
    mesh.report("a1")
    mesh.report("b1")
    mesh.queue("a2", cpu=4, owner="ada", priority=9.0)
    mesh.tick()
    assert mesh.ends == {}
    assert mesh.submit("a3", cpu=4, owner="ada", priority=9.0).reason == "owner_limit"
    mesh.queue("c1", cpu=4, owner="cid", priority=9.0)
    assert len(mesh.ends) == 1


def test_a_strict_pool_does_not_wait_for_an_owner_at_its_limit():
    spec = msgspec.structs.replace(pool("p", cpu=8), queueing="strict")
    mesh = Mesh(limited(spec, default={"cpu": 4}), nodes=[node("n", cpu=8)])
    for name, owner in (("a1", "ada"), ("a2", "ada"), ("b1", "ben")):
        mesh.queue(name, cpu=4, owner=owner)
    assert list(mesh.starts) == ["a1", "b1"]


def test_a_task_that_alone_exceeds_the_limit_is_refused():
    mesh = mesh_of()
    refused = mesh.queue("a", cpu=5, owner="ada")
    assert isinstance(refused, Refused)
    assert refused.reason == "exceeds_owner_limit"
    assert refused.error == (
        "owner limit: 4 CPU are permitted to owner 'ada' in pool 'p'; the task asks for 5 CPU"
    )
    assert mesh.dry("a", cpu=5, owner="ada").reason == "exceeds_owner_limit"


def test_one_that_waits_goes_on_waiting_when_the_limit_is_lowered_below_it():
    mesh = mesh_of()
    mesh.queue("b", cpu=4, owner="ben")
    mesh.queue("c", cpu=3, owner="cid")
    mesh.queue("a", cpu=4, owner="ada")
    mesh.resize(limited(pool("p", cpu=8), default={"cpu": 2}))
    mesh.report("b")
    mesh.complete("b")
    mesh.queue("d", cpu=2, owner="dan")
    assert "a" not in mesh.starts
    assert "d" in mesh.starts
    assert mesh.engine.explain("a", mesh.now).reason == "exceeds_owner_limit"
    assert differs(mesh) == []


def test_what_runs_stays_when_the_limit_is_lowered_and_nothing_new_starts():
    mesh = mesh_of()
    mesh.queue("a1", cpu=2, owner="ada")
    mesh.queue("a2", cpu=2, owner="ada")
    mesh.resize(limited(pool("p", cpu=8), default={"cpu": 3}))
    mesh.queue("a3", cpu=1, owner="ada")
    mesh.tick()
    assert mesh.ends == {}
    assert mesh.waiting() == ["a3"]
    mesh.report("a1")
    mesh.complete("a1")
    assert "a3" in mesh.starts


def test_a_higher_limit_starts_what_waits():
    mesh = mesh_of()
    mesh.queue("a1", cpu=4, owner="ada")
    mesh.queue("a2", cpu=4, owner="ada")
    mesh.resize(limited(pool("p", cpu=8), ada={"cpu": 8}))
    assert "a2" in mesh.starts
    assert differs(mesh) == []


def test_entries_inherit_what_they_leave_out_of_the_default():
    mesh = mesh_of(default={"cpu": 4, "running": 1}, ada={"cpu": 6, "running": None})
    for name in ("a1", "a2", "a3"):
        mesh.queue(name, cpu=2, owner="ada")
    for name in ("b1", "b2"):
        mesh.queue(name, cpu=1, owner="ben")
    assert list(mesh.starts) == ["a1", "a2", "a3", "b1"]


def test_tasks_without_an_owner_are_one_owner():
    mesh = mesh_of()
    mesh.queue("x", cpu=3)
    mesh.queue("y", cpu=3)
    assert list(mesh.starts) == ["x"]
    assert mesh.engine.explain("y", mesh.now).error == (
        "owner limit: the owner of tasks without one holds 3 CPU in pool 'p', and 4 CPU are permitted; "
        "the task asks for 3 CPU"
    )


def test_the_explanation_names_the_figures_and_what_would_help():
    mesh = mesh_of()
    mesh.queue("a1", cpu=3, owner="ada")
    mesh.queue("a2", cpu=2, owner="ada")
    explained = mesh.engine.explain("a2", mesh.now)
    assert (explained.reason, explained.error) == (
        "owner_limit",
        "owner limit: owner 'ada' holds 3 CPU in pool 'p', and 4 CPU are permitted; the task asks for 2 CPU",
    )
    assert explained.hint == (
        "it starts when tasks of the same owner, such as 'a1', have ended, and others do not wait for it; "
        "an operator raises the limit with owner_limits of pool 'p'"
    )
    assert explained.no_estimate == "it waits for tasks of its owner to end"


def test_so_many_tasks_of_an_owner_wait_at_most():
    mesh = mesh_of(default={"cpu": 4, "queued": 2})
    mesh.queue("a1", cpu=4, owner="ada")
    assert isinstance(mesh.queue("a2", cpu=4, owner="ada"), Queued)
    assert isinstance(mesh.queue("a3", cpu=4, owner="ada"), Queued)
    refused = mesh.queue("a4", cpu=1, owner="ada")
    assert (refused.reason, refused.error) == (
        "owner_queue_full",
        "owner 'ada' has 2 tasks in the queue of pool 'p', and owner_limits permits 2",
    )
    assert isinstance(mesh.queue("b1", cpu=4, owner="ben"), Queued)
    mesh.change("a2", held=True)
    assert mesh.queue("a4", cpu=1, owner="ada").reason == "owner_queue_full"
    mesh.cancel("a2")
    assert isinstance(mesh.queue("a4", cpu=1, owner="ada"), Queued)


def test_each_member_of_an_array_counts_running_and_waiting():
    mesh = mesh_of(default={"cpu": 2, "queued": 4})
    refused = mesh.queue("big", cpu=1, owner="ada", run="work", limits={"array": "0-4"})
    assert refused.error == (
        "owner 'ada' has 0 tasks in the queue of pool 'p', and owner_limits permits 4; the array has 5 "
        "members"
    )
    mesh.queue("a", cpu=1, owner="ada", run="work", limits={"array": "0-3"})
    assert len(mesh.starts) == 2
    assert isinstance(mesh.queue("b", cpu=1, owner="ada"), Queued)
    assert isinstance(mesh.queue("c", cpu=1, owner="ada"), Queued)
    assert mesh.queue("d", cpu=1, owner="ada").reason == "owner_queue_full"
    first = next(iter(mesh.starts))
    mesh.report(first)
    mesh.complete(first)
    assert held_by(mesh, "ada") == 2
    assert len(mesh.starts) == 2
    assert differs(mesh) == []


def test_what_waits_again_is_not_refused_and_counts():
    mesh = mesh_of(default={"queued": 1})
    mesh.queue("a1", cpu=8, owner="ada", class_key="c", on_preempted="requeue")
    mesh.report("a1")
    mesh.queue("a2", cpu=8, owner="ada", priority=1.0)
    mesh.preempt(agent_name="a1", end_agent=True)
    mesh.leave("a1", saved=True)
    assert "a1" in mesh.starts
    assert mesh.queue("a3", cpu=1, owner="ada").reason == "owner_queue_full"


@pytest.mark.parametrize("counts", [True, False])
def test_limits_are_switched_on_and_off_while_tasks_wait(counts):
    mesh = mesh_of(default={"cpu": 4}) if counts else mesh_of(default={})
    mesh.queue("a1", cpu=4, owner="ada")
    mesh.queue("a2", cpu=4, owner="ada")
    mesh.queue("a3", cpu=4, owner="ada")
    assert ("a2" in mesh.starts) is not counts
    mesh.resize(pool("p", cpu=8))
    assert "a2" in mesh.starts
    mesh.resize(limited(pool("p", cpu=8), default={"cpu": 4}))
    assert held_by(mesh, "ada") == 8
    mesh.report("a1")
    mesh.complete("a1")
    assert mesh.waiting() == ["a3"]
    mesh.report("a2")
    mesh.complete("a2")
    assert "a3" in mesh.starts
    assert differs(mesh) == []


def test_a_renamed_pool_counts_on():
    mesh = mesh_of()
    mesh.queue("a1", cpu=4, owner="ada")
    mesh.queue("a2", cpu=4, owner="ada")
    mesh.rename_pool("p", "q")
    mesh.tick()
    assert mesh.waiting("q") == ["a2"]
    mesh.report("a1")
    mesh.complete("a1")
    assert "a2" in mesh.starts
    assert differs(mesh) == []


def test_no_start_stays_reserved_between_two_attempts_while_the_owner_has_no_room():
    mesh = mesh_of(4, ada={"cpu": 2})
    how = {"cpu": 2, "owner": "ada", "run": "go", "class_key": "c", "retries": 1}
    mesh.queue("a1", **how)
    mesh.queue("a2", **how)
    mesh.report("a1")
    mesh.run_ends("a1", reason=TaskEndReason.RUN_RAISED, error="it raised")
    mesh.leave("a1")
    assert list(mesh.state.agents) == ["a2"]
    mesh.tick()
    assert not mesh.state.queue.reserved


def test_each_extra_member_of_an_elastic_gang_counts_as_one_that_runs():
    mesh = mesh_of(ada={"running": 2})
    gang = GangPayload(replicas=5)
    mesh.queue("g", bundles=[{"cpu": 1}] * 2, payload=gang, class_key="c", owner="ada")
    mesh.make_all()
    mesh.report("g")
    mesh.tick()
    assert list(mesh.state.agents) == ["g", "g-2"]
    assert mesh.waiting() == ["g-3", "g-4"]
