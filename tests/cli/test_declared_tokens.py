"""Tokens in the file of apply, diff and export: limits are declared, secrets never are."""

from __future__ import annotations

import json

import pytest
import yaml

from schedulemesh.cli import declared_tokens
from schedulemesh.domain.tokens import Role
from schedulemesh.protocol.credentials import hash_of

FILE = """
tokens:
  - {name: 训练/rl, role: submitter, owner: ada, pools: [研究], max_priority: 6,
     expires_at: 2100-01-31T12:00:00Z}
  - {name: boss, role: operator}
"""


@pytest.fixture
def file(tmp_path):
    return written(tmp_path, FILE)


def written(tmp_path, text):
    path = tmp_path / "tokens.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def tokens(scheduler):
    return scheduler.connection.service.running.reactor.state.tokens


def results(run, *words):
    done = run("apply", *words, "-o", "json")
    assert done.exit_code == 0, done.stderr
    assert "sm_" not in done.stdout + done.stderr
    return {row["name"]: row["result"] for row in json.loads(done.stdout)}


def test_tokens_are_created_once_with_their_secrets_in_private_files(
    scheduler, run, file, tmp_path
):
    folder = tmp_path / "secrets"
    made = results(run, "-f", file, "--secrets", folder)
    assert made == {"训练/rl": "created", "boss": "created"}
    assert folder.stat().st_mode & 0o777 == 0o700
    secrets = {path.read_text().strip(): path for path in folder.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in secrets.values()} == {0o600}
    found = {hash_of(secret) for secret in secrets}
    assert found == {token.secret_hash for token in tokens(scheduler).values()}
    token = tokens(scheduler)["训练/rl"]
    assert (token.role, token.owner, token.pools) == (Role.SUBMITTER, "ada", ("研究",))
    assert (token.max_priority, token.expires_at) == (6.0, 4105080000.0)
    assert set(results(run, "-f", file).values()) == {"unchanged"}
    assert run("diff", "-f", file).exit_code == 0


def test_without_a_folder_no_token_is_created_and_nothing_is_changed(scheduler, run, tmp_path):
    file = written(tmp_path, FILE + "pools: [{name: p, resources: {cpu: 1}}]")
    refused = run("apply", "-f", file)
    assert refused.exit_code == 2
    assert "--secrets FOLDER" in refused.stderr
    assert not tokens(scheduler)
    assert json.loads(run("pools", "-o", "json").stdout) == []


def test_limits_of_a_token_change_and_its_secret_stays(scheduler, run, file, tmp_path):
    results(run, "-f", file, "--secrets", tmp_path / "secrets")
    before = tokens(scheduler)["训练/rl"]
    text = "tokens: [{name: 训练/rl, pools: [], max_priority: null, owner: lin, expires_at: null}]"
    changes = written(tmp_path, text)
    shown = run("diff", "-f", changes, "-o", "json")
    fields = [(row["kind"], row["field"], row["declared"]) for row in json.loads(shown.stdout)]
    assert shown.exit_code == 1
    assert ("token", "owner", "lin") in fields
    assert results(run, "-f", changes) == {"训练/rl": "changed"}
    after = tokens(scheduler)["训练/rl"]
    assert (after.pools, after.max_priority, after.owner, after.expires_at) == (
        (),
        None,
        "lin",
        None,
    )
    assert after.secret_hash == before.secret_hash
    assert "boss" in tokens(scheduler)
    (change,) = scheduler.calls.audit(call="change_token")["changes"]
    assert (change["before"]["owner"], change["after"]["owner"]) == ("ada", "lin")


def test_prune_revokes_what_the_file_leaves_out_but_not_its_own_token(
    scheduler, run, file, tmp_path, monkeypatch
):
    results(run, "-f", file, "--secrets", tmp_path / "secrets")
    own = run("tokens", "create", "mine").stdout.strip()
    run("tokens", "create", "local", "--role", "operator")
    monkeypatch.setenv("SCHEDULEMESH_TOKEN", own)
    changes = written(tmp_path, "tokens: [{name: boss}]")
    dry = json.loads(run("apply", "-f", changes, "--prune", "--dry-run", "-o", "json").stdout)
    assert [(row["name"], row["declared"]) for row in dry] == [("训练/rl", "is revoked")]
    assert results(run, "-f", changes, "--prune") == {"boss": "unchanged", "训练/rl": "revoked"}
    assert set(tokens(scheduler)) == {"boss", "mine", "local"}
    assert run("apply", "-f", written(tmp_path, "policy: {}"), "--prune").exit_code == 2


def test_what_is_exported_is_what_is_applied_without_anything_of_secrets(
    scheduler, run, file, tmp_path
):
    results(run, "-f", file, "--secrets", tmp_path / "secrets")
    run("tokens", "create", "local", "--role", "operator")
    exported = run("export").stdout
    assert [token["name"] for token in yaml.safe_load(exported)["tokens"]] == ["训练/rl", "boss"]
    assert not any(token.secret_hash in exported for token in tokens(scheduler).values())
    assert "sm_" not in exported
    assert set(results(run, "-f", written(tmp_path, exported)).values()) == {"unchanged"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{name: new}", 2),
        ("{name: new, role: king}", 2),
        ("{name: new, role: viewer, owner: ada}", 2),
        ("{name: new, role: viewer, secret: sm_x}", 2),
        ("{name: new, role: viewer, pools: all}", 2),
        ("{name: new, role: viewer, expires_at: 30d}", 2),
        ("{name: new, role: viewer, max_priority: .nan}", 2),
        ("{name: boss, role: submitter}", 6),
        ("{name: boss, role: viewer}", 6),
        ("{name: boss, expires_at: 2100-01-01}", 6),
    ],
)
def test_what_contradicts_itself_or_ends_the_last_operator_is_refused(
    scheduler, run, file, tmp_path, text, code
):
    results(run, "-f", file, "--secrets", tmp_path / "secrets")
    before = dict(tokens(scheduler))
    wrong = written(tmp_path, f"tokens: [{text}]")
    refused = run("apply", "-f", wrong, "--secrets", tmp_path / "more")
    assert refused.exit_code == code, refused.stderr
    assert tokens(scheduler) == before


def test_the_secret_of_a_refused_token_is_not_kept(scheduler, run, file, tmp_path, monkeypatch):
    results(run, "-f", file, "--secrets", tmp_path / "secrets")
    monkeypatch.setattr(declared_tokens, "current", lambda gateway: {})
    more = tmp_path / "more"
    assert run("apply", "-f", file, "--secrets", more).exit_code == 6
    assert list(more.iterdir()) == []
