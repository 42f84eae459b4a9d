"""Arrays: many members at the cost of one entry in the queue; how they start, end, and are changed."""

from __future__ import annotations

import pytest

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.explanation import Explanation
from schedulemesh.engine.messages.outcomes import Done, Queued, Refused, TasksCancelled
from schedulemesh.runtime.queries import saved_key
from tests.engine.builders import Mesh, differences, node, pool


def mesh_of(cpu=4, **policy):
    return Mesh(pool("p", cpu=cpu), nodes=[node("n", cpu=64, gpu=8)], **policy)


def array(mesh, indices="0-9", name="a", **how):
    limits = {"array": indices, **how.pop("limits", {})}
    return mesh.queue(name, class_key="c", run="go", limits=limits, **{"cpu": 1, **how})


def agree(mesh):
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


def runs(mesh, name="a"):
    """The indices of the members that have an agent."""
    return sorted(mesh.state.arrays.by_id[name].running)


def member_ends(mesh, index, name="a", **how):
    task_id = f"{name}[{index}]"
    if task_id in mesh.starts:
        mesh.report(task_id)
    mesh.run_ends(task_id, **how)
    if task_id in mesh.ends:
        mesh.leave(task_id)


def fails(mesh, index, name="a"):
    member_ends(mesh, index, name, reason=TaskEndReason.RUN_RAISED, error="it raised")


def ended(mesh, name="a"):
    past = mesh.state.ended[name]
    return past.state, past.reason, past.error


def test_members_start_as_tasks_where_there_is_room_and_the_others_are_one_entry():
    mesh = mesh_of()
    assert isinstance(array(mesh), Queued)
    assert runs(mesh) == [0, 1, 2, 3]
    assert mesh.waiting() == ["a"]
    assert mesh.state.running.by_id["a[2]"].spec.array_index == 2
    assert mesh.state.agents["a[2]"].spec.name == "a[2]"
    agree(mesh)
    member_ends(mesh, 1)
    assert runs(mesh) == [0, 2, 3, 4]
    agree(mesh)


def test_an_array_is_over_when_all_members_are_and_is_completed_where_they_are():
    mesh = mesh_of()
    array(mesh, "0-5")
    for index in range(6):
        assert "a" not in mesh.state.ended
        member_ends(mesh, index)
    assert ended(mesh) == (EndState.COMPLETED, "", "")
    assert mesh.waiting() == []
    agree(mesh)


def test_one_member_that_fails_fails_the_array_at_its_end_and_no_other_member():
    mesh = mesh_of()
    array(mesh, "0-5")
    fails(mesh, 2)
    mesh.cancel("a[5]")
    for index in (0, 1, 3, 4):
        member_ends(mesh, index)
    assert ended(mesh) == (
        EndState.FAILED,
        TaskEndReason.MEMBERS_NOT_COMPLETED.value,
        "of 6 members 4 completed, 1 failed (2), 1 cancelled (5)",
    )
    agree(mesh)


def test_no_more_members_run_at_once_than_the_limit_says():
    mesh = mesh_of(cpu=8)
    array(mesh, "0-9%3")
    assert runs(mesh) == [0, 1, 2]
    mesh.queue("t", cpu=1)
    assert "t" in mesh.state.agents, "the array holds nobody else back"
    agree(mesh)
    fails(mesh, 0)
    assert runs(mesh) == [1, 2, 3]
    agree(mesh)


@pytest.mark.parametrize("end", ["completed", "cancelled", "completed by its caller"])
def test_a_member_counts_until_its_agent_has_ended(end):
    mesh = mesh_of()
    array(mesh, "0-9%1")
    mesh.report("a[0]")
    if end == "completed":
        mesh.run_ends("a[0]")
    elif end == "cancelled":
        mesh.cancel("a[0]")
    else:
        mesh.handle(s.TaskFinished(task_id="a[0]", end_agent=True))
    mesh.tick()
    assert "a[1]" not in mesh.state.agents, "the process of a[0] is still there"
    cause = mesh.engine.wait_causes(mesh.now).cause_of(mesh.state.queue.by_id["a"])
    assert cause.reason is Reason.ARRAY_LIMIT
    agree(mesh)
    mesh.leave("a[0]")
    assert runs(mesh) == [1]
    agree(mesh)


