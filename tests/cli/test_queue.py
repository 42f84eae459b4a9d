"""The commands about the queue: a table that fits 80 columns, and calls for each task."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from schedulemesh.cli import queue, standing
from schedulemesh.cli.app import app


class Scheduler:
    """What the commands call; task ``running`` does not wait."""

    def __init__(self):
        self.calls = []

    def _answer(self, call, task_id, *more):
        self.calls.append((call, task_id, *more))
        if task_id == "running":
            return {
                "success": False,
                "error": "task 'running' does not wait",
                "reason": "not_queued",
            }
        return {"success": True}

    def hold_task(self, task_id):
        return self._answer("hold", task_id)

    def release_task(self, task_id):
        return self._answer("release", task_id)

    def move_to_front(self, task_id):
        return self._answer("top", task_id)

    def set_priority(self, task_id, priority):
        return self._answer("priority", task_id, priority)

    def cancel_tasks(self, task_ids):
        refused = {t: {"error": f"there is no task {t!r}"} for t in task_ids if t == "gone"}
        return {
            "success": not refused,
            "cancelled": [t for t in task_ids if t != "gone"],
            "refused": refused,
        }

    def list_queue(self, pool, limit):
        self.calls.append(("list", pool, limit))
        return {"success": True, "tasks": [row("a"), row("b")], "total": 3}


def row(name, **more):
    return {
        "task_id": name,
        "pool_name": "research",
        "owner": "ada",
        "priority": 5.0,
        "position": 1,
        "held": False,
        "waiting_time": 61.0,
        "preemptions": 0,
        **more,
    }


@pytest.fixture
def scheduler(monkeypatch):
    found = Scheduler()
    monkeypatch.setattr(standing, "join", lambda address, **options: address)
    monkeypatch.setattr(standing.ray, "shutdown", lambda: None)
    monkeypatch.setattr(queue.RayScheduler, "attach", lambda *_args, **_options: found)
    return found


def run(*words):
    return CliRunner().invoke(app, list(words))


def test_the_queue_is_a_table_and_says_what_it_leaves_out(scheduler):
    done = run("queue", "--pool", "research", "--limit", "2")
    assert done.exit_code == 0
    assert scheduler.calls == [("list", "research", 2)]
    assert "research" in done.stdout
    assert "1m01s" in done.stdout
    assert "2 of 3 tasks are shown" in done.stdout
    assert run("queue", "--limit", "0").exit_code == 0
    assert scheduler.calls[-1] == ("list", None, None)


def test_the_table_fits_80_columns():
    long = row(
        "a-training-with-a-very-long-name-0123456789",
        pool_name="a-pool-with-a-long-name",
        owner="somebody-with-a-long-name",
        priority=-123456.5,
        position=14_999,
        waiting_time=1e6,
        held=True,
        preemptions=12,
    )
    out = io.StringIO()
    Console(file=out, width=80).print(queue.table([long, row("b")]))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for part in ("14999", "-123456", "11d13h", "held", "evicted", "12x"):
        assert part in text, text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59.9, "59s"), (187.0, "3m07s"), (18720.0, "5h12m"), (187200.0, "2d04h")],
)
def test_durations_are_short(seconds, text):
    assert queue.duration(seconds) == text


@pytest.mark.parametrize(
    ("words", "calls", "line"),
    [
        (["hold", "a", "b"], [("hold", "a"), ("hold", "b")], "b: held"),
        (["release", "a"], [("release", "a")], "a: released"),
        (["top", "a"], [("top", "a")], "a: moved"),
        (["priority", "a", "7.5"], [("priority", "a", 7.5)], "a: priority 7.5"),
    ],
)
def test_each_task_is_changed(scheduler, words, calls, line):
    done = run(*words)
    assert (done.exit_code, scheduler.calls) == (0, calls)
    assert line in done.stdout


def test_a_refusal_is_an_exit_code_and_the_others_are_changed(scheduler):
    done = run("hold", "running", "a")
    assert done.exit_code == 1
    assert done.stderr == "task 'running' does not wait\n"
    assert done.stdout == "a: held\n"


def test_tasks_are_cancelled_in_one_call(scheduler):
    assert run("cancel", "a", "b").stdout == "cancelled: 2\n"
    done = run("cancel", "a", "gone")
    assert (done.exit_code, done.stdout) == (1, "cancelled: 1\n")
    assert done.stderr == "there is no task 'gone'\n"
