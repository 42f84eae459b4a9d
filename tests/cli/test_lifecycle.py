"""Start, stop, orphans, version; and every error is one sentence on stderr with an exit code."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

from schedulemesh import __version__
from schedulemesh.cli import ray_gateway
from schedulemesh.cli.exits import ExitCode, code_of_reason
from schedulemesh.core.client import connection, scheduler_list
from schedulemesh.core.client.head import ScheduleMeshHead
from schedulemesh.domain.reasons import Reason
from schedulemesh.errors import (
    InvalidRequestError,
    ProtocolMismatchError,
    SchedulerExistsError,
    SchedulerNotFoundError,
    SchedulerUnavailableError,
)

COMMANDS = (["start"], ["status"], ["stop", "--yes"])


@pytest.fixture
def connected(monkeypatch):
    """A Ray that can be joined, with nothing on it."""
    monkeypatch.setattr(ray_gateway, "join", lambda address, **options: address)
    monkeypatch.setattr(ray_gateway.ray, "shutdown", lambda: None)
    monkeypatch.setattr(scheduler_list, "require_ray", lambda: None)
    for module in (connection, scheduler_list):
        monkeypatch.setattr(module, "living_schedulers", lambda namespace=None: [])


@pytest.mark.parametrize("words", COMMANDS)
def test_a_missing_ray_cluster_is_an_error_message(monkeypatch, run, words):
    def refuse(address, **_options):
        raise ConnectionError("no Ray runs on this machine")

    monkeypatch.setattr(ray_gateway, "join", refuse)
    done = run(*words)
    assert (done.exit_code, done.stdout) == (ExitCode.UNREACHABLE, "")
    assert done.stderr == (
        "no Ray cluster was joined: no Ray runs on this machine. "
        "`ray start --head` starts one on this machine\n"
    )


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProtocolMismatchError("scheduler 'head' runs on Python 3.12.1"), ExitCode.FAILED),
        (SchedulerUnavailableError("scheduler 'head' is silent"), ExitCode.UNREACHABLE),
        (SchedulerExistsError("scheduler 'head' has other settings"), ExitCode.CONFLICT),
        (SchedulerNotFoundError("no scheduler 'head'"), ExitCode.NOT_FOUND),
        (InvalidRequestError("the scheduler's name is ''"), ExitCode.USAGE),
    ],
)
def test_an_error_is_one_sentence_and_an_exit_code(monkeypatch, connected, run, words, error, code):
    def refuse(*_args, **_options):
        raise error

    for method in ("start", "health"):
        monkeypatch.setattr(ScheduleMeshHead, method, refuse)
    monkeypatch.setattr(ray_gateway, "find", refuse)
    done = run(*words)
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", f"{error}\n")


def test_there_is_nothing_to_stop(monkeypatch, connected, run):
    gone = {"alive": False, "registered": False, "error": "no scheduler 'head' lives"}
    monkeypatch.setattr(ScheduleMeshHead, "health", lambda self: gone)
    done = run("stop", "--yes")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "", "no scheduler 'head' lives\n")


def test_reasons_lead_to_exit_codes():
    codes = {reason: code_of_reason(reason) for reason in Reason}
    not_found = {reason for reason, code in codes.items() if code is ExitCode.NOT_FOUND}
    assert {Reason.POOL_NOT_FOUND, Reason.TASK_NOT_FOUND, Reason.NODE_NOT_FOUND} <= not_found
    assert codes[Reason.POOL_EXISTS] is codes[Reason.NOT_QUEUED] is ExitCode.CONFLICT
    assert codes[Reason.WAIT_TIMEOUT] == 124
    assert codes[Reason.PREEMPTION_FAILED] is ExitCode.FAILED


class Orphaned:
    """A scheduler with two orphaned actors and a placement group."""

    ended = None

    def list_orphans(self):
        listed = [{"name": name, "kind": "actor"} for name in ("mesh:a#1", "mesh:b#2")]
        return {"orphans": [*listed, {"name": "group-1", "kind": "placement group"}]}

    def end_orphans(self, names=None):
        self.ended = names
        return {"ended": names or ["mesh:a#1", "mesh:b#2"]}


@pytest.fixture
def orphaned(monkeypatch):
    found = Orphaned()

    @contextmanager
    def attached(target):
        yield found

    monkeypatch.setattr(ray_gateway, "attached", attached)
    return found


def test_orphans_are_listed_and_stay(orphaned, run):
    done = run("orphans")
    assert done.exit_code == 0
    for word in ("mesh:a#1", "mesh:b#2", "group-1", "placement group"):
        assert word in done.stdout
    assert len(json.loads(run("orphans", "-o", "json").stdout)) == 3
    assert orphaned.ended is None


def test_orphans_are_ended_by_name_or_all_of_them(orphaned, run):
    done = run("orphans", "--end", "mesh:b#2", "--yes")
    assert (done.exit_code, done.stdout) == (0, "ended: mesh:b#2\n")
    assert orphaned.ended == ["mesh:b#2"]
    done = run("orphans", "--end-all", "-y")
    assert (done.exit_code, done.stdout) == (0, "ended: mesh:a#1, mesh:b#2\n")
    assert orphaned.ended is None


def test_what_is_no_orphan_is_not_ended(orphaned, run):
    done = run("orphans", "--end", "mesh:a#1", "--end", "mine", "--yes")
    assert done.exit_code == 3
    assert done.stderr == "'mine' is no orphaned actor; there are mesh:a#1, mesh:b#2\n"
    assert run("orphans", "--end", "mesh:a#1", "--end-all").exit_code == 2
    declined = run("orphans", "--end-all", input="n\n")
    assert declined.exit_code == 1
    assert orphaned.ended is None


def test_the_versions(run):
    assert run("--version").stdout == f"schedulemesh {__version__}\n"
    assert json.loads(run("version", "-o", "json").stdout)["schedulemesh"] == __version__


def test_another_kind_of_authentication_is_refused_before_anything_is_joined(run):
    done = run("start", "--auth", "oidc")
    assert (done.exit_code, done.stderr) == (2, "--auth is 'oidc'; allowed are token and off\n")
