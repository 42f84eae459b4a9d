"""The user whose process sends a request over the HTTP API."""

from __future__ import annotations

import os
import socket

import pytest

from schedulemesh.protocol.credentials import CLIENT_USER_HEADER
from schedulemesh.protocol.local_sockets import user_of
from schedulemesh.server import peers
from schedulemesh.server.peers import connection_user

HEADINGS = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
REST = "00000000:00000000 00:00000000 00000000"


def last_change(api):
    """The newest record."""
    return api.get("/audit?sort=-number&limit=1")["items"][0]


def change_of(api, name, **headers):
    """The record of a change of a pool that is made with these headers."""
    made = api.client.put(f"/api/v1/pools/{name}", json={"resources": {"cpu": 1}}, headers=headers)
    assert made.status_code == 200, made.text
    return last_change(api)


def test_a_change_with_the_token_of_the_machine_has_the_user_of_the_process(api):
    change = change_of(api, "p", **{CLIENT_USER_HEADER: "eve@elsewhere"})
    assert (change["token"], change["role"]) == ("local", "operator")
    assert (change["who"], change["who_verified"]) == (user_of(os.geteuid()), True)


def test_what_comes_through_a_proxy_has_the_user_that_it_names(api):
    headers = {"x-forwarded-for": "6.6.6.6", CLIENT_USER_HEADER: "ada,\t@lab-1"}
    change = change_of(api, "p", **headers)
    assert (change["who"], change["who_verified"]) == ("ada@lab-1", False)
    change = change_of(api, "q", via="1.1 proxy")
    assert (change["who"], change["who_verified"]) == ("local", True)


def test_another_token_says_who_it_is(api):
    token = api.client.post("/api/v1/tokens", json={"name": "ops", "role": "operator"}).json()
    with api.client_with(token["token"]) as client:
        client.put("/api/v1/pools/p", json={"resources": {"cpu": 1}})
    change = last_change(api)
    assert (change["who"], change["who_verified"], change["user"]) == ("ops", True, "")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_system_says_whose_process_a_connection_has(family):
    host = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}[family]
    try:
        listening = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listening, socket.create_connection(listening.getsockname()[:2]) as client:
        ends = client.getsockname()[:2], listening.getsockname()[:2]
        assert connection_user(*ends) == os.geteuid()


@pytest.mark.parametrize(
    ("line", "uid"),
    [
        ("0100007F:9C40 0100007F:1F9A 01", 4242),
        ("0100007F:9C40 0100007F:1F9A 06", None),
        ("0100007F:9C41 0100007F:1F9A 01", None),
        ("0100007F:9C40 0200007F:1F9A 01", None),
    ],
)
def test_only_the_connection_itself_counts(tmp_path, monkeypatch, line, uid):
    listed = tmp_path / "tcp"
    listed.write_text(f"{HEADINGS}\n   0: {line} {REST}  4242        0 1234 1\n")
    monkeypatch.setattr(peers, "_CONNECTIONS", {4: listed})
    assert connection_user(("127.0.0.1", 40_000), ("127.0.0.1", 8090)) == uid
    assert connection_user(("::ffff:127.0.0.1", 40_000), ("::ffff:127.0.0.1", 8090)) == uid


def test_a_user_without_a_number_here_is_not_known(tmp_path, monkeypatch):
    listed = tmp_path / "tcp"
    line = f"{HEADINGS}\n   0: 0100007F:9C40 0100007F:1F9A 01 {REST} 65534        0 1234 1\n"
    listed.write_text(line)
    monkeypatch.setattr(peers, "_CONNECTIONS", {4: listed, 6: tmp_path / "missing"})
    assert connection_user(("127.0.0.1", 40_000), ("127.0.0.1", 8090)) is None
    assert connection_user(("::1", 40_000), ("::1", 8090)) is None
    assert connection_user(("unix", 0), ("::1", 8090)) is None
