"""The server as a process: its address, its file, its token, and requests in packed form."""

from __future__ import annotations

import logging
import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from schedulemesh.api.agents import DeleteAgent
from schedulemesh.api.cluster import GetAbout
from schedulemesh.api.pools import ListPools
from schedulemesh.config.discovery import Discovered, forget, found, path_of, write
from schedulemesh.config.http import HttpSettings, home_folder, parse_http
from schedulemesh.errors import InvalidRequestError, NotAllowedError
from schedulemesh.protocol.answers import Details, Listed, Response, read_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.server.app import MSGPACK
from schedulemesh.server.serving import listen


def packed(api, request):
    content = request if isinstance(request, bytes) else encode_request(request)
    return api.client.post("/api/v1/requests", content=content, headers={"content-type": MSGPACK})


def test_any_request_is_answered_in_packed_form(api):
    answer = packed(api, GetAbout())
    assert answer.headers["content-type"] == MSGPACK
    about = read_answer(answer.content)
    assert isinstance(about, Details)
    assert about.facts["name"] == "mesh"
    assert read_answer(packed(api, ListPools()).content) == Listed(rows=[])
    gone = read_answer(packed(api, DeleteAgent(agent_name="nobody")).content)
    assert isinstance(gone, Response)
    assert gone.outcome.reason == "agent_not_found"


@pytest.mark.parametrize("content", [b"", b"\x00", b"\xff" * 100, encode_request(GetAbout())[:-1]])
def test_what_is_no_request_does_not_reach_the_supervisor(api, content):
    answer = packed(api, content)
    assert answer.status_code == 400
    assert isinstance(answer.json()["error"], str)
    assert api.gateway.asked == []


def test_packed_requests_are_recognised_by_their_type(api):
    answer = api.client.post("/api/v1/requests", content=encode_request(GetAbout()))
    assert (answer.status_code, answer.json()["reason"]) == (415, "media_type_not_supported")


def test_a_supervisor_that_does_not_answer_is_an_answer(api):
    api.gateway.cut_off = True
    answer = api.client.get("/api/v1/status")
    assert (answer.status_code, answer.json()["reason"]) == (503, "scheduler_unavailable")
    assert answer.headers["retry-after"] == "1"


def test_the_file_is_for_its_owner_only_and_is_removed_at_the_end(api):
    path = path_of(api.folder, "space", "mesh")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert found(api.folder, "space", "mesh").url == api.url
    api.end()
    assert found(api.folder, "space", "mesh") is None
    api.start()


def test_a_restarted_server_has_the_same_address_and_token(api):
    before = found(api.folder, "space", "mesh")
    api.end()
    write(api.folder, before)
    api.start()
    after = found(api.folder, "space", "mesh")
    assert (after.url, after.token) == (before.url, before.token)
    assert api.get("/status")["success"]


@pytest.mark.parametrize("name", ["../../etc/passwd", ".hidden", "a/b", "池" * 253, "x" * 253])
def test_every_name_has_a_file_in_the_folder(tmp_path, name):
    told = Discovered(name=name, namespace=name, url="http://127.0.0.1:1", token="t", pid=1)
    path = write(tmp_path, told)
    assert path.resolve().parent.parent == tmp_path.resolve()
    assert found(tmp_path, name, name) == told
    forget(tmp_path, told)
    assert found(tmp_path, name, name) is None


def test_a_file_that_another_process_has_written_since_is_kept(tmp_path):
    first = Discovered(name="a", namespace="n", url="http://127.0.0.1:1", token="t", pid=1)
    second = Discovered(name="a", namespace="n", url="http://127.0.0.1:2", token="t", pid=2)
    write(tmp_path, first)
    write(tmp_path, second)
    forget(tmp_path, first)
    assert found(tmp_path, "n", "a") == second


def test_a_named_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path):
    told = Discovered(name="a", namespace="n", url="http://127.0.0.1:1", token="t", pid=1)
    path = write(tmp_path, told)
    path.unlink()
    os.mkfifo(path, 0o600)
    # A waiting reader keeps the process of the test from its end only until somebody opens the pipe.
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(found, tmp_path, "n", "a")
        try:
            with pytest.raises(NotAllowedError, match="no regular file"):
                reading.result(60)
        finally:
            os.close(os.open(path, os.O_RDWR))


def test_a_taken_port_is_a_warning_and_another_port(caplog):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with caplog.at_level(logging.WARNING):
            listening = listen(HttpSettings(port=taken), None)
        with listening:
            port = listening.getsockname()[1]
    assert taken < port < taken + 20
    assert f"port {taken} is taken" in caplog.text


@pytest.mark.parametrize(
    ("given", "host", "port"),
    [
        (True, "127.0.0.1", 8090),
        (0, "127.0.0.1", 0),
        (9000, "127.0.0.1", 9000),
        ("9000", "127.0.0.1", 9000),
        ("localhost:9000", "localhost", 9000),
        ("0.0.0.0:9000", "0.0.0.0", 9000),
        ("[::1]:9000", "::1", 9000),
    ],
)
def test_where_it_listens(given, host, port):
    settings = parse_http(given, {"SCHEDULEMESH_HOME": "/somewhere"})
    assert (settings.host, settings.port, settings.folder) == (host, port, "/somewhere")


@pytest.mark.parametrize("given", [-1, 65_536, 1.5, "", "host", "a b:1", "h:x", "::1:x", [], b"1"])
def test_an_address_that_is_none_is_refused(given):
    with pytest.raises(InvalidRequestError, match="http must be a port"):
        parse_http(given, {})


def test_without_a_setting_there_is_no_api():
    assert parse_http(None, {}) is None
    assert parse_http(False, {}) is None
    assert home_folder({}).name == ".schedulemesh"
