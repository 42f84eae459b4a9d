"""Tasks that join the queue again: what they start from, and what their records say of it."""

from __future__ import annotations

import pytest

from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.state.snapshot import past_states, referenced, take_snapshot
from tests.engine.builders import Mesh, differences, node, pool


def running(**how):
    """A task ``t`` that returns when it is evicted, has run for 100 s and is being evicted for another."""
    mesh = Mesh(pool("p", cpu=2, gpu=2), nodes=[node("a", cpu=2, gpu=2)])
    mesh.handle(s.ClassProbed(class_key="c"))
    given = {"cpu": 2, "gpu": 2, "class_key": "c", "run": "train", "on_preempted": "requeue"}
    mesh.submit("t", priority=0.0, **{**given, **how})
    mesh.report("t", capabilities=("save_state", "restore_state"))
    mesh.tick(100.0)
    return mesh


def evict(mesh):
    mesh.submit("high", priority=9.0, cpu=2, gpu=2, class_key="c")


def return_from(mesh):
    """The task's agent leaves, and what it was evicted for has run; the order by which it starts again."""
    mesh.leave("t")
    mesh.report("high")
    mesh.handle(s.TaskFinished(task_id="high", end_agent=True))
    mesh.leave("high")
    assert differences(mesh.state, mesh.refolded()) == []
    return mesh.starts["t"]


@pytest.mark.parametrize("error", ["save_state failed: OSError", "no answer within 30 s"])
def test_a_task_whose_save_failed_returns_and_starts_anew(error):
    mesh = running()
    evict(mesh)
    mesh.handle(s.StateNotSaved(task_id="t", error=error))
    assert return_from(mesh).state_key is None
    assert mesh.report("t").state_restored is False
    started = next(f for f in reversed(mesh.facts) if type(f).__name__ == "AgentStarted")
    assert started.state_restored is False
    record = mesh.state.evictions.of_task("t")
    assert (record.state_saved, record.save_error) == (False, error)
    assert (record.lost_s, record.lost_gpu_s) == (100.0, 200.0)


def test_a_task_whose_process_dies_while_it_saves_returns_and_its_record_says_so():
    mesh = running()
    evict(mesh)
    assert return_from(mesh).state_key is None
    record = mesh.state.evictions.of_task("t")
    assert (record.state_saved, record.lost_s) == (False, 100.0)
    assert record.save_error == "its process died before its state was saved"


def test_a_save_that_fails_leaves_the_checkpoint_before_it_as_it_was():
    mesh = running()
    mesh.save("t")
    mesh.tick(10.0)
    evict(mesh)
    mesh.handle(s.StateNotSaved(task_id="t", error="the disk is full"))
    record = mesh.state.evictions.of_task("t")
    assert (record.state_saved, record.lost_s) == (True, 10.0)
    assert return_from(mesh).state_key == "state-t"


def test_what_cannot_be_restored_is_no_saved_work_and_replaces_no_state():
    mesh = running()
    evict(mesh)
    mesh.handle(s.StateStored(task_id="t", state_key="payload", restorable=False))
    record = mesh.state.evictions.of_task("t")
    assert (record.state_saved, record.saved_at, record.lost_s) == (False, None, 100.0)
    assert return_from(mesh).state_key == "payload"
    mesh.report("t")
    mesh.save("t")
    mesh.handle(s.StateStored(task_id="t", state_key="payload-2", restorable=False))
    assert mesh.state.running.by_id["t"].state_key == "state-t"


def test_a_state_is_as_old_as_its_saving():
    mesh = running()
    began = mesh.now
    evict(mesh)
    mesh.tick(20.0)
    mesh.handle(s.StateStored(task_id="t", state_key="k", saved_at=began + 7.0))
    assert mesh.state.evictions.of_task("t").saved_at == began + 7.0


def unrestorable(saves=1, **how):
    """Task ``t`` returns from an eviction, and the state that it is to start from cannot be restored."""
    mesh = running(**how)
    for n in range(saves):
        mesh.handle(s.StateStored(task_id="t", state_key=f"state-{n}"))
    evict(mesh)
    mesh.handle(s.StateNotSaved(task_id="t", error="no"))
    assert return_from(mesh).state_key == f"state-{saves - 1}"
    mesh.fail("t", restore_failed=True)
    return mesh


def test_a_state_that_cannot_be_restored_is_tried_as_often_as_a_run_and_kept():
    mesh = unrestorable(retries=1)
    waiting = mesh.state.queue.by_id["t"]
    assert (waiting.submission.state_key, waiting.attempts.failures) == ("state-0", 1)
    mesh.tick(1.0)
    mesh.fail("t", restore_failed=True)
    ended = mesh.state.ended["t"]
    assert (ended.state, ended.state_key) == (EndState.FAILED, "state-0")
    assert "state-0" in referenced(take_snapshot(mesh.state))
    assert "state-0" in past_states(mesh.state)
    assert differences(mesh.state, mesh.rewritten()) == []


def test_after_the_retries_the_previous_state_is_tried_once():
    mesh = unrestorable(saves=2, on_restore_failure="previous")
    waiting = mesh.state.queue.by_id["t"]
    assert (waiting.submission.state_key, waiting.attempts.previous_state) == ("state-0", "state-1")
    assert {"state-0", "state-1"} <= referenced(take_snapshot(mesh.state))
    mesh.tick(1.0)
    mesh.fail("t", restore_failed=True)
    assert mesh.state.ended["t"].state is EndState.FAILED
    assert not mesh.state.queue.by_id


def test_without_a_previous_state_it_fails():
    mesh = unrestorable(on_restore_failure="previous")
    assert mesh.state.ended["t"].state is EndState.FAILED


def test_after_the_retries_it_is_started_anew_and_the_state_is_kept_until_the_next():
    mesh = unrestorable(on_restore_failure="restart")
    mesh.tick(1.0)
    assert mesh.starts["t"].state_key is None
    mesh.report("t")
    assert "state-0" in referenced(take_snapshot(mesh.state))
    mesh.handle(s.StateStored(task_id="t", state_key="new"))
    attempts = mesh.state.running.by_id["t"].attempts
    assert (attempts.previous_state, attempts.fell_back) == (None, False)
    assert differences(mesh.state, mesh.rewritten()) == []


def test_a_constructor_that_raises_is_no_reason_to_leave_the_state():
    mesh = running(on_restore_failure="restart")
    mesh.save("t")
    evict(mesh)
    return_from(mesh)
    mesh.fail("t")
    assert mesh.state.ended["t"].state_key == "state-t"


def test_a_rebuilt_task_goes_on_counting_its_attempts():
    mesh = running(run="")
    evict(mesh)
    return_from(mesh)
    mesh.report("t")
    mesh.tick(50.0)
    mesh.die("t")
    mesh.handle(s.RebuildRequested(agent_name="t"))
    attempts = mesh.state.running.by_id["t"].attempts
    assert (attempts.preemptions, attempts.failures, attempts.number) == (1, 1, 3)
    assert (attempts.ran_s, attempts.gpu_s) == (150.0, 300.0)
    assert differences(mesh.state, mesh.rewritten()) == []


def test_a_drain_is_an_attempt_though_no_preemption():
    mesh = running(run="")
    mesh.handle(s.DrainRequested(node_id="a"))
    mesh.leave("t")
    attempts = mesh.state.queue.by_id["t"].attempts
    assert (attempts.preemptions, attempts.number) == (0, 2)
