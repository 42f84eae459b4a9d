"""Dependencies: tasks that start after others, in which order they come, and what becomes of them when those
end otherwise.
"""

from __future__ import annotations

import pytest

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages.explanation import Explanation
from schedulemesh.engine.messages.outcomes import Queued, Refused
from tests.engine.builders import Mesh, differences, node, pool


def mesh_of(cpu=4):
    return Mesh(pool("p", cpu=cpu), nodes=[node("n", cpu=64, gpu=8)])


def run(mesh, name, **how):
    mesh.run(name, class_key="c", **{"cpu": 1, **how})


def after(mesh, name, *dependencies, **how):
    """Queue a task that starts after these."""
    written = tuple(d if ":" in d else f"ok:{d}" for d in dependencies)
    return mesh.queue(name, class_key="c", run="go", limits={"after": written}, **{"cpu": 1, **how})


def agree(mesh):
    """The state is what its facts lead to, and what its snapshot says."""
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


def starts(mesh):
    return [name for name in ("a", "b", "c", "d", "t", "u", "v") if name in mesh.state.agents]


def ended(mesh, task_id):
    past = mesh.state.ended[task_id]
    return past.state, past.reason


def explained(mesh, task_id):
    answer = mesh.engine.explain(task_id, mesh.now)
    assert isinstance(answer, Explanation)
    return answer


def fail(mesh, task_id):
    mesh.run_ends(task_id, reason=TaskEndReason.RUN_RAISED, error="it raised")


END = {
    "complete": lambda mesh, task_id: mesh.complete(task_id),
    "cancel": lambda mesh, task_id: mesh.cancel(task_id),
    "fail": fail,
}


@pytest.mark.parametrize("condition", ["ok", "any", "fail"])
@pytest.mark.parametrize("end", ["complete", "cancel", "fail"])
def test_a_task_starts_when_those_before_it_have_ended_so_and_is_cancelled_otherwise(
    condition, end
):
    mesh = mesh_of()
    run(mesh, "a", run="go")
    assert isinstance(after(mesh, "t", f"{condition}:a"), Queued)
    assert starts(mesh) == ["a"], "there is room, and it waits all the same"
    agree(mesh)
    END[end](mesh, "a")
    if condition == "any" or (condition == "ok") == (end == "complete"):
        assert "t" in mesh.state.agents
    else:
        assert ended(mesh, "t") == (EndState.CANCELLED, Reason.DEPENDENCY_NOT_MET)
        assert "task 'a', which had to" in mesh.state.ended["t"].error
    agree(mesh)


@pytest.mark.parametrize(
    ("end", "starts_ok"), [("complete", True), ("cancel", False), ("fail", False)]
)
def test_what_has_ended_before_is_met_or_refuses_the_submission(end, starts_ok):
    mesh = mesh_of()
    run(mesh, "a", run="go")
    END[end](mesh, "a")
    outcome = after(mesh, "t", "a")
    if starts_ok:
        assert "t" in mesh.state.agents
    else:
        assert isinstance(outcome, Refused)
        assert outcome.reason is Reason.DEPENDENCY_NOT_MET
    assert isinstance(after(mesh, "u", "any:a"), Queued)
    agree(mesh)


@pytest.mark.parametrize(
    ("dependencies", "how", "words"),
    [
        (("b",), {}, "there is no task 'b' for 't' to start after"),
        (("t",), {}, "would start after itself"),
        (("train-l",), {}, "did you mean 'train-1'?"),
        (("a",), {"more": {"queue": False}}, "only a task in the queue waits"),
    ],
)
def test_what_cannot_be_waited_for_is_refused_with_a_sentence(dependencies, how, words):
    mesh = mesh_of()
    run(mesh, "a")
    run(mesh, "train-1")
    written = tuple(f"ok:{d}" for d in dependencies)
    how = {"more": {"queue": True}, **how}
    refused = mesh.submit("t", cpu=1, limits={"after": written}, **how)
    assert (refused.reason, words in refused.error) == (Reason.INVALID_DEPENDENCY, True), refused
    assert "t" not in mesh.state.queue.by_id


