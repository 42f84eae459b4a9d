"""Arrays and dependencies on the command line: submitted, listed, changed in part, and waited for."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.runtime.fake_backend import FakeBackend

pytestmark = pytest.mark.usefixtures("cancels_at_once")

SUBMIT = ("submit", "--pool", "研究", "--cpus", "1")


@pytest.fixture
def endless(monkeypatch):
    """Jobs do not end by themselves."""

    async def run_for_ever(self, handle, order):
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(FakeBackend, "run_task", run_for_ever)


def test_an_array_is_one_row_and_its_members_are_listed(endless, scheduler, run):
    scheduler.pool(cpu=4)
    done = run(*SUBMIT, "--id", "many", "--array", "0-9%2", "--", "true")
    assert (done.exit_code, done.stdout) == (0, "many\n"), done.stderr
    assert scheduler.calls.wait("many", until="running")["success"]
    (row,) = json.loads(run("queue", "-o", "json").stdout)
    assert (row["task_id"], row["array"], row["reason"]) == ("many", "2-9%2", "array_limit")
    assert "2-9%2" in run("queue").stdout
    done = run("tasks", "--array", "many", "--limit", "3")
    assert "many[2]" in done.stdout
    assert "many[3]" not in done.stdout
    assert done.stderr == (
        "array many (0-9%2): running; 8 queued, 2 running\n--after 2 shows the next members\n"
    )
    rows = json.loads(run("tasks", "--array", "many", "--after", "7", "-o", "json").stdout)
    assert [(row["array_index"], row["state"]) for row in rows] == [(8, "queued"), (9, "queued")]
    assert run("tasks", "--array", "much").exit_code == 3
    assert "of 10 members 8 wait, 2 run" in run("explain", "many").stdout


def test_members_are_changed_by_their_indices(endless, scheduler, run):
    scheduler.pool(cpu=1)
    run(*SUBMIT, "--id", "many", "--array", "0-9", "--", "true")
    assert run("hold", "many[2-3]").exit_code == 0
    assert run("priority", "many[7]", "5.5").exit_code == 0
    assert run("cancel", "many[4-5]").exit_code == 0
    assert run("queue", "-o", "name").stdout.split() == ["many[7]", "many", "many[2]", "many[3]"]
    done = run("cancel", "many[10]")
    assert done.exit_code != 0
    assert "has no member 10" in done.stderr
    assert run("cancel", "many").exit_code == 0
    assert run("wait", "many").exit_code == 1
    answer = scheduler.calls.array("many")
    assert (answer["state"], answer["cancelled"], answer["next"]) == ("cancelled", 10, None)


def test_jobs_start_after_others_and_say_why_they_wait(endless, scheduler, run):
    scheduler.pool(cpu=4)
    assert run(*SUBMIT, "--id", "first", "--", "true").exit_code == 0
    done = run(*SUBMIT, "--id", "next", "--after", "first", "--", "true")
    assert done.exit_code == 0, done.stderr
    assert (
        run(*SUBMIT, "--id", "last", "--after", "any:next,fail:first", "--", "true").exit_code == 0
    )
    assert run("queue", "-f", "reason=dependency", "-o", "name").stdout.split() == ["next", "last"]
    assert "it waits for task 'first' to complete" in run("explain", "next").stdout
    unknown = run(*SUBMIT, "--after", "frist", "--", "true")
    assert unknown.exit_code != 0
    assert "did you mean 'first'?" in unknown.stderr
    assert run("cancel", "first").exit_code == 0
    assert scheduler.calls.explain("next")["reason"] == "dependency_not_met"
    assert scheduler.calls.wait("last", until="running", timeout=30.0)["pending"] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--array", "0-9", "--now"), "--now is for one job"),
        (("--array", "0-9", "--follow"), "use --wait"),
        (("--array", "9-0"), "no range"),
        (("--after", "a,any:a"), "names task 'a' with ok and with any"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(scheduler, run, options, words):
    scheduler.pool(cpu=1)
    done = run(*SUBMIT, *options, "--", "true")
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.split())