def test_a_member_counts_whose_agent_outlives_its_task():
    mesh = mesh_of()
    array(mesh, "0-2%1")
    mesh.report("a[0]")
    mesh.handle(s.TaskFinished(task_id="a[0]", end_agent=False))
    mesh.tick()
    assert "a[1]" not in mesh.state.agents
    mesh.die("a[0]")
    assert runs(mesh) == [1]
    agree(mesh)


def test_an_evicted_member_waits_as_a_task_of_its_own_and_comes_before_those_that_have_not_run():
    mesh = mesh_of(cpu=3)
    array(mesh, "0-9%3", priority=1.0, on_preempted="requeue")
    for index in range(3):
        mesh.report(f"a[{index}]")
    mesh.queue("t", cpu=2, priority=9.0, class_key="c")
    for name in list(mesh.ends):
        mesh.leave(name, saved=True)
    waiting = mesh.waiting()
    assert waiting[-1] == "a"
    assert len(waiting) == 3
    assert len(runs(mesh)) == 1
    agree(mesh)
    mesh.report("t")
    mesh.complete("t")
    assert runs(mesh) == [0, 1, 2]
    assert mesh.waiting() == ["a"]
    agree(mesh)


def test_a_full_array_keeps_its_evicted_members_waiting_too():
    mesh = mesh_of(cpu=8)
    array(mesh, "0-9%2", on_preempted="requeue")
    mesh.report("a[0]")
    mesh.preempt(agent_name="a[0]")
    mesh.leave("a[0]", saved=True)
    assert runs(mesh) == [0, 1], "it comes first"
    mesh.change("a[5]", priority=9.0)
    assert runs(mesh) == [0, 1]
    assert mesh.waiting() == ["a[5]", "a"]
    cause = mesh.engine.wait_causes(mesh.now).cause_of(mesh.state.queue.by_id["a[5]"])
    assert cause.reason is Reason.ARRAY_LIMIT
    agree(mesh)
    member_ends(mesh, 1)
    assert runs(mesh) == [0, 5]


def test_a_member_with_retries_runs_again_before_it_has_failed():
    mesh = mesh_of(cpu=1)
    array(mesh, "0-1", retries=1)
    fails(mesh, 0)
    assert mesh.waiting()[0] == "a" or "a[0]" in mesh.waiting()
    mesh.tick(2.0)
    agree(mesh)
    for _ in range(3):
        running = runs(mesh)
        if not running:
            mesh.tick(5.0)
            running = runs(mesh)
        fails(mesh, running[0])
        mesh.tick(5.0)
    if "a" not in mesh.state.ended:
        fails(mesh, runs(mesh)[0])
    assert ended(mesh)[2] == "of 2 members 2 failed (0-1)"
    agree(mesh)


@pytest.mark.parametrize(
    ("task_id", "remaining", "running"),
    [("a", "", []), ("a[3-7]", "9", [0, 1, 2, 8]), ("a[0,9]", "5-8", [1, 2, 3, 4])],
)
def test_members_are_cancelled_by_their_indices_or_all_together(task_id, remaining, running):
    mesh = mesh_of()
    array(mesh)
    outcome = mesh.cancel(task_id)
    assert isinstance(outcome, TasksCancelled)
    for name in list(mesh.ends):
        mesh.leave(name)
    assert (mesh.state.arrays.by_id["a"].remaining.written(), runs(mesh)) == (remaining, running)
    if task_id == "a":
        assert ended(mesh)[:2] == (EndState.CANCELLED, "members_not_completed")
        assert mesh.cancel("a") == Done(change=Change.ALREADY_ENDED)
    else:
        assert mesh.cancel(task_id) == Done(change=Change.ALREADY_ENDED)
    agree(mesh)


