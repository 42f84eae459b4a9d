"""The server as a process: its address, its file, its token, and requests in packed form."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from schedulemesh.api.agents import DeleteAgent
from schedulemesh.api.cluster import GetAbout
from schedulemesh.api.pools import ListPools
from schedulemesh.config.discovery import Discovered, forget, found, path_of, write
from schedulemesh.config.http import HttpSettings, home_folder, parse_http
from schedulemesh.errors import InvalidRequestError, NotAllowedError
from schedulemesh.protocol.answers import Details, Listed, Response, read_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.server import serving
from schedulemesh.server.app import MSGPACK
from schedulemesh.server.serving import listen
from tests.server.local import Api


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
            sockets = listen(HttpSettings(port=taken), None)
    assert taken < port_of(sockets) < taken + 20
    assert f"port {taken} is taken" in caplog.text


def port_of(sockets):
    """The port of listening sockets, which are closed."""
    with contextlib.ExitStack() as closed:
        for one in sockets:
            closed.enter_context(one)
        (port,) = {one.getsockname()[1] for one in sockets}
        return port


@pytest.fixture
def ipv6():
    """A machine whose loopback has an address of IPv6, too."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_nobody_else_listens_at_the_other_address_of_localhost(ipv6, mesh, tmp_path, host):
    api = Api(mesh, tmp_path / "home", host=host)
    port = httpx.URL(api.url).port
    try:
        for each in ("127.0.0.1", "[::1]", "localhost"):
            answer = httpx.get(f"http://{each}:{port}/healthz", trust_env=False)
            assert answer.json() == {"success": True}
        for family, each in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with pytest.raises(OSError, match="in use"):
                socket.create_server((each, port), family=family)
    finally:
        api.close()


@pytest.mark.parametrize("first", [True, False])
def test_a_port_that_somebody_has_at_the_other_address_is_left_to_them(ipv6, caplog, first):
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        taken = other.getsockname()[1]
        earlier = None if first else f"http://127.0.0.1:{taken}"
        with caplog.at_level(logging.WARNING):
            port = port_of(listen(HttpSettings(port=taken if first else 0), earlier))
        assert port != taken
    assert (f"port {taken} is taken" in caplog.text) == first


def test_a_machine_without_ipv6_has_one_address(monkeypatch):
    bound = serving._bound

    def without_ipv6(host, port):
        if host == "::1":
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return bound(host, port)

    monkeypatch.setattr(serving, "_bound", without_ipv6)
    (only,) = listen(HttpSettings(port=0), None)
    with only:
        assert only.getsockname()[0] == "127.0.0.1"


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
