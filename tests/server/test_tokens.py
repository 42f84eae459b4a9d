"""Tokens: every call by every role, limits of submitters, issuing, rotating, revoking and expiry."""

from __future__ import annotations

import pytest

from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import ListPools
from schedulemesh.api.tasks import CancelTask, SubmitMany
from schedulemesh.api.tokens import CreateToken, RevokeToken
from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.protocol.answers import Response, read_answer
from schedulemesh.protocol.credentials import hash_of
from schedulemesh.protocol.requests import encode_request
from schedulemesh.server import tokens
from schedulemesh.server.app import MSGPACK
from schedulemesh.server.changes import CHANGES
from schedulemesh.server.reads import LISTINGS, SINGLES
from schedulemesh.server.task_reads import TASK_READS
from tests.runtime.composition import InThread, stored_bytes
from tests.runtime.test_clock import DAY_S, Machine
from tests.server.local import Api
from tests.server.work import ask, filled, submission, submit

CALLS = [
    *[("GET", listing.path, listing.request) for listing in LISTINGS],
    *[("GET", one.path, one.request({"pool_name": "p", "task_id": "t"})) for one in SINGLES],
    *[("GET", read.path, read.asks) for read in TASK_READS],
    *[(change.method, change.path, change.asks) for change in CHANGES],
]


def issue(api, name, role, **limits):
    """A client with a new token."""
    made = api.send("POST", "/tokens", {"name": name, "role": role, **limits})
    return api.client_with(made["token"])


@pytest.fixture
def by_role(api):
    """A client of each role."""
    limits = {"submitter": {"owner": "ada"}, "pool_operator": {"pools": ["none", "p"]}}
    clients = {
        role: issue(api, f"a {role.value}", role.value, **limits.get(role.value, {}))
        for role in Role
    }
    yield clients
    for client in clients.values():
        client.close()


def test_every_call_is_allowed_or_refused_by_role(api, by_role):
    seen = set()
    for method, path, request in CALLS:
        asked = request if isinstance(request, type) else type(request)
        where = path
        for key in ("name", "pool_name", "task_id", "agent_name", "node_id"):
            where = where.replace(f"{{{key}:name}}", "none")
        for role, client in by_role.items():
            answer = client.request(method, f"/api/v1{where}", json={})
            allowed = list(Role).index(role) >= list(Role).index(asked.least_role)
            told = f"{role.value}: {method} {where}: {answer.status_code} {answer.text}"
            is_of_role = answer.status_code != 403 or "needs the role" not in answer.text
            assert is_of_role == allowed, told
            assert allowed or answer.json()["reason"] == "not_allowed", told
            seen.add((role, allowed))
    assert len(seen) == 7


def test_a_packed_request_is_allowed_or_refused_by_its_class(mesh, api, by_role):
    filled(mesh)
    for role, client in by_role.items():
        for request in ("cancel", "pools"):
            made = packed(request)
            answer = client.post(
                "/api/v1/requests",
                content=encode_request(made),
                headers={"content-type": MSGPACK},
            )
            allowed = list(Role).index(role) >= list(Role).index(type(made).least_role)
            assert (answer.status_code == 200) == allowed, (role, request, answer.text)


def test_changes_that_a_role_does_not_allow_are_recorded(api, by_role):
    viewer = by_role[Role.VIEWER]
    assert viewer.put("/api/v1/pools/x", json={}).status_code == 403
    content, kind = encode_request(packed("cancel")), {"content-type": MSGPACK}
    assert viewer.post("/api/v1/requests", content=content, headers=kind).status_code == 403
    # Not a request that could be recorded.
    assert viewer.put("/api/v1/pools/x", json={"no": 1}).status_code == 403
    recorded = api.get("/audit?outcome=refused")["items"]
    found = [(row["call"], row["token"], row["address"], row["reason"]) for row in recorded]
    assert found == [
        ("ensure_pool", "a viewer", "127.0.0.1", "not_allowed"),
        ("cancel_task", "a viewer", "127.0.0.1", "not_allowed"),
    ]


def test_a_packed_change_has_its_real_author(api):
    for made in (
        ChangePolicy(changes={"min_runtime": 5.0}, client="somebody@else"),
        CreateToken(
            spec=TokenSpec(name="t", role=Role.VIEWER, secret_hash="c" * 64),
            client="somebody@else",
            request_id="t",
        ),
    ):
        answer = api.client.post(
            "/api/v1/requests",
            content=encode_request(made),
            headers={"content-type": MSGPACK},
        )
        assert answer.status_code == 200
    assert api.get("/policy")["changes"][-1]["client"] == "local@127.0.0.1"
    assert api.get("/tokens?name=t")["items"][0]["created_by"] == "local@127.0.0.1"


