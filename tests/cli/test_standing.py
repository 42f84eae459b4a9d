"""Start, status and stop: whatever goes wrong is one sentence on stderr and an exit code."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from schedulemesh.cli import standing
from schedulemesh.cli.app import app
from schedulemesh.errors import ProtocolMismatchError, SchedulerUnavailableError

COMMANDS = (["start"], ["status"], ["stop", "--yes"])


def run(*words):
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def connected(monkeypatch):
    """A Ray that can be joined, with nothing on it."""
    monkeypatch.setattr(standing, "join", lambda address, **options: address)
    monkeypatch.setattr(standing.ray, "shutdown", lambda: None)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_missing_ray_cluster_is_an_error_message(monkeypatch, words):
    def refuse(address, **_options):
        raise ConnectionError("no Ray runs on this machine")

    monkeypatch.setattr(standing, "join", refuse)
    done = run(*words)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr == (
        "no Ray cluster was joined: no Ray runs on this machine. "
        "`ray start --head` starts one on this machine\n"
    )


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize(
    "error",
    [
        ProtocolMismatchError("scheduler 'head' runs on Python 3.12.1 and this process on 3.11.2"),
        SchedulerUnavailableError("scheduler 'head' shows no sign of life"),
    ],
)
def test_a_scheduler_error_is_one_sentence(monkeypatch, connected, words, error):
    def refuse(*_args, **_options):
        raise error

    for method in ("start", "health"):
        monkeypatch.setattr(standing.ScheduleMeshHead, method, refuse)
    done = run(*words)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"{error}\n")


@pytest.mark.parametrize("words", COMMANDS[1:])
def test_a_missing_scheduler_is_an_error_message(monkeypatch, connected, words):
    told = {"alive": False, "registered": False, "error": "no scheduler 'head' lives"}
    monkeypatch.setattr(standing.ScheduleMeshHead, "health", lambda self: told)
    done = run(*words)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "no scheduler 'head' lives\n")


class FakeScheduler:
    """A scheduler with two orphaned actors and a placement group."""

    ended = None

    def list_orphans(self):
        listed = [{"name": name, "kind": "actor"} for name in ("mesh:a#1", "mesh:b#2")]
        return {"orphans": [*listed, {"name": "group-1", "kind": "placement group"}]}

    def end_orphans(self, names=None):
        self.ended = names
        return {"ended": names or ["mesh:a#1", "mesh:b#2"]}


@pytest.fixture
def orphaned(monkeypatch, connected):
    scheduler = FakeScheduler()
    monkeypatch.setattr(standing.RayScheduler, "attach", lambda *_args, **_options: scheduler)
    return scheduler


def test_orphans_are_listed_and_stay(orphaned):
    done = run("orphans")
    assert done.exit_code == 0
    for word in ("mesh:a#1", "mesh:b#2", "group-1", "placement group"):
        assert word in done.stdout
    assert orphaned.ended is None


def test_orphans_are_ended_by_name_or_all_of_them(orphaned):
    done = run("orphans", "--end", "mesh:b#2", "--yes")
    assert (done.exit_code, done.stdout) == (0, "ended: mesh:b#2\n")
    assert orphaned.ended == ["mesh:b#2"]
    done = run("orphans", "--end-all", "-y")
    assert (done.exit_code, done.stdout) == (0, "ended: mesh:a#1, mesh:b#2\n")
    assert orphaned.ended is None


def test_what_is_no_orphan_is_not_ended(orphaned):
    done = run("orphans", "--end", "mesh:a#1", "--end", "mine", "--yes")
    assert done.exit_code == 1
    assert done.stderr == "'mine' is no orphaned actor; there are mesh:a#1, mesh:b#2\n"
    assert run("orphans", "--end", "mesh:a#1", "--end-all").exit_code == 1
    declined = CliRunner().invoke(app, ["orphans", "--end-all"], input="n\n")
    assert declined.exit_code == 1
    assert orphaned.ended is None


def test_tables_keep_whole_names_and_amounts_on_a_narrow_terminal():
    name = "an-agent-whose-owner-likes-names-that-say-everything-there-is-to-say"
    agent = {
        "name": name,
        "pool": "p",
        "resources": {"cpu": 1.0, "memory": 10_485_760.0},
        "state": "running",
        "tasks": ["t"],
        "pid": 1,
    }
    console = Console(width=80, file=io.StringIO())
    console.print(standing._agents([agent]))
    lines = console.file.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 80
    cells = [line.split("│")[1:4] for line in lines if line.startswith("│")]
    assert "".join(row[0].strip() for row in cells) == name
    assert " ".join(row[2].strip() for row in cells).strip() == "cpu 1, memory 10485760"


def test_the_table_of_tasks_keeps_whole_names_on_a_narrow_terminal():
    name = "a-task-whose-owner-likes-names-that-say-everything-there-is-to-say-about-it"
    task = {
        "task_id": name,
        "owner": "someone.with-a-long-name@research.example.com",
        "pool_name": "p",
        "priority": 1_000_000.0,
        "phase": "preempting",
        "agent_name": "on-a-task",
    }
    console = Console(width=80, file=io.StringIO())
    console.print(standing._tasks([task]))
    lines = console.file.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 80
    cells = [line.split("│")[1:7] for line in lines if line.startswith("│")]
    whole = ["".join(row[column].strip() for row in cells) for column in range(6)]
    assert whole == [name, task["owner"], "p", "1000000", "preempting", "on-a-task"]