def test_a_whole_array_is_held_released_and_gets_another_priority():
    mesh = mesh_of(cpu=2)
    array(mesh)
    mesh.change("a", held=True)
    member_ends(mesh, 0)
    assert runs(mesh) == [1]
    agree(mesh)
    mesh.change("a", priority=7.0)
    assert mesh.state.running.by_id["a[1]"].spec.priority == 7.0
    mesh.change("a", held=False)
    assert runs(mesh) == [1, 2]
    assert mesh.state.running.by_id["a[2]"].spec.priority == 7.0
    assert mesh.change("a", held=False) == Done(change=Change.UNCHANGED)
    agree(mesh)


def test_some_members_are_held_and_put_first_as_tasks_of_their_own():
    mesh = mesh_of(cpu=2)
    array(mesh)
    mesh.change("a[2-4]", held=True)
    mesh.change("a[7,8]", to_front=True)
    assert mesh.waiting() == ["a[7]", "a[8]", "a", "a[2]", "a[3]", "a[4]"]
    member_ends(mesh, 0)
    member_ends(mesh, 1)
    assert runs(mesh) == [7, 8]
    agree(mesh)
    assert mesh.change("a[0]", held=True).reason is Reason.NOT_QUEUED
    mesh.handle(s.TimeLimitRequested(task_id="a[2,9]", max_run_s=60.0))
    assert mesh.state.queue.by_id["a[9]"].spec.max_run_s == 60.0
    mesh.handle(s.TimeLimitRequested(task_id="a", max_run_s=90.0))
    assert mesh.state.running.by_id["a[7]"].max_run_s == 90.0
    agree(mesh)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"run": ""}, "its members run by themselves"),
        ({"more": {"queue": False}}, "submit it with queue=True"),
        ({"more": {"queue": True, "until_runs": True}}, "wait for its end"),
        ({"restartable": False}, "object references"),
        (
            {
                "bundles": [{"cpu": 1}],
                "payload": GangPayload(strategy="PACK", replicas=2),
            },
            "elastic gangs",
        ),
    ],
)
def test_what_cannot_be_an_array_is_refused(how, words):
    mesh = mesh_of()
    how = {"run": "go", "more": {"queue": True}, "cpu": 1, **how}
    if "bundles" in how:
        del how["cpu"]
    refused = mesh.submit("a", class_key="c", limits={"array": "0-3"}, **how)
    assert (refused.reason, words in refused.error) == (Reason.INVALID_ARRAY, True), refused
    assert mesh.dry("a", class_key="c", limits={"array": "0-3"}, **how) == refused


def test_ids_of_arrays_and_of_their_members_are_taken():
    mesh = mesh_of()
    mesh.queue("b[1]", cpu=1)
    array(mesh)
    for name, how in (("a", {}), ("a[7]", {}), ("b", {"limits": {"array": "0-3"}, "run": "go"})):
        refused = mesh.queue(name, cpu=1, **how)
        assert refused.reason is Reason.DUPLICATE_TASK, name
    mesh.run("w", cpu=0)
    assert mesh.announce("a[7]", "w").reason is Reason.DUPLICATE_TASK
    mesh.delete("w")
    mesh.leave("w")
    assert mesh.cancel("a[10]").reason is Reason.INVALID_ARRAY
    assert mesh.cancel("a[x]").reason is Reason.TASK_NOT_FOUND
    mesh.cancel("a")
    assert array(mesh, "0-1").reason is Reason.DUPLICATE_AGENT, "its members are still ending"
    for name in list(mesh.ends):
        mesh.leave(name)
    array(mesh, "0-1")
    assert mesh.state.arrays.by_id["a"].size == 2
    agree(mesh)


