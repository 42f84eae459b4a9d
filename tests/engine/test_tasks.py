"""Running tasks in classes: the same order as a walk over every task."""

from __future__ import annotations

import pytest

from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import NOTHING
from schedulemesh.domain.task import TaskPhase, TaskSpec
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask, RunningTasks
from schedulemesh.engine.state.transitions import ForbiddenTransitionError
from tests.engine.builders import Mesh, amount, names, pool


def task(task_id, *, start=0.0, duration=None, labels=None, priority=5.0, phase=TaskPhase.RUNNING):
    return RunningTask(
        spec=TaskSpec(
            task_id=task_id,
            pool_name="p",
            priority=priority,
            labels=labels or {},
            estimated_duration=duration,
        ),
        agent_name=f"on-{task_id}",
        started_at=start,
        phase=phase,
        resources=NOTHING,
    )


def in_order(running, now):
    (found,) = [c for c in running.classes.values() if c.has_tasks()]
    found.advance(now)
    return [task_id for _, _, task_id in found.ordered(now)]


def test_remaining_time_is_what_is_left_of_the_estimate_and_never_below_zero():
    assert task("t", start=10.0, duration=30.0).remaining(15.0) == 25.0
    assert task("t", start=10.0, duration=30.0).remaining(99.0) == 0.0
    assert task("t", start=10.0).remaining(15.0) == 0.0


def test_lost_work_counts_from_the_start_or_the_last_saved_state():
    running = task("t", start=10.0)
    assert running.lost_work(15.0) == 5.0
    running.saved_at = 12.0
    assert running.lost_work(15.0) == 3.0


def test_most_time_left_goes_first_then_the_newest_start_then_the_id():
    running = RunningTasks()
    for one in (
        task("long", start=0.0, duration=100.0),
        task("short", start=0.0, duration=50.0),
        task("over-old", start=0.0, duration=5.0),
        task("over-new", start=3.0, duration=5.0),
        task("unknown-b", start=4.0),
        task("unknown-a", start=4.0),
    ):
        running.add(one)
    assert in_order(running, 20.0) == [
        "long",
        "short",
        "unknown-a",
        "unknown-b",
        "over-new",
        "over-old",
    ]


def test_tasks_alike_in_what_rules_name_share_a_class_and_a_job_id_makes_none():
    running = RunningTasks()
    for number in range(100):
        running.add(task(f"t{number}", labels={"job_id": f"j{number}", "tier": "ab"[number % 2]}))
    assert len(running.classes) == 1

    running.partition_by({"tier": frozenset({"a"})})
    assert sorted(len(found) for found in running.classes.values()) == [50, 50]


def test_a_change_of_rules_partitions_again():
    mesh = Mesh(pool("p", cpu=4))
    mesh.announce("a", "x", labels={"tier": "gold"})
    mesh.announce("b", "y", labels={"tier": "iron"})
    mesh.policy(label_preemption_rules={"tier": {"gold": ["iron"]}})
    assert len([c for c in mesh.state.running.classes.values() if c.has_tasks()]) == 2
    mesh.policy(label_preemption_rules={})
    assert len([c for c in mesh.state.running.classes.values() if c.has_tasks()]) == 1


def test_empty_classes_are_forgotten_when_their_number_has_doubled():
    running = RunningTasks()
    for number in range(5000):
        running.add(task(f"t{number}", priority=float(number)))
        running.remove(f"t{number}")
    assert len(running.classes) <= 1024


def test_only_running_tasks_stand_in_a_class():
    running = RunningTasks()
    running.add(task("t", phase=TaskPhase.STARTING))
    assert not any(c.has_tasks() for c in running.classes.values())
    running.start("t", 3.0)
    assert running.by_id["t"].task_class is not None
    running.enter("t", Preempting(reason=PreemptionReason.MANUAL))
    assert running.by_id["t"].task_class is None


def test_looking_ahead_changes_nothing():
    mesh = Mesh(pool("p", cpu=4))
    mesh.announce("short", "x", priority=1.0, duration=10.0)
    mesh.tick(1)
    mesh.announce("newer", "y", priority=1.0)
    before = mesh.evaluate(9.0)
    mesh.now += 500
    assert names(mesh.evaluate(9.0).candidates) == ["newer", "short"]
    mesh.now -= 500
    assert mesh.evaluate(9.0) == before
    assert names(before.candidates) == ["short", "newer"]
    mesh.complete("short")


def test_a_task_announced_before_its_agent_belongs_to_the_agent_once_there_is_one():
    mesh = Mesh(pool("p", cpu=4))
    mesh.announce("early", "x", priority=1.0, duration=50.0)
    mesh.tick(5)

    mesh.submit("x", priority=1.0, cpu=2, task=False, more={"request_id": "r"})
    assert names(mesh.evaluate(9.0).candidates) == ["early"]
    assert mesh.dry("y", priority=9.0, cpu=4).reason == "preemption_failed"
    mesh.report("x")

    assert mesh.state.answers["r"].outcome.task_id is None
    assert mesh.state.running.by_id["early"].resources == amount(cpu=2)
    assert mesh.state.running.by_id["early"].started_at == 1000.0
    assert names(mesh.dry("y", priority=9.0, cpu=4).preempted) == ["early"]
    mesh.complete("early")


PREEMPTING = Preempting(reason=PreemptionReason.MANUAL)


@pytest.mark.parametrize(
    ("old", "allowed"),
    [
        (TaskPhase.STARTING, {"running"}),
        (TaskPhase.RUNNING, {"preempting", "ending"}),
        (PREEMPTING, {"running"}),
        (TaskPhase.ENDING, set()),
    ],
)
def test_a_forbidden_change_of_phase_raises_and_changes_nothing(old, allowed):
    for new in (*TaskPhase, PREEMPTING):
        changed = task("t", phase=old)
        if new.value in allowed:
            changed.enter(new)
            assert changed.phase == new
            continue
        with pytest.raises(
            ForbiddenTransitionError, match=f"is {old.value} and cannot become {new.value}"
        ):
            changed.enter(new)
        assert changed.phase == old


def test_a_fact_that_breaks_the_table_of_phases_raises():
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("t", cpu=1)
    mesh.state.evolve(f.EvictionStarted(task_id="t", at=0.0, reason=PreemptionReason.MANUAL))
    with pytest.raises(
        ForbiddenTransitionError, match="task 't' is preempting and cannot become preempting"
    ):
        mesh.state.evolve(f.EvictionStarted(task_id="t", at=0.0, reason=PreemptionReason.MANUAL))
    mesh.state.evolve(f.EvictionFailed(task_id="t", at=0.0))
    with pytest.raises(ForbiddenTransitionError, match="cannot become"):
        mesh.state.evolve(f.SavingFailed(task_id="t", at=1.0, error="no"))