def test_a_task_waits_for_the_last_of_several_and_a_chain_for_the_end_before_each():
    mesh = mesh_of()
    run(mesh, "a")
    run(mesh, "b")
    after(mesh, "c", "a", "any:b")
    after(mesh, "d", "c")
    mesh.complete("a")
    assert starts(mesh) == ["b"]
    agree(mesh)
    mesh.cancel("b")
    mesh.leave("b")
    assert starts(mesh) == ["c"]
    mesh.report("c")
    mesh.complete("c")
    assert starts(mesh) == ["d"]
    agree(mesh)


def test_the_end_of_one_task_cancels_the_whole_chain_behind_it_and_starts_who_waits_for_that():
    mesh = mesh_of()
    run(mesh, "a")
    after(mesh, "b", "a")
    after(mesh, "c", "b")
    after(mesh, "t", "fail:c")
    after(mesh, "u", "ok:c")
    mesh.cancel("a")
    assert [ended(mesh, name)[0] for name in "bcu"] == [EndState.CANCELLED] * 3
    assert "'b', which had to complete" in mesh.state.ended["c"].error
    assert "t" in mesh.state.agents
    agree(mesh)


def test_a_task_that_is_evicted_or_tried_again_has_not_ended():
    mesh = mesh_of(cpu=1)
    run(mesh, "a", run="go", retries=1, on_preempted="requeue")
    after(mesh, "t", "any:a", cpu=1)
    after(mesh, "u", "fail:a", cpu=1)
    fail(mesh, "a")
    mesh.leave("a")
    assert mesh.waiting() == ["a", "t", "u"], "it waits for its next attempt"
    mesh.tick(2.0)
    mesh.report("a")
    mesh.preempt(agent_name="a")
    mesh.leave("a", saved=True)
    assert "t" not in mesh.state.agents
    agree(mesh)
    mesh.report("a")
    fail(mesh, "a")
    mesh.leave("a")
    assert "t" in mesh.state.agents, "it has failed for good"
    assert mesh.waiting() == ["u"]
    agree(mesh)


def test_it_comes_in_the_queue_when_the_last_has_ended_as_if_it_were_submitted_then():
    mesh = mesh_of(cpu=2)
    run(mesh, "a", cpu=1)
    run(mesh, "b", cpu=1)
    after(mesh, "t", "a", cpu=2)
    mesh.queue("u", cpu=2)
    mesh.queue("v", cpu=2, priority=1.0)
    assert mesh.waiting() == ["u", "v", "t"], "it is behind all that can start"
    mesh.now += 60.0
    mesh.complete("a")
    assert mesh.waiting() == ["u", "t", "v"]
    assert mesh.state.queue.by_id["t"].queued_at == mesh.now
    agree(mesh)


def test_its_time_limit_for_waiting_counts_from_then():
    mesh = mesh_of(cpu=1)
    run(mesh, "a")
    after(mesh, "t", "a", more={"wait_s": 10.0})
    mesh.queue("u", cpu=1)
    mesh.tick(60.0)
    mesh.complete("a")
    assert mesh.waiting() == ["t"]
    mesh.tick(9.0)
    assert mesh.waiting() == ["t"]
    mesh.tick(2.0)
    assert ended(mesh, "t") == (EndState.CANCELLED, Reason.WAIT_TIMEOUT)
    agree(mesh)


def test_it_can_be_held_changed_and_cancelled_meanwhile():
    mesh = mesh_of()
    run(mesh, "a")
    after(mesh, "t", "a")
    mesh.change("t", held=True, priority=9.0)
    mesh.complete("a")
    assert mesh.waiting() == ["t"]
    agree(mesh)
    mesh.change("t", held=False)
    assert mesh.state.agents["t"].spec.name == "t"
    run(mesh, "b")
    after(mesh, "u", "b")
    after(mesh, "v", "any:u")
    mesh.cancel("u")
    assert "v" in mesh.state.agents
    assert "b" not in mesh.state.queue.dependents.by_task
    agree(mesh)