def packed(name):
    return ListPools() if name == "pools" else CancelTask(task_id="none", request_id="r")


@pytest.fixture
def ada(mesh, api):
    """A submitter for one pool and priorities up to 4."""
    filled(mesh)
    submit(mesh, "of-ada", priority=1.0, owner="ada")
    submit(mesh, "of-bob", priority=1.0, owner="bob")
    with issue(api, "ada", "submitter", owner="ada", pools=["p"], max_priority=4) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PATCH", "/queue/of-ada", {"held": True}, 200),
        ("PATCH", "/queue/of-ada", {"priority": 4}, 200),
        ("PATCH", "/queue/of-ada", {"priority": 4.5}, 403),
        ("PATCH", "/queue/of-ada", {"to_front": True}, 403),
        ("PATCH", "/queue/of-bob", {"held": True}, 403),
        ("POST", "/tasks/of-ada/cancel", {}, 200),
        ("POST", "/tasks/of-bob/cancel", {}, 403),
        ("POST", "/tasks/cancel", {"task_ids": ["of-ada", "of-bob"]}, 403),
        ("POST", "/tasks/first/complete", {}, 200),
        ("POST", "/tasks/none/cancel", {}, 404),
    ],
)
def test_a_submitter_changes_tasks_of_its_owner_only(ada, api, method, path, body, status):
    before = api.get("/tasks")["total"]
    answer = ada.request(method, f"/api/v1{path}", json=body)
    assert answer.status_code == status, answer.text
    if status == 403:
        assert api.get("/tasks")["total"] == before


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({}, None),
        ({"owner": "bob"}, "for tasks of 'ada'"),
        ({"pool": "other"}, "to the pools p only"),
        ({"priority": 9.0}, "priorities up to 4"),
    ],
)
def test_a_submission_is_within_the_limits_of_its_token(ada, how, error):
    request = SubmitMany(submissions=(submission("mine", **{"priority": 2.0, **how}),))
    answer = ada.post(
        "/api/v1/requests", content=encode_request(request), headers={"content-type": MSGPACK}
    )
    if error is None:
        assert answer.status_code == 200, answer.text
    else:
        refused = read_answer(answer.content).refused
        assert refused.reason == "not_allowed"
        assert error in refused.error


def test_a_token_is_shown_once_and_stored_as_a_hash(mesh, api, tmp_path):
    made = api.send("POST", "/tokens", {"name": "v", "role": "viewer"})
    assert made["token"].startswith("sm_")
    listed = {row["name"]: row for row in api.get("/tokens")["items"]}
    assert set(listed) == {"v", "local"}
    assert listed["v"]["created_by"].startswith("local@")
    assert made["token"] not in str(listed)
    stored = mesh.running.reactor.state.tokens["v"]
    assert stored.secret_hash == hash_of(made["token"])
    assert mesh.reloaded().tokens == mesh.running.reactor.state.tokens
    assert made["token"].encode() not in stored_bytes(tmp_path)


def test_a_name_is_given_once_and_rotation_replaces_the_secret(api):
    first = api.send("POST", "/tokens", {"name": "v", "role": "viewer"})["token"]
    assert api.send("POST", "/tokens", {"name": "v", "role": "operator"}, 409)["reason"] == (
        "token_exists"
    )
    second = api.send("POST", "/tokens/v/rotate", {})["token"]
    assert api.send("POST", "/tokens/none/rotate", {}, 404)["reason"] == "token_not_found"
    with api.client_with(first) as old, api.client_with(second) as new:
        assert old.get("/api/v1/status").status_code == 401
        assert new.get("/api/v1/status").status_code == 200
        assert new.delete("/api/v1/agents/a").status_code == 403


def test_a_repeated_request_for_a_secret_issues_nothing_and_is_refused(api):
    key = {"idempotency-key": "once"}
    body = {"name": "ada", "role": "viewer"}
    made = api.client.post("/api/v1/tokens", json=body, headers=key)
    assert made.status_code == 200
    for changed in ({}, {"name": "eve"}):
        again = api.client.post("/api/v1/tokens", json={**body, **changed}, headers=key)
        assert (again.status_code, again.json()["reason"]) == (409, "request_id_reused")
        assert "token" not in again.json()
        assert "rotate" in again.json()["error"]
    assert "eve" not in {token["name"] for token in api.get("/tokens")["items"]}
    # The secret of the first answer stays, and the key of one call is none of another.
    with api.client_with(made.json()["token"]) as ada:
        assert ada.get("/api/v1/pools").status_code == 200
        rotated = api.client.post("/api/v1/tokens/ada/rotate", json={}, headers=key)
        assert rotated.status_code == 200
        assert api.client.post("/api/v1/tokens/ada/rotate", json={}, headers=key).status_code == 409
    with api.client_with(rotated.json()["token"]) as ada:
        assert ada.get("/api/v1/pools").status_code == 200