def test_tasks_start_after_an_array_and_after_a_member_and_arrays_after_tasks():
    mesh = mesh_of(cpu=2)
    array(mesh, "0-3")
    mesh.queue("t", cpu=1, limits={"after": ("ok:a",)})
    mesh.queue("u", cpu=1, limits={"after": ("ok:a[3]",)})
    mesh.queue("v", cpu=1, limits={"after": ("fail:a[2]",)})
    array(mesh, "0-1", "b", limits={"after": ("any:t",)})
    assert mesh.waiting() == ["a", "t", "u", "v", "b"]
    agree(mesh)
    mesh.cancel("a[2]")
    assert not mesh.state.queue.by_id["v"].depends
    for index in (0, 1, 3):
        member_ends(mesh, index)
    assert ended(mesh)[0] is EndState.CANCELLED
    assert mesh.state.ended["t"].reason == Reason.DEPENDENCY_NOT_MET
    assert "u" in mesh.state.agents
    assert "v" in mesh.state.agents
    assert mesh.waiting() == ["b"]
    assert not mesh.state.queue.by_id["b"].depends
    agree(mesh)


def test_its_explanation_counts_its_members():
    mesh = mesh_of(cpu=2)
    array(mesh, "0-9%2")
    answer = mesh.engine.explain("a", mesh.now)
    assert isinstance(answer, Explanation)
    assert (answer.state, answer.reason) == ("queued", Reason.ARRAY_LIMIT)
    assert answer.detail == "array 'a': of 10 members 8 wait, 2 run"
    unsplit = mesh.engine.explain("a[7]", mesh.now)
    assert (unsplit.state, unsplit.task.task_id) == ("queued", "a[7]")
    mesh.cancel("a[2-9]")
    answer = mesh.engine.explain("a", mesh.now)
    assert (answer.state, answer.detail) == (
        "running",
        "array 'a': of 10 members 0 wait, 2 run, 8 cancelled (2-9)",
    )
    assert mesh.engine.explain("a[5]", mesh.now).state == "cancelled"


def test_pools_are_renamed_and_deleted_around_it():
    mesh = mesh_of(cpu=2)
    array(mesh)
    mesh.rename_pool("p", "q")
    agree(mesh)
    member_ends(mesh, 0)
    assert mesh.state.agents["a[2]"].spec.pool_name == "q"
    mesh.delete_pool("q", drain=True)
    for name in list(mesh.ends):
        mesh.leave(name)
    assert mesh.waiting("q") == []
    agree(mesh)


def test_a_hundred_thousand_members_are_one_entry():
    mesh = mesh_of(cpu=2)
    array(mesh, "0-99999")
    assert mesh.waiting() == ["a"]
    assert len(mesh.state.arrays.by_id["a"].remaining) == 99_998
    mesh.cancel("a")
    assert mesh.waiting() == []


def test_its_start_is_reserved_and_taken_by_the_next_member():
    mesh = mesh_of(cpu=4)
    mesh.run("x", class_key="c", cpu=3, duration=100.0)
    array(mesh, "0-5", cpu=2, duration=1000.0)
    mesh.tick()
    assert mesh.state.queue.by_id["a"].reservation is not None
    mesh.complete("x")
    assert runs(mesh) == [0, 1]
    agree(mesh)


def test_evictions_are_made_for_its_members():
    mesh = mesh_of(cpu=2, min_preempt_score=0.0)
    mesh.handle(s.ClassProbed(class_key="c"))
    mesh.run("low", class_key="c", cpu=2, priority=1.0)
    array(mesh, "0-3", cpu=2, priority=9.0)
    assert list(mesh.ends) == ["low"]
    assert runs(mesh) == [0]
    mesh.leave("low")
    mesh.report("a[0]")
    assert mesh.waiting() == ["a"]
    agree(mesh)


def test_a_lost_member_that_is_rebuilt_after_the_end_of_its_array_is_a_task_by_itself():
    mesh = mesh_of(cpu=2)
    array(mesh, "0-1")
    mesh.report("a[0]")
    mesh.die("a[0]")
    member_ends(mesh, 1)
    assert ended(mesh)[0] is EndState.FAILED
    mesh.handle(s.RebuildRequested(agent_name="a[0]"))
    assert mesh.state.running.by_id["a[0]"].spec.array_index == 0
    assert ended(mesh)[2] == "of 2 members 1 completed, 1 lost (0)"
    agree(mesh)


