"""How tasks end, by themselves and otherwise, and what is remembered of them."""

from __future__ import annotations

import pytest

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import JobPayload, LeasePayload
from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Done, Evicted, Pending
from schedulemesh.engine.state import past
from schedulemesh.engine.state.snapshot import past_states, referenced, take_snapshot
from tests.engine.builders import Mesh, amount, differences, node, pool


def running(**how):
    """A mesh where task ``t`` runs by itself."""
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.run("t", cpu=2, run="train", **how)
    return mesh


def ended(mesh, task_id="t"):
    found = mesh.state.ended[task_id]
    return found.state, found.reason


def test_a_task_is_run_when_its_agent_runs_and_ends_with_its_agent():
    mesh = running()
    (order,) = mesh.runs["t"]
    assert (order.agent_name, order.method, order.arguments_key) == ("t", "train", None)

    mesh.run_ends("t", result_key="kept")

    assert ended(mesh) == (EndState.COMPLETED, "")
    assert mesh.state.running.by_id == {}
    assert mesh.free() == amount(), "its process still runs"
    mesh.leave("t")
    assert mesh.free() == amount(cpu=2)
    assert "kept" in referenced(take_snapshot(mesh.state))
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


def test_a_task_that_is_completed_while_its_agent_is_deleted_is_completed():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.run("t", cpu=1)
    deletion = s.AgentDeletionRequested(agent_name="t")
    assert isinstance(mesh.handle(deletion).outcome, Pending)
    completion = s.TaskFinished(task_id="t", end_agent=True)
    assert isinstance(mesh.handle(completion).outcome, Pending)
    mesh.leave("t")
    assert ended(mesh) == (EndState.COMPLETED, "")
    assert mesh.free() == amount(cpu=2)


@pytest.mark.parametrize(
    "how", [{"payload": JobPayload(), "run": "run_driver"}, {"payload": LeasePayload()}]
)
def test_the_agent_of_a_job_or_a_lease_that_is_completed_is_never_kept(how):
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.submit("t", bundles=[{"cpu": 2}], class_key="c", **how)
    mesh.make_all()
    mesh.report("t")
    mesh.handle(s.TaskFinished(task_id="t", end_agent=False))
    mesh.leave("t")
    assert not mesh.state.agents
    assert mesh.state.ended["t"].state == "completed"
    assert not mesh.state.ledger.accounts["p"].used


def test_a_task_without_run_is_not_run():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.run("t", cpu=1)
    assert mesh.runs == {}


def test_a_run_that_raised_is_remembered_as_failed():
    mesh = running()
    mesh.run_ends("t", result_key="why", reason=TaskEndReason.RUN_RAISED, error="ValueError: no")
    assert ended(mesh) == (EndState.FAILED, TaskEndReason.RUN_RAISED)
    assert mesh.state.ended["t"].error == "ValueError: no"


@pytest.mark.parametrize("how", [{"incarnation": 99}, {"agent_name": "other"}])
def test_a_late_report_of_another_agent_changes_nothing(how):
    mesh = running()
    assert mesh.run_ends("t", **how).facts == ()
    assert "t" in mesh.state.running.by_id


def test_a_run_is_ordered_again_after_a_recovery_and_after_a_restart_of_its_process():
    mesh = running()
    incarnation = mesh.state.agents["t"].incarnation
    mesh.handle(s.RecoveryObserved(living=frozenset({("t", incarnation)})))
    mesh.handle(s.AgentRestarted(agent_name="t", incarnation=incarnation, pid=2))
    assert mesh.runs["t"] == mesh.runs["t"][:1] * 3


def test_an_agent_with_other_tasks_stays():
    mesh = running()
    mesh.announce("other", "t")
    mesh.run_ends("t")
    assert mesh.ends == {}
    assert mesh.state.agents["t"].phase.value == "running"


