"""Records of evictions: complete for both owners, bounded, and the same after a restart."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.state import evictions
from tests.engine.builders import Mesh, differences, node, pool


@pytest.fixture
def mesh():
    """A task of priority 1 on all 8 GPUs of pool p, for a hundred seconds."""
    mesh = Mesh(pool("p", cpu=64, gpu=8), nodes=[node("a", cpu=64, gpu=8)])
    mesh.run("low", priority=1.0, cpu=1, gpu=8)
    mesh.tick(100.0)
    return mesh


def record_of(mesh, task_id="low"):
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []
    return mesh.state.evictions.of_task(task_id)


def test_a_record_tells_both_sides_the_rule_and_what_would_be_lost(mesh):
    mesh.submit("high", priority=9.0, cpu=1, gpu=8)
    record = record_of(mesh)
    assert (record.task.task_id, record.agent_name) == ("low", "low")
    assert (record.evictor.task.task_id, record.evictor.pool_name) == ("high", "p")
    assert (record.reason, record.preempt_score) == ("same_pool_preemption", 8.0)
    assert (record.lost_s, record.lost_gpu_s) == (100.0, 800.0)
    assert (record.evicted_at, record.freed_at, record.used) == (None, None, None)


def test_it_is_completed_when_the_state_is_saved_the_room_is_free_and_the_evictor_runs(mesh):
    decided = mesh.now
    mesh.submit("high", priority=9.0, cpu=1, gpu=8)
    mesh.tick(2.0)
    mesh.leave("low", saved=True)
    record = record_of(mesh)
    assert (record.lost_s, record.state_key, record.saved_at) == (0.0, "state-low", decided + 2.0)
    assert (record.evicted_at, record.freed_at, record.used) == (decided + 2.0, decided + 2.0, None)
    mesh.tick(3.0)
    mesh.report("high")
    record = record_of(mesh)
    assert (record.evictor_started_at, record.used) == (decided + 5.0, True)


def test_work_since_the_last_saved_state_is_lost_where_the_present_one_cannot_be_saved(mesh):
    mesh.save("low")
    mesh.tick(10.0)
    mesh.submit("high", priority=9.0, cpu=1, gpu=8)
    mesh.handle(s.StateNotSaved(task_id="low", error="the disk is full"))
    mesh.leave("low")
    record = record_of(mesh)
    assert (record.lost_gpu_s, record.save_error) == (80.0, "the disk is full")


def test_an_evictor_that_does_not_start_has_not_used_what_was_freed(mesh):
    mesh.submit("high", priority=9.0, cpu=1, gpu=8)
    mesh.leave("low")
    mesh.fail("high")
    record = record_of(mesh)
    assert (record.used, record.evictor_started_at) == (False, None)


def test_a_victim_that_runs_again_is_noted(mesh):
    mesh.submit("high", priority=9.0, cpu=1, gpu=8)
    mesh.slot("high")
    mesh.complete("high")
    mesh.tick(60.0)
    mesh.run("low", priority=1.0, cpu=1, gpu=8)
    assert record_of(mesh).ran_again_at == mesh.now


def test_a_requested_eviction_names_the_client_and_no_evictor(mesh):
    mesh.preempt(task_id="low", end_agent=True, client="host:1")
    mesh.leave("low")
    record = record_of(mesh)
    assert (record.reason, record.evictor, record.client) == ("manual", None, "host:1")
    assert record.freed_at == mesh.now


def test_where_the_agent_stays_nothing_becomes_free(mesh):
    mesh.preempt(task_id="low", agent_name="low")
    mesh.handle(s.CancelAnswered(task_id="low", cancel_success=True))
    record = record_of(mesh)
    assert (record.evicted_at, record.freed_at) == (mesh.now, None)
    mesh.delete("low")
    mesh.leave("low")
    assert record_of(mesh).freed_at is None


def test_an_eviction_that_failed_leaves_no_record(mesh):
    mesh.policy(lost_work_budget=1e6)
    mesh.preempt(task_id="low", agent_name="low")
    mesh.handle(s.CancelAnswered(task_id="low", cancel_success=False, runs_on=True))
    assert record_of(mesh) is None
    assert mesh.state.evictions.lost_work_in("p", mesh.now) == 0.0


def test_a_requeued_victim_is_counted(mesh):
    mesh = Mesh(pool("p", cpu=1))
    stimulus = mesh.submission(
        "low", priority=1.0, cpu=1, class_key="c", more={"queue": True, "request_id": "r"}
    )
    task = msgspec.structs.replace(stimulus.task, on_preempted="requeue")
    mesh.handle(msgspec.structs.replace(stimulus, task=task))
    mesh.report("low")
    mesh.submit("high", priority=9.0, cpu=1)
    mesh.leave("low")
    assert (record_of(mesh).requeued, mesh.state.evictions.requeued) == (
        True,
        {record_of(mesh).reason: 1},
    )
    mesh.report("high")
    mesh.complete("high")
    mesh.tick(5.0)
    mesh.report("low")
    assert record_of(mesh).ran_again_at == mesh.now


def test_only_the_last_records_are_kept(monkeypatch):
    monkeypatch.setattr(evictions, "RECENT", 3)
    mesh = Mesh(pool("p", cpu=1))
    for number in range(5):
        mesh.announce(f"t{number}", "elsewhere")
        mesh.preempt(task_id=f"t{number}")
        mesh.handle(s.CancelAnswered(task_id=f"t{number}", cancel_success=True))
    kept = mesh.state.evictions.records.values()
    assert [record.task.task_id for record in kept] == ["t2", "t3", "t4"]
    assert record_of(mesh, "t0") is None
