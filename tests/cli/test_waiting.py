"""The commands wait, tasks get, tasks wait and complete."""

from __future__ import annotations

import json

import pytest

from schedulemesh.cli.exits import ExitCode


@pytest.fixture
def filled(scheduler):
    scheduler.pool("train", cpu=2)
    scheduler.submit("one", "train", labels={"team": "x"}, owner="ann")
    scheduler.submit("two", "train", cpu=2, queue=True)
    return scheduler


@pytest.mark.parametrize("command", [["wait"], ["tasks", "wait"]])
def test_it_returns_when_all_have_got_so_far(command, filled, run):
    done = run(*command, "one", "--until", "running", "-o", "json")
    assert done.exit_code == 0, done.stderr
    assert [(row["task_id"], row["state"]) for row in json.loads(done.stdout)] == [
        ("one", "running")
    ]
    assert run(*command, "one", "--until", "running", "-o", "wide").exit_code == 0


def test_one_of_several_is_enough_where_that_is_asked_for(filled, run):
    assert run("wait", "one", "two", "--until", "running", "--any").exit_code == 0
    late = run("wait", "one", "two", "--until", "running", "--timeout", "0s")
    assert late.exit_code == ExitCode.TIMED_OUT
    assert "1 of 2 tasks are not running after 0s" in late.stderr
    assert "insufficient_quota" in late.stdout
    late = run("wait", "one", "two", "--until", "running", "--timeout", "0")
    assert "after 0s" in late.stderr


def test_the_exit_code_says_whether_they_were_completed(filled, run):
    assert run("complete", "one", "--end-agent").exit_code == 0
    filled.calls.cancel_task("two")
    assert run("wait", "one").exit_code == 0
    done = run("wait", "one", "two")
    assert done.exit_code == ExitCode.FAILED
    assert "cancelled" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("wait nope", ExitCode.NOT_FOUND, "there is no task 'nope'"),
        ("wait one --until runing", ExitCode.USAGE, "did you mean 'running'?"),
        ("wait one --timeout soon", ExitCode.USAGE, "--timeout is 'soon'; allowed is a duration"),
        ("tasks get nope", ExitCode.NOT_FOUND, "there is no task 'nope'"),
        ("complete nope", ExitCode.NOT_FOUND, "nope"),
        ("preempt two", ExitCode.CONFLICT, "task 'two' does not run: it waits in the queue"),
        ("save two", ExitCode.CONFLICT, "task 'two' does not run (it is queued)"),
        ("complete two", ExitCode.CONFLICT, "task 'two' does not run: it waits in the queue"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(words, code, message, filled, run):
    done = run(*words.split())
    assert (done.exit_code, message in done.stderr) == (code, True), (done.exit_code, done.stderr)


def test_a_task_is_shown_with_how_it_stands(filled, run):
    row = json.loads(run("tasks", "get", "two", "-o", "json").stdout)
    assert (row["state"], row["position"], row["reason"]) == ("queued", 1, "insufficient_quota")
    table = run("tasks", "get", "one").stdout
    assert "team=x" in table
    assert "cpu 1" in table
    assert "remaining" not in table
    filled.calls.complete_task("one")
    assert "completed" in run("tasks", "get", "one").stdout


def test_the_list_of_tasks_is_what_the_command_alone_shows(filled, run):
    assert run("tasks", "-o", "name").stdout.split() == ["one", "two"]