def test_a_run_that_was_cancelled_for_an_eviction_has_no_result():
    mesh = running(priority=0.0)
    mesh.submit("high", priority=9.0, cpu=2)
    assert mesh.run_ends("t", result_key="half", cancelled=True).facts == ()
    mesh.leave("t")
    assert ended(mesh) == (EndState.CANCELLED, TaskEndReason.PREEMPTED)


def test_a_run_that_ends_by_itself_during_its_eviction_is_completed():
    mesh = running(priority=0.0)
    mesh.submit("high", priority=9.0, cpu=2)
    mesh.run_ends("t", result_key="whole")
    mesh.leave("t")
    assert ended(mesh) == (EndState.COMPLETED, "")
    assert mesh.state.preempted == {}
    mesh.report("high")


def test_who_evicts_a_task_that_ends_meanwhile_is_answered():
    mesh = running()
    mesh.preempt(task_id="t", request_id="r")
    mesh.run_ends("t")
    answer = mesh.state.answers["r"].outcome
    assert isinstance(answer, Evicted)
    assert (answer.cancel_success, answer.runs_on) == (False, False)
    assert "ended by itself" in answer.error


def test_a_cancelled_task_ends_with_its_agent():
    mesh = running()
    assert mesh.cancel("t", request_id="c") == Pending(agent_name="t")
    assert ended(mesh) == (EndState.CANCELLED, TaskEndReason.CANCELLED)
    mesh.leave("t")
    assert mesh.free() == amount(cpu=2)
    assert mesh.cancel("t") == Done(change=Change.ALREADY_ENDED)


def test_a_cancelled_task_that_shares_its_agent_leaves_it():
    mesh = running()
    mesh.announce("other", "t")
    outcome = mesh.cancel("other")
    assert (outcome.change, mesh.ends) == (Change.AGENT_KEPT, {})
    assert "'t'" in outcome.warnings[0]


def test_a_task_is_cancelled_before_it_starts():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.submit("t", cpu=2, run="train", more={"request_id": "r"})
    mesh.cancel("t")
    mesh.leave("t")
    assert mesh.state.answers["r"].outcome.reason is Reason.AGENT_DELETED
    assert ended(mesh) == (EndState.CANCELLED, TaskEndReason.CANCELLED)
    assert mesh.runs == {}


def test_a_task_that_is_being_preempted_is_cancelled_and_does_not_return():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.run("t", cpu=2, on_preempted="requeue", class_key="k")
    mesh.submit("high", cpu=2, priority=9, class_key="k")
    assert mesh.cancel("t") == Pending(agent_name="t")
    assert ended(mesh) == (EndState.CANCELLED, TaskEndReason.CANCELLED)
    mesh.leave("t", saved=True)
    assert mesh.waiting() == []
    assert list(mesh.starts) == ["high"]
    assert mesh.state.preempted == {}


def test_the_request_that_evicts_a_task_is_answered_when_it_is_cancelled():
    mesh = running()
    mesh.preempt(task_id="t", request_id="r")
    mesh.cancel("t")
    assert mesh.state.answers["r"].outcome.error == "the task was cancelled before it was preempted"
    mesh.leave("t")
    assert mesh.handle(s.CancelAnswered(task_id="t", cancel_success=True)).outcome is None
    assert mesh.state.agents == {}


def test_an_unknown_task_is_not_cancelled():
    assert running().cancel("nobody").reason is Reason.TASK_NOT_FOUND


def _completed(mesh):
    mesh.complete("t")


def _deleted(mesh):
    mesh.delete("t")
    mesh.leave("t")


def _lost(mesh):
    mesh.die("t")


def _evicted(mesh):
    mesh.preempt(agent_name="t", end_agent=True)
    mesh.leave("t")