def test_a_revoked_token_is_refused_at_once_and_the_last_operator_stays(api):
    with issue(api, "v", "viewer") as client:
        assert client.get("/api/v1/status").status_code == 200
        assert api.send("DELETE", "/tokens/v")["success"]
        assert client.get("/api/v1/status").status_code == 401
    assert api.send("DELETE", "/tokens/v", status=404)["reason"] == "token_not_found"
    assert api.send("DELETE", "/tokens/local", status=409)["reason"] == "last_operator"
    with issue(api, "chief", "operator") as chief:
        assert chief.delete("/api/v1/tokens/local").status_code == 200
        assert api.client.get("/api/v1/status").status_code == 401


def test_the_first_tokens_may_take_longer_than_those_that_are_read_again(api, monkeypatch):
    monkeypatch.setattr(tokens, "_ANSWER_S", 0.0)
    table = tokens.TokenTable(api.gateway)
    api.do(table.read())
    first_tokens = table._by_hash
    assert first_tokens
    api.do(table.read())  # there is no time for it, so those that were read stay
    assert table._by_hash is first_tokens


def test_a_token_that_was_revoked_elsewhere_is_refused_by_the_supervisor(mesh, api, monkeypatch):
    with issue(api, "o", "operator") as client:
        assert client.get("/api/v1/status").status_code == 200
        done = ask(mesh, RevokeToken(name="o", client="another process"))
        assert isinstance(done, Response)
        refused = client.put("/api/v1/pools/p", json={})
        assert (refused.status_code, refused.json()["reason"]) == (403, "not_allowed")
        monkeypatch.setattr(tokens, "_FRESH_S", 0.0)
        assert client.get("/api/v1/status").status_code == 401


def test_a_token_expires(api, monkeypatch):
    with issue(api, "v", "viewer", expires_in=1000) as client:
        assert client.get("/api/v1/status").status_code == 200
        # Tokens expire by the scheduler's time, not by the clock of the HTTP server's process.
        later = api.server._tokens._now() + 1001
        monkeypatch.setattr(tokens.TokenTable, "_now", lambda _: later)
        assert client.get("/api/v1/status").status_code == 401


@pytest.mark.parametrize("by_s", [-4 * DAY_S, DAY_S])
def test_a_lifetime_is_measured_however_the_clock_is_set_between_two_supervisors(tmp_path, by_s):
    machine = Machine()
    mesh = InThread(tmp_path / "j.sqlite", clock=machine.clock())
    api = Api(mesh, tmp_path / "home")
    client = issue(api, "v", "viewer", expires_in=1000)

    def status():
        api.server._tokens.outdated()
        return client.get("/api/v1/status").status_code

    machine.system += by_s
    machine.passes(500)
    assert status() == 200
    mesh.close()
    machine.system += by_s
    machine.passes(400)
    api.gateway.mesh = mesh = InThread(tmp_path / "j.sqlite", clock=machine.clock())
    assert status() == 200
    machine.passes(101)
    assert status() == 401
    client.close()
    api.close()
    mesh.close()


@pytest.mark.parametrize(
    "body",
    [
        {"name": "t", "role": "king"},
        {"name": "t", "role": "submitter"},
        {"name": "t", "role": "viewer", "owner": "ada"},
        {"name": "t", "role": "operator", "max_priority": 1},
        {"name": "", "role": "viewer"},
        {"name": "t", "role": "viewer", "expires_in": 0},
        {"name": "t", "role": "viewer", "secret": "mine"},
    ],
)
def test_a_token_that_contradicts_itself_is_refused(api, body):
    assert api.send("POST", "/tokens", body, 400)["reason"] == "invalid_request"


def test_unknown_tokens_do_not_reach_the_supervisor_more_than_twice_a_second(api):
    asked = api.gateway.all_asked
    with api.client_with("guess") as client:
        for _ in range(200):
            assert client.get("/api/v1/status").status_code == 401
    assert api.gateway.all_asked - asked < 60
