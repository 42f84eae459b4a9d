"""What the recorder counts, from durable steps alone."""

from __future__ import annotations

import pytest

from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.metrics import gauges
from schedulemesh.metrics.recorder import MetricsRecorder
from tests.engine.builders import pool
from tests.engine.histories import History
from tests.engine.returns import CAUSES
from tests.metrics.metered import Metered, values

SAME = "same_pool_preemption"


@pytest.fixture
def mesh():
    return Metered(pool("p", cpu=2, gpu=2))


def test_preemptions_are_counted_by_pool_and_reason_as_the_statistics_say(mesh):
    mesh.run("low", priority=1.0, cpu=2, gpu=2)
    mesh.tick(10.0)
    mesh.submit("high", priority=9.0, cpu=2)
    mesh.tick(1.5)
    mesh.slot("high")
    found = mesh.metrics()
    assert found["schedulemesh_preemption_count", "p", SAME] == 1
    assert sum(mesh.state.past.preemption_counts.values()) == 1
    assert found["schedulemesh_preemption_execution_latency_ms_count", "p", SAME] == 1
    assert found["schedulemesh_preemption_execution_latency_ms_sum", "p", SAME] == 1500
    assert found["schedulemesh_tasks_ended_total", "p", "preempted", SAME] == 1
    assert found["schedulemesh_lost_work_gpu_seconds_total", "p", "preempted"] == 20
    assert found["schedulemesh_lost_work_seconds_total", "p", "preempted"] == 10


def test_an_eviction_by_request_is_measured_until_the_agent_has_ended(mesh):
    mesh.run("t", cpu=1)
    mesh.preempt(task_id="t", end_agent=True)
    assert (
        "schedulemesh_preemption_execution_latency_ms_count",
        "p",
        "manual",
    ) not in mesh.metrics()
    mesh.tick(2.0)
    mesh.leave("t")
    assert mesh.metrics()["schedulemesh_preemption_execution_latency_ms_sum", "p", "manual"] == 2000


def test_a_later_recorder_measures_an_eviction_that_an_earlier_one_saw_begin(mesh):
    mesh.run("low", priority=1.0, cpu=2)
    mesh.submit("high", priority=9.0, cpu=2)
    mesh.tick(1.0)
    mesh.restart()
    mesh.tick(2.0)
    mesh.slot("high")
    found = mesh.metrics()
    assert found["schedulemesh_preemption_execution_latency_ms_sum", "p", SAME] == 3000
    assert found["schedulemesh_preemption_count", "p", SAME] == 1
    assert found["schedulemesh_task_schedule_latency_ms_sum", "p"] == 3000


def test_saved_work_is_not_lost(mesh):
    mesh.run("low", priority=1.0, cpu=2, gpu=2)
    mesh.tick(10.0)
    mesh.save("low")
    mesh.tick(4.0)
    mesh.submit("high", priority=9.0, cpu=2)
    mesh.slot("high")
    found = mesh.metrics()
    assert found["schedulemesh_lost_work_gpu_seconds_total", "p", "preempted"] == 8
    assert found["schedulemesh_saved_work_gpu_seconds_total", "p", "preempted"] == 20


def test_submissions_by_outcome(mesh):
    mesh.submit("a", cpu=1)
    mesh.submit("a", cpu=1)
    mesh.submit("big", cpu=100)
    mesh.submit("elsewhere", "no pool", cpu=1)
    mesh.queue("waits", cpu=2)
    mesh.dry("asked", cpu=1)
    found = mesh.metrics()
    counted = {key[1:]: n for key, n in found.items() if key[0] == "schedulemesh_submissions_total"}
    assert counted == {
        ("p", "admitted", ""): 1,
        ("p", "queued", ""): 1,
        ("p", "refused", "duplicate_task"): 1,
        ("p", "refused", "exceeds_pool_capacity"): 1,
        ("", "refused", "pool_not_found"): 1,
    }
    assert found[("schedulemesh_submission_success_ratio",)] == pytest.approx(2 / 5)


def test_the_queue_and_how_long_tasks_waited(mesh):
    mesh.run("first", cpu=2)
    mesh.queue("second", cpu=2)
    mesh.tick(5.0)
    mesh.queue("third", cpu=2)
    mesh.tick(5.0)
    found = mesh.metrics()
    assert found["schedulemesh_queue_depth", "p"] == 2
    assert found["schedulemesh_queue_oldest_wait_seconds", "p"] == 10
    assert found["schedulemesh_tasks", "p", "queued"] == 2
    mesh.complete("first")
    mesh.tick(1.0)
    mesh.report("second")
    found = mesh.metrics()
    assert found["schedulemesh_queue_depth", "p"] == 1
    assert found["schedulemesh_queue_oldest_wait_seconds", "p"] == 6
    assert found["schedulemesh_queue_wait_seconds_sum", "p"] == 10
    assert found["schedulemesh_task_schedule_latency_ms_sum", "p"] == 11_000
    assert found["schedulemesh_tasks_ended_total", "p", "completed", ""] == 1
    assert found[("schedulemesh_throughput_tasks_per_minute",)] == pytest.approx(0.2)


def test_quota_and_agents(mesh):
    mesh.run("a", cpu=1, gpu=0.5)
    mesh.submit("b", cpu=0.5)
    found = mesh.metrics()
    assert found["schedulemesh_pool_quota", "p", "cpu"] == 2
    assert found["schedulemesh_pool_quota_used", "p", "gpu"] == 0.5
    assert found["schedulemesh_pool_quota_reserved", "p", "cpu"] == 0.5
    assert found["schedulemesh_agents", "p", "running"] == 1
    assert found["schedulemesh_agents", "p", "starting"] == 1


def known(recorder):
    return set(recorder._agents), set(recorder._tasks), set(recorder._queue_of)


@pytest.mark.parametrize("seed", ["metrics/1", "metrics/2", "metrics/3"])
def test_what_is_recorded_agrees_with_the_state_whatever_happens(seed):
    """At the end of a random history nothing is kept of what has ended, and a recorder that begins then
    knows the same.
    """
    history = History(seed)
    recorder = MetricsRecorder(MeshState(), lambda: history.now)
    handle = history.mesh.handle

    def handled(stimulus):
        step = handle(stimulus)
        recorder(step)
        return step

    history.mesh.handle = handled
    history.run(1_500)
    state = history.mesh.state
    assert known(recorder) == (set(state.agents), set(state.running.by_id), set(state.queue.by_id))
    assert known(recorder) == known(MetricsRecorder(state, lambda: history.now))
    found = values([*gauges.families(state), *recorder.families()])
    ended = sum(
        n
        for key, n in found.items()
        if key[0] == "schedulemesh_tasks_ended_total" and key[2] == "preempted"
    )
    counted = sum(n for key, n in found.items() if key[0] == "schedulemesh_preemption_count")
    assert ended >= counted == sum(state.past.preemption_counts.values()) > 0
    waiting = recorder._evictions._awaiting
    assert set(waiting) <= set(state.agents)
    assert set(recorder._evictions._evicting) <= set(state.running.by_id)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.happen.__name__)
def test_a_claim_that_was_given_back_before_it_ran_counts_as_no_failure(cause):
    counted = cause.happen(Metered).metrics()
    ends = {
        key[2:]: count for key, count in counted.items() if key[0].endswith("tasks_ended_total")
    }
    assert ends["returned", cause.reason.value] == 1
    assert {state for state, _ in ends} <= {"returned", "preempted", "lost"}