@pytest.mark.parametrize(
    ("end", "state", "reason"),
    [
        (_completed, EndState.COMPLETED, ""),
        (_deleted, EndState.CANCELLED, TaskEndReason.DELETED),
        (_lost, EndState.LOST, TaskEndReason.LOST),
        (_evicted, EndState.CANCELLED, TaskEndReason.PREEMPTED),
    ],
)
def test_every_end_is_remembered_until_a_task_of_that_id_exists_again(end, state, reason):
    mesh = running()
    end(mesh)
    assert ended(mesh) == (state, reason)
    assert mesh.state.ended["t"].agent_name == "t"
    mesh.submit("again", cpu=1)
    assert "t" in mesh.state.ended
    mesh.handle(mesh.submission("t", cpu=1))
    assert mesh.state.ended == {}


def test_a_start_that_failed_is_remembered_with_its_error():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.submit("t", cpu=2, run="train")
    mesh.fail("t")
    assert ended(mesh) == (EndState.FAILED, TaskEndReason.NOT_STARTED)
    assert mesh.state.ended["t"].error == "the class raised"


def test_who_completes_or_preempts_a_queued_task_is_told_that_it_waits():
    mesh = running()
    mesh.queue("q", cpu=2)
    refused = mesh.handle(s.TaskFinished(task_id="q", end_agent=True)).outcome
    assert (refused.reason, refused.hint) == (
        Reason.TASK_NOT_RUNNING,
        "cancel_task('q') removes it",
    )
    assert "it waits in the queue" in refused.error
    refused = mesh.preempt(task_id="q", end_agent=True)
    assert refused.reason == Reason.TASK_NOT_RUNNING
    assert refused.error == "task 'q' does not run: it waits in the queue"


def test_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(past, "ENDED", 2)
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    for name in ("one", "two", "three"):
        mesh.run(name, cpu=1)
        mesh.complete(name)
    assert list(mesh.state.ended) == ["two", "three"]


def test_a_result_expires_like_a_saved_state():
    mesh = running()
    mesh.run_ends("t", result_key="kept")
    assert past_states(mesh.state) == {"kept": mesh.now}
    mesh.handle(s.StatesOutlived(state_keys=("kept",)))
    found = mesh.state.ended["t"]
    assert (found.result_key, found.expired) == (None, True)
    assert "kept" not in referenced(take_snapshot(mesh.state))


def failing(retries=2, **how):
    """A mesh where task ``t`` runs by itself, and is tried again when that fails."""
    return running(retries=retries, class_key="c", **how)


def raised(mesh):
    """The run raised, and its agent is gone."""
    mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED, error="no")
    mesh.leave("t")


def test_a_run_that_raised_is_tried_again_later_each_time_and_then_has_failed():
    mesh = failing()
    mesh.save("t")
    for failures, wait_s in ((1, 1.0), (2, 2.0)):
        raised(mesh)
        waiting = mesh.state.queue.by_id["t"]
        assert (waiting.attempts.failures, waiting.not_before) == (failures, mesh.now + wait_s)
        assert (mesh.state.ended, mesh.state.agents) == ({}, {})
        mesh.tick(wait_s / 2)
        assert mesh.starts == {}
        mesh.tick(wait_s / 2)
        assert mesh.starts["t"].state_key == "state-t"
        mesh.report("t")
        assert len(mesh.runs["t"]) == failures + 1
    raised(mesh)
    assert ended(mesh) == (EndState.FAILED, TaskEndReason.RUN_RAISED)
    assert mesh.state.ended["t"].attempts.failures == 3
    assert mesh.state.queue.by_id == {}
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


def test_a_lost_agent_is_tried_again_and_not_rebuilt_beside_that():
    mesh = failing()
    mesh.die("t")
    assert mesh.state.running.by_id["t"].attempts.failures == 1
    assert (mesh.state.lost, mesh.state.ended) == ({}, {})
    mesh.report("t")
    mesh.run_ends("t")
    assert ended(mesh) == (EndState.COMPLETED, "")
    assert mesh.state.ended["t"].attempts.failures == 1
    explained = mesh.engine.explain("t", mesh.now)
    assert (explained.failures, explained.preemptions) == (1, 0)