def test_a_lost_member_is_rebuilt_once_fewer_run_than_may():
    mesh = mesh_of(cpu=2)
    array(mesh, "0-1%1")
    mesh.report("a[0]")
    mesh.die("a[0]")
    assert runs(mesh) == [1]
    refused = mesh.handle(s.RebuildRequested(agent_name="a[0]")).outcome
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.ARRAY_LIMIT
    assert runs(mesh) == [1]
    agree(mesh)
    member_ends(mesh, 1)
    mesh.handle(s.RebuildRequested(agent_name="a[0]"))
    assert "a[0]" in mesh.state.agents


def test_the_agent_of_a_member_that_has_ended_is_not_rebuilt():
    """It would run beside as many members as may at once."""
    mesh = mesh_of(cpu=2)
    array(mesh, "0-1%1")
    mesh.report("a[0]")
    mesh.complete("a[0]", end_agent=False)
    mesh.die("a[0]")
    assert runs(mesh) == [1]
    refused = mesh.handle(s.RebuildRequested(agent_name="a[0]")).outcome
    assert refused.reason is Reason.NOT_RESTARTABLE
    assert "a[0]" not in mesh.state.agents
    agree(mesh)


def test_the_array_of_a_task_with_the_same_id_is_forgotten():
    mesh = mesh_of(cpu=2)
    array(mesh, "0-1")
    member_ends(mesh, 0)
    member_ends(mesh, 1)
    assert ended(mesh)[0] is EndState.COMPLETED
    mesh.queue("a", cpu=1)
    assert "a" not in mesh.state.arrays.by_id
    agree(mesh)


def test_a_gang_can_be_an_array():
    mesh = mesh_of(cpu=4)
    gang = {"bundles": [{"cpu": 1}, {"cpu": 1}], "payload": GangPayload(strategy="PACK")}
    mesh.queue("a", class_key="c", run="go", limits={"array": "0-2"}, **gang)
    mesh.make_all()
    assert runs(mesh) == [0, 1]
    assert mesh.state.agents["a[1]"].spec.process_names == ("a[1]-0", "a[1]-1")
    agree(mesh)


def test_a_refused_change_of_too_many_members_names_the_most():
    mesh = mesh_of(cpu=2)
    array(mesh, "0-5000")
    refused = mesh.change("a[100-4000]", priority=7.0)
    assert isinstance(refused, Refused)
    assert "up to 1,000" in refused.error


def test_former_tasks_with_the_ids_of_its_members_are_not_its_members():
    mesh = mesh_of(cpu=1)
    mesh.run("a[3]", cpu=1)
    mesh.complete("a[3]")
    mesh.run("a[4]", cpu=1, on_preempted="drop")
    mesh.preempt(agent_name="a[4]")
    mesh.leave("a[4]", saved=True)
    mesh.run("a[5]", cpu=1)
    mesh.die("a[5]")
    array(mesh)
    for index in (3, 4, 5):
        assert mesh.engine.explain(f"a[{index}]", mesh.now).state == "queued"
        assert saved_key(mesh.state, f"a[{index}]") is None
    mesh.cancel("a[3]")
    assert mesh.engine.explain("a[3]", mesh.now).state == "cancelled"
    refused = mesh.queue("t", cpu=1, limits={"after": ("ok:a[3]",)})
    assert refused.reason is Reason.DEPENDENCY_NOT_MET
    agree(mesh)


def test_no_start_stays_reserved_between_two_attempts_while_the_array_is_full():
    mesh = mesh_of(cpu=4)
    array(mesh, "0-9%1", cpu=2, retries=1)
    fails(mesh, 0)
    assert runs(mesh) == [1]
    assert not mesh.state.queue.reserved
    mesh.tick()
    assert not mesh.state.queue.reserved
    agree(mesh)