def test_pools_are_renamed_and_deleted_around_it():
    mesh = mesh_of()
    mesh.resize(pool("q", cpu=4))
    run(mesh, "a", pool_name="q")
    after(mesh, "t", "a")
    mesh.rename_pool("p", "r")
    mesh.rename_pool("q", "s")
    agree(mesh)
    mesh.queue("u", pool_name="r", cpu=1, limits={"after": ("any:t",)})
    mesh.delete_pool("r", drain=True)
    assert ended(mesh, "t") == (EndState.CANCELLED, Reason.POOL_ENDING)
    assert ended(mesh, "u")[0] is EndState.CANCELLED
    agree(mesh)


def test_a_gang_waits_and_is_waited_for():
    mesh = mesh_of()
    gang = {"bundles": [{"cpu": 1}, {"cpu": 1}], "payload": GangPayload(strategy="PACK")}
    mesh.queue("a", class_key="c", **gang)
    mesh.make_all()
    mesh.report("a")
    mesh.queue("b", class_key="c", limits={"after": ("ok:a",)}, **gang)
    assert mesh.waiting() == ["b"]
    mesh.complete("a")
    assert "b" in mesh.state.agents
    agree(mesh)


def test_its_explanation_names_what_it_waits_for_and_where_that_stands():
    mesh = mesh_of()
    run(mesh, "a")
    after(mesh, "t", "a")
    after(mesh, "u", "any:t", "fail:a")
    answer = explained(mesh, "u")
    assert answer.reason == Reason.DEPENDENCY.value
    assert answer.error == (
        "it waits for task 't' to end (it waits for others itself), for task 'a' to fail or be cancelled "
        "(it is running)"
    )
    assert answer.no_estimate == "nobody knows when the tasks that it starts after have ended"
    cause = mesh.engine.wait_causes(mesh.now).cause_of(mesh.state.queue.by_id["u"])
    assert cause.reason is Reason.DEPENDENCY


def test_very_many_that_can_never_start_are_cancelled_in_parts():
    mesh = mesh_of(cpu=1)
    run(mesh, "a")
    for number in range(300):
        after(mesh, f"t{number}", "a")
    mesh.cancel("a")
    assert len(mesh.waiting()) == 50
    agree(mesh)
    mesh.tick()
    assert mesh.waiting() == []
    agree(mesh)


def test_a_dry_run_of_a_task_after_others_evicts_nobody_and_says_what_it_waits_for():
    mesh = mesh_of()
    run(mesh, "low", priority=1.0, cpu=4)
    waits = {"queue": True}
    for text in ("ok:low", "any:low", "fail:low"):
        dry = mesh.dry("t", priority=9.0, cpu=1, limits={"after": (text,)}, more=waits)
        assert (dry.reason, dry.earliest_start) == (Reason.DEPENDENCY, None)
        assert "task 'low'" in dry.error
    for queue in (True, False):
        unknown = mesh.dry("t", cpu=1, limits={"after": ("ok:b",)}, more={"queue": queue})
        assert unknown.reason is Reason.INVALID_DEPENDENCY
    now = mesh.dry("t", priority=9.0, cpu=1, limits={"after": ("ok:low",)})
    assert now == mesh.submit("t", priority=9.0, cpu=1, limits={"after": ("ok:low",)})
    too_large = mesh.dry("t", cpu=99, limits={"after": ("ok:low",)}, more=waits)
    assert too_large == mesh.queue("t", cpu=99, limits={"after": ("ok:low",)})
    assert too_large.reason is Reason.EXCEEDS_POOL_CAPACITY


def test_a_dry_run_of_a_task_after_ended_ones_says_that_it_starts():
    mesh = mesh_of()
    run(mesh, "a")
    mesh.complete("a")
    dry = mesh.dry("t", cpu=1, limits={"after": ("ok:a",)}, more={"queue": True})
    assert dry.agent_name == "t"