def test_the_evictions_of_a_task_are_on_record_when_it_has_ended():
    mesh = failing(priority=0.0, on_preempted="requeue")
    mesh.submit("high", priority=9.0, cpu=2, class_key="c")
    mesh.leave("t")
    mesh.report("high")
    mesh.complete("high")
    mesh.tick(1.0)
    mesh.report("t")
    mesh.cancel("t")
    mesh.leave("t")
    assert ended(mesh) == (EndState.CANCELLED, TaskEndReason.CANCELLED)
    assert mesh.engine.explain("t", mesh.now).preemptions == 1


def test_an_eviction_is_no_failure():
    mesh = failing(retries=1, priority=0.0, on_preempted="requeue")
    mesh.submit("high", priority=9.0, cpu=2, class_key="c")
    mesh.run_ends("t", cancelled=True)
    mesh.leave("t")
    attempts = mesh.state.queue.by_id["t"].attempts
    assert (attempts.preemptions, attempts.failures) == (1, 0)
    assert mesh.state.ended == {}


def test_a_run_that_raises_while_it_is_evicted_is_tried_again_if_it_may_be():
    mesh = failing(retries=1, priority=0.0, on_preempted="requeue")
    mesh.submit("high", priority=9.0, cpu=2, class_key="c")
    mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED, error="no")
    assert mesh.state.ended == {}
    mesh.leave("t", saved=True)
    assert mesh.state.queue.by_id["t"].submission.state_key == "state-t"
    mesh = failing(retries=0, priority=0.0, on_preempted="requeue")
    mesh.submit("high", priority=9.0, cpu=2, class_key="c")
    mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED, error="no")
    assert ended(mesh) == (EndState.FAILED, TaskEndReason.RUN_RAISED)


@pytest.mark.parametrize("reason", [TaskEndReason.RESULT_TOO_LARGE, TaskEndReason.RESULT_NOT_KEPT])
def test_what_would_fail_again_is_not_tried_again(reason):
    mesh = failing()
    mesh.run_ends("t", reason=reason)
    assert ended(mesh) == (EndState.FAILED, reason)


@pytest.mark.parametrize("how", [{"restartable": False}, {"retries": 0}])
def test_what_cannot_be_started_again_has_failed(how):
    mesh = running(**{"class_key": "c", "retries": 1, **how})
    raised(mesh)
    assert ended(mesh) == (EndState.FAILED, TaskEndReason.RUN_RAISED)


def test_a_task_that_shares_its_agent_is_not_tried_again():
    mesh = failing()
    mesh.announce("other", "t")
    mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED, error="no")
    assert ended(mesh) == (EndState.FAILED, TaskEndReason.RUN_RAISED)
    assert mesh.ends == {}


def test_a_run_that_raises_while_its_agent_is_deleted_has_failed():
    mesh = failing()
    mesh.handle(s.AgentDeletionRequested(agent_name="t"))
    raised(mesh)
    assert ended(mesh) == (EndState.FAILED, TaskEndReason.RUN_RAISED)
    assert mesh.state.queue.by_id == {}


def test_the_same_failure_counts_once():
    mesh = failing()
    mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED, error="no")
    raised(mesh)
    assert mesh.state.queue.by_id["t"].attempts.failures == 1


def test_a_task_is_cancelled_before_it_is_tried_again():
    mesh = failing()
    mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED, error="no")
    assert mesh.cancel("t") == Pending(agent_name="t")
    mesh.leave("t")
    assert ended(mesh) == (EndState.CANCELLED, TaskEndReason.CANCELLED)

    mesh = failing()
    raised(mesh)
    assert mesh.cancel("t") == Done()
    assert ended(mesh) == (EndState.CANCELLED, "cancelled_by_request")


