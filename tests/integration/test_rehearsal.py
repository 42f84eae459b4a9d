"""The history of a scheduler on real Ray is decided again in the same way."""

from __future__ import annotations

from schedulemesh.sim.rehearsal import Changes, open_history, rehearse
from tests.integration.polling import until
from tests.integration.test_run import Steps

TASKS = 24


def submitted(simple, number):
    task_id = f"task-{number}"
    simple.submit(
        task_id,
        "ab"[number % 2],
        Steps,
        run="train",
        run_args=(40 + number * 37 % 150,),
        resources={"cpu": 1 + number % 2},
        priority=float(1 + number * 7 % 9),
        queue=True,
        on_preempted="requeue",
    )
    return task_id


def over(journal):
    """The recording, once it contains the end of everything."""
    recording = open_history(journal)
    ended = sum(one.has_ended for one in recording.submissions)
    held = any(one.charged for one in recording.attempts.values())
    return recording if ended == TASKS and not held else None


def test_the_decisions_of_a_real_run_are_rehearsed(make_simple):
    simple = make_simple()
    for name in ("a", "b"):
        simple.ensure_pool(name, resources={"cpu": 3})
    ids = [submitted(simple, number) for number in range(TASKS)]
    assert not simple.wait(ids, 120)["pending"]
    journal = simple.scheduler.about()["journal"]
    until(lambda: over(journal) is not None, "the history does not contain the end of all tasks")
    recording = over(journal)
    found = rehearse(recording)
    assert found.check.left_out == {}
    assert found.check.differences == ()
    assert found.check.same == found.check.decisions >= TASKS
    assert found.recorded[""].preemptions > 0
    fifo = Changes(policy={"policy": {"queue": {"order": "fifo"}}})
    assert rehearse(recording, fifo).rehearsed[""].tasks == TASKS
