"""The commands tokens and audit: a secret is printed once, and changes have their author."""

from __future__ import annotations

import json
import os
import stat

import pytest
import yaml

from schedulemesh.cli.exits import ExitCode
from schedulemesh.config.discovery import Discovered, found, write
from schedulemesh.config.http import home_folder
from schedulemesh.domain.audit import DONE
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.credentials import hash_of


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder of the user's files."""
    monkeypatch.setenv("SCHEDULEMESH_HOME", str(tmp_path / "home"))
    return home_folder(os.environ)


def state(scheduler):
    return scheduler.connection.service.running.reactor.state


def test_a_token_is_issued_rotated_and_revoked(scheduler, run, home):
    scheduler.pool()
    limits = ("--role", "submitter", "--owner", "ada", "--pool", "研究", "--max-priority", "6")
    limits += ("--evict-pool", "研究", "--label", "tier=a", "--label", "tier=b=c")
    limits += ("--least-max-preemptions", "3")
    made = run("tokens", "create", "rl", *limits, "--expires", "30d")
    assert made.exit_code == 0, made.stderr
    secret = made.stdout.strip()
    assert secret.startswith("sm_")
    assert secret not in made.stderr
    spec = state(scheduler).tokens["rl"]
    assert spec.secret_hash == hash_of(secret)
    assert spec.expires_at == pytest.approx(spec.created_at + 30 * 86_400)
    (row,) = json.loads(run("tokens", "list", "-o", "json").stdout)
    assert (row["owner"], row["pools"], row["max_priority"]) == ("ada", ["研究"], 6.0)
    assert (row["evict_pools"], row["least_max_preemptions"]) == (["研究"], 3)
    assert row["label_values"] == {"tier": ["a", "b=c"]}
    assert run("tokens", "create", "s", *limits[:4], "--no-evictions").exit_code == 0
    assert state(scheduler).tokens["s"].evict_pools == ()
    assert run("tokens", "revoke", "s").exit_code == 0
    rotated = run("tokens", "rotate", "rl")
    assert rotated.stdout.strip() not in ("", secret)
    assert state(scheduler).tokens["rl"].secret_hash == hash_of(rotated.stdout.strip())
    assert run("tokens", "revoke", "rl").exit_code == 0
    assert run("tokens", "revoke", "rl").exit_code == 3
    assert run("tokens", "rotate", "rl").exit_code == 3
    assert json.loads(run("tokens", "list", "-o", "json").stdout) == []


@pytest.mark.parametrize("form", ["table", "wide", "json", "yaml", "csv", "name"])
def test_the_secret_is_on_stdout_exactly_once_in_every_form(scheduler, run, home, form):
    made = run("tokens", "create", "v", "-o", form)
    assert made.exit_code == 0, made.stderr
    assert made.stdout.count("sm_") == 1
    assert "sm_" not in made.stderr
    if form in ("json", "yaml"):
        read = json.loads if form == "json" else yaml.safe_load
        assert hash_of(read(made.stdout)["token"]) == state(scheduler).tokens["v"].secret_hash


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("create", "t", "--role", "king"), 2),
        (("create", "t", "--role", "submitter"), 2),
        (("create", "t", "--owner", "ada"), 2),
        (("create", "t", "--expires", "soon"), 2),
        (("create", "v"), 6),
        (("create",), 2),
        (("revoke", "only"), 6),
    ],
)
def test_what_contradicts_itself_is_refused(scheduler, run, home, words, code):
    run("tokens", "create", "only", "--role", "operator")
    run("tokens", "create", "v")
    done = run("tokens", *words)
    assert done.exit_code == code, done.stderr
    assert done.stderr
    assert "sm_" not in done.stdout


def test_the_file_follows_its_rotated_token(scheduler, run, home):
    secret = run("tokens", "create", "mine", "--role", "operator").stdout.strip()
    name, namespace = scheduler.connection.settings.name, scheduler.connection.settings.namespace
    told = Discovered(name=name, namespace=namespace, url="", token=secret, pid=0)
    path = write(home, told)
    rotated = run("tokens", "rotate", "mine").stdout.strip()
    assert found(home, namespace, name).token == rotated
    assert path.stat().st_mode & 0o777 == 0o600
    run("tokens", "create", "other")
    run("tokens", "rotate", "other")
    assert found(home, namespace, name).token == rotated


@pytest.mark.parametrize("form", ["table", "wide", "json", "yaml", "csv", "name"])
@pytest.mark.parametrize("width", [80, 200])
def test_audit_shows_who_changed_what(scheduler, run, form, width):
    empty = run("audit", "-o", form, width=width)
    assert empty.exit_code == 0
    scheduler.pool()
    shown = run("audit", "-o", form, width=width)
    assert shown.exit_code == 0
    if form in ("table", "wide"):
        assert "ensure_pool" in shown.stdout
    rows = json.loads(run("audit", "--call", "ensure_pool", "--since", "1h", "-o", "json").stdout)
    assert [row["outcome"] for row in rows] == [DONE]
    assert rows[0]["after"]["name"] == "研究"
    assert json.loads(run("audit", "--who", "nobody", "-o", "json").stdout) == []
    assert scheduler.calls.audit(outcome=DONE)["changes"] == rows


def test_of_somebody_who_changed_nothing_that_is_said(scheduler, run):
    scheduler.pool()
    assert "there is no change by 'nobody'" in run("audit", "--who", "nobody").stderr
    assert "nobody" not in run("audit").stderr


def test_changes_are_appended_to_a_file_once(scheduler, run, tmp_path):
    path = tmp_path / "audit.jsonl"

    def append():
        done = run("audit", "--append", path)
        assert done.exit_code == 0, done.stderr
        return [json.loads(line) for line in path.read_text().splitlines()]

    first = append()
    assert [row["number"] for row in first] == list(range(1, len(first) + 1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert append() == first
    with path.open("a") as file:
        file.write('{"number": 99, "cut')
    assert run("policy", "set", "min_runtime=5").exit_code == 0
    after = append()
    assert after[: len(first)] == first
    assert [row["call"] for row in after[len(first) :]] == ["change_policy"]
    earlier = json.dumps({**after[-1], "number": after[-1]["number"] + 1000}) + "\n"
    path.write_text(earlier)
    done = run("audit", "--append", path)
    assert (done.exit_code, "earlier journal" in done.stderr) == (ExitCode.USAGE, True), done.stderr
    assert path.read_text() == earlier
    path.write_text("something else\n")
    assert run("audit", "--append", path).exit_code == ExitCode.USAGE
    assert path.read_text() == "something else\n"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("outcome", "failed", "outcome is 'failed'; allowed are done, refused, open"),
        ("call", "chnge_policy", "no change 'chnge_policy' (did you mean 'change_policy'?)"),
    ],
)
def test_changes_of_what_there_is_not_are_refused(scheduler, run, option, value, message):
    done = run("audit", f"--{option}", value)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
    with pytest.raises(InvalidRequestError, match=value):
        scheduler.calls.audit(**{option: value})