def test_a_failure_is_remembered_across_a_restart_of_the_supervisor():
    mesh = failing()
    incarnation = mesh.state.agents["t"].incarnation
    mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED, error="no")
    mesh.handle(s.RecoveryObserved(living=frozenset({("t", incarnation)})))
    mesh.leave("t")
    assert mesh.state.queue.by_id["t"].attempts.failures == 1


def test_a_failure_is_reported_repeatedly_and_counts_once():
    mesh = failing()
    for _ in range(2):
        mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED, error="ValueError: no")
    mesh.leave("t")
    assert mesh.state.queue.by_id["t"].attempts.failures == 1


def test_a_task_that_fails_while_its_agent_is_deleted_has_failed():
    mesh = failing()
    mesh.delete("t")
    mesh.run_ends("t", reason=TaskEndReason.RUN_RAISED, error="ValueError: no")
    assert ended(mesh) == (EndState.FAILED, TaskEndReason.RUN_RAISED)
    mesh.leave("t")
    assert mesh.waiting() == []


def test_what_is_lost_before_it_has_run_waits_again_and_has_not_failed():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.run("low", cpu=2, priority=0.0)
    mesh.handle(s.ClassProbed(class_key="c"))
    mesh.queue("t", cpu=2, priority=9.0, class_key="c", run="train", retries=1)
    mesh.die("t")
    assert mesh.waiting() == ["t"]
    assert mesh.state.queue.by_id["t"].attempts.failures == 0
    assert mesh.told_facts("TaskQueued") == ["TaskQueued"] * 2, "it joined, and joined again"
    assert differences(mesh.state, mesh.refolded()) == []


def test_a_task_from_the_queue_whose_process_dies_while_it_starts_is_tried_again():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.handle(s.ClassProbed(class_key="c"))
    mesh.queue("t", cpu=2, class_key="c", run="train", retries=1)
    mesh.die("t")
    waiting = mesh.state.queue.by_id["t"]
    assert (waiting.attempts.failures, waiting.not_before) == (1, mesh.now + 1.0)
    assert (mesh.state.ended, mesh.state.agents) == ({}, {})
    assert differences(mesh.state, mesh.refolded()) == []
    mesh.tick(1.0)
    mesh.die("t")
    assert ended(mesh)[0] is EndState.FAILED
    assert (mesh.state.queue.by_id, mesh.state.agents) == ({}, {})


@pytest.mark.parametrize("reason", [Reason.AGENT_START_FAILED, Reason.AGENT_START_TIMEOUT])
def test_so_is_one_whose_object_cannot_be_built(reason):
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.handle(s.ClassProbed(class_key="c"))
    mesh.queue("t", cpu=2, class_key="c", run="train", retries=1)
    mesh.fail("t", reason)
    assert mesh.state.queue.by_id["t"].attempts.failures == 1
    mesh.tick(1.0)
    mesh.fail("t", reason)
    assert ended(mesh)[0] is EndState.FAILED
    assert not mesh.state.queue.by_id


def test_a_submission_whose_caller_is_told_that_it_did_not_start_is_not_tried_again():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("a", cpu=2)])
    mesh.submit("t", cpu=2, class_key="c", run="train", retries=1)
    mesh.fail("t")
    assert ended(mesh)[0] is EndState.FAILED
    assert not mesh.state.queue.by_id


def test_an_evicted_task_whose_process_dies_while_it_starts_again_keeps_its_saved_state():
    mesh = failing(retries=1, priority=0.0, on_preempted="requeue")
    mesh.submit("high", priority=9.0, cpu=2, class_key="c")
    mesh.leave("t", saved=True)
    mesh.report("high")
    mesh.handle(s.TaskFinished(task_id="high", end_agent=True))
    mesh.leave("high")
    assert mesh.starts["t"].state_key == "state-t"
    mesh.die("t")
    waiting = mesh.state.queue.by_id["t"]
    assert waiting.submission.state_key == "state-t"
    assert (waiting.attempts.preemptions, waiting.attempts.failures) == (1, 1)
