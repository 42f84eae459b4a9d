"""Commands over the HTTP API: the same answers and exit codes, and Ray is not imported."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import http.server
import json
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
import threading

import httpx
import msgspec
import pytest

import schedulemesh
from schedulemesh.api.pools import ListPools
from schedulemesh.cli.command import Target
from schedulemesh.cli.exits import ExitCode
from schedulemesh.cli.http_gateway import at_url, discovered
from schedulemesh.client import http_channel
from schedulemesh.client.http_channel import NamedServer, Served
from schedulemesh.config.discovery import Discovered, found, write
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.protocol.answers import Listed
from tests.cli.conftest import Scheduler
from tests.runtime.composition import InThread
from tests.server.local import Api

#: Runs a command, and says on stderr whether Ray was imported.
PROGRAM = """
import sys
from schedulemesh.cli.app import app
code = 0
try:
    app()
except SystemExit as ended:
    code = ended.code
print("ray" in sys.modules, file=sys.stderr)
sys.exit(code)
"""
#: Runs the commands that it reads, one after the other: what each has printed, its exit code, and whether
#: Ray has been imported by then.
PROGRAM_OF_MANY = """
import contextlib, io, json, sys
from schedulemesh.cli.app import app
for words in json.load(sys.stdin):
    code, printed = 0, io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    try:
        with contextlib.redirect_stdout(printed):
            app(words)
    except SystemExit as ended:
        code = ended.code
    print(json.dumps([printed.buffer.getvalue().decode(), code, "ray" in sys.modules]))
"""
LOOKS = (
    ["status"],
    ["pools"],
    ["pools", "get", "研究"],
    ["agents"],
    ["nodes"],
    ["tasks"],
    ["queue"],
    ["explain", "甲"],
    ["preemptions"],
    ["policy", "get"],
    ["history"],
    ["history", "甲"],
    ["usage", "--by", "owner"],
    ["events"],
    ["export"],
    ["top", "--count", "1"],
)


@pytest.fixture
def api(tmp_path, monkeypatch):
    """The HTTP API of a scheduler with a pool and a task; commands find it."""
    service = InThread(tmp_path / "j.sqlite")
    mesh = Scheduler(service)
    mesh.pool()
    mesh.submit("甲")
    served = Api(service, tmp_path / "home")
    monkeypatch.setenv("SCHEDULEMESH_HOME", served.folder)
    monkeypatch.setenv("SCHEDULEMESH_NAME", "mesh")
    monkeypatch.setenv("SCHEDULEMESH_NAMESPACE", "space")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield served
    served.close()
    service.close()


def process(*words):
    command = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_looking_needs_no_ray(api):
    looks = [[*words, "-o", "json"] for words in LOOKS]
    command = [sys.executable, "-c", PROGRAM_OF_MANY]
    done = subprocess.run(
        command, input=json.dumps(looks), capture_output=True, text=True, check=True
    )
    for words, line in zip(looks, done.stdout.splitlines(), strict=True):
        printed, code, ray_is_loaded = json.loads(line)
        assert (code, ray_is_loaded) == (0, False), (words, done.stderr)
        assert isinstance(json.loads(printed), (list, dict))


@pytest.fixture
def over_ray(monkeypatch):
    """The targets of commands that go over Ray."""
    targets = []

    @contextlib.contextmanager
    def connected(target):
        targets.append(target)
        raise SchedulerUnavailableError("asked over Ray")
        yield

    monkeypatch.setattr("schedulemesh.cli.ray_gateway.connected", connected)
    return targets


@pytest.mark.parametrize(
    "address", ["auto", "10.0.0.7:6379", "127.0.0.1:6379", "localhost:6379", "http"]
)
def test_the_api_of_the_cluster_at_ray_address_is_used_without_a_name(
    api, run, monkeypatch, over_ray, address
):
    monkeypatch.delenv("SCHEDULEMESH_NAME")
    monkeypatch.delenv("SCHEDULEMESH_NAMESPACE")
    monkeypatch.setenv("SCHEDULEMESH_TOKEN", api.token)
    monkeypatch.setenv("RAY_ADDRESS", api.url if address == "http" else address)
    done = run("tasks", "-o", "name")
    assert (done.stdout, over_ray) == ("甲\n", []), done.stderr


@pytest.mark.parametrize("address", ["10.0.0.8:6379", "127.0.0.1:6380", "no-such-host:6379", "x"])
def test_another_cluster_at_ray_address_is_asked_over_ray(api, run, monkeypatch, over_ray, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert run("tasks").exit_code == ExitCode.UNREACHABLE
    monkeypatch.delenv("SCHEDULEMESH_NAME")
    assert run("tasks").exit_code == ExitCode.UNREACHABLE
    assert [target.name for target in over_ray] == ["mesh", None]


def test_without_a_name_an_api_is_used_only_where_its_scheduler_is_the_only_one(
    api, run, monkeypatch, over_ray, tmp_path
):
    monkeypatch.delenv("SCHEDULEMESH_NAME")
    monkeypatch.delenv("SCHEDULEMESH_NAMESPACE")
    gone = Discovered(name="gone", namespace="x", url="http://127.0.0.1:1", token="t", pid=1)
    path = write(api.folder, gone)
    assert run("tasks", "-o", "name").stdout == "甲\n", "the other one does not answer"
    path.chmod(0o644)
    path.with_name("broken.json").write_text("{")
    assert run("tasks", "-o", "name").stdout == "甲\n", "files that cannot be used"
    api.loop.call_soon_threadsafe(api.server.note_others, ("space/b",))
    api.do(api.server.address())
    assert run("tasks").exit_code == ExitCode.UNREACHABLE
    assert run("tasks", "--name", "mesh", "--namespace", "space", "-o", "name").stdout == "甲\n"
    api.loop.call_soon_threadsafe(api.server.note_others, ())
    api.do(api.server.address())
    assert run("tasks", "-o", "name").stdout == "甲\n"
    second = InThread(tmp_path / "second.sqlite")
    with contextlib.closing(second):
        other = Api(second, tmp_path / "other")
        copy = msgspec.structs.replace(found(other.folder, "space", "mesh"), name="b")
        write(api.folder, copy)
        assert run("tasks").exit_code == ExitCode.UNREACHABLE
        assert len(over_ray) == 2
        other.close()


def test_changes_and_refusals_are_those_of_the_scheduler(api, run):
    assert run("pools", "set", "研究", "resources.gpu=2").exit_code == 0
    assert json.loads(run("pools", "get", "研究", "-o", "json").stdout)["resources"] == {
        "cpu": 4.0,
        "gpu": 2.0,
    }
    assert run("cancel", "甲").exit_code == 0
    assert run("cancel", "没有").exit_code == ExitCode.NOT_FOUND
    assert run("agents", "--pool", "没有").exit_code == ExitCode.NOT_FOUND
    assert run("policy", "set", "min_runtime=-1").exit_code == ExitCode.USAGE


def test_a_url_is_an_address(api, run, monkeypatch):
    monkeypatch.setenv("SCHEDULEMESH_HOME", "/nowhere")
    assert run("tasks", "--address", api.url).exit_code == ExitCode.NOT_ALLOWED
    monkeypatch.setenv("SCHEDULEMESH_TOKEN", api.token)
    assert run("tasks", "--address", api.url, "-o", "name").stdout == "甲\n"
    done = run("tasks", "--address", "http://127.0.0.1:1")
    assert done.exit_code == ExitCode.UNREACHABLE
    assert "nothing answers at http://127.0.0.1:1" in done.stderr


def test_another_scheduler_than_the_named_one_at_a_url_is_refused(api, run, monkeypatch):
    monkeypatch.setenv("SCHEDULEMESH_TOKEN", api.token)
    done = run("status", "--name", "nope", "--address", api.url)
    assert done.exit_code == ExitCode.NOT_FOUND
    assert "is scheduler 'mesh' in namespace" in done.stderr
    assert "not 'nope'" in done.stderr
    assert run("status", "--name", "mesh", "--address", api.url).exit_code == 0


@pytest.mark.parametrize("version", [b'{"version": "4", "ray_version": "2.60.0"}', None])
def test_the_address_of_rays_dashboard_is_named(run, monkeypatch, version):
    class Dashboard(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if version and self.path == "/api/version" else 404)
            self.end_headers()
            self.wfile.write(version or b"<html>")

        def do_POST(self):
            self.send_response(403)
            self.end_headers()
            self.wfile.write(b"Browser requests not allowed")

        def log_message(self, *_args):
            """It says nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Dashboard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        if version is None:
            monkeypatch.setattr(http_channel, "_DASHBOARD_PORT", server.server_port)
        monkeypatch.setenv("RAY_ADDRESS", url)
        done = run("tasks")
        server.shutdown()
    assert done.exit_code == ExitCode.USAGE
    assert f"{url} is Ray's dashboard" in done.stderr
    assert "unset RAY_ADDRESS, or give the address of the cluster as host:6379" in done.stderr


def test_a_scheduler_that_does_not_answer_is_unreachable(api, run):
    api.gateway.cut_off = True
    done = run("status")
    assert (done.exit_code, done.stdout) == (ExitCode.UNREACHABLE, "")
    assert "cannot be reached" in done.stderr


def test_an_api_that_restarts_elsewhere_is_found_again(api):
    with discovered(Target(name="mesh", namespace="space")) as gateway:
        assert gateway.ask(ListPools(), Listed).rows
        before = api.url
        api.end()
        with pytest.raises(SchedulerUnavailableError, match="does not answer"):
            gateway.ask(ListPools(), Listed)
        api.start()
        assert api.url != before
        assert gateway.ask(ListPools(), Listed).rows


def test_a_scheduler_that_comes_back_without_an_api_is_asked_nothing(api):
    with discovered(Target(name="mesh", namespace="space")) as gateway:
        api.end()
        with pytest.raises(SchedulerUnavailableError, match="does not answer"):
            gateway.ask(ListPools(), Listed)
        without = Discovered(name="mesh", namespace="space", url="", token=api.token, pid=1)
        write(api.folder, without)
        with pytest.raises(SchedulerUnavailableError, match="started again without one"):
            gateway.ask(ListPools(), Listed)


class Listener:
    """Another process on the port of the API: it keeps what it is sent, and answers with what it is given."""

    def __init__(self, url, answer):
        address = httpx.URL(url)
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.socket = socket.create_server((address.host, address.port), family=family)
        self.heard, self.answer = b"", answer
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def listen(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                with connection:
                    while data := connection.recv(65_536):
                        self.heard += data
                        connection.sendall(self.answer(data))

    def close(self):
        # An accept that waits is ended by shutdown only.
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join()


def response(body):
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize("token", ["", "sm_given_in_the_environment"])
def test_whoever_took_the_port_is_sent_no_token(api, monkeypatch, capsys, token):
    monkeypatch.setenv("SCHEDULEMESH_TOKEN", token)
    file, target = found(api.folder, "space", "mesh"), Target(name="mesh", namespace="space")
    with discovered(target) as gateway:
        assert gateway is not None
        api.end()
        write(api.folder, file)
        for answer in (
            lambda data: response(b'{"success": true, "proof": "0"}'),
            lambda data: response(b"[]"),
            lambda data: response(json.dumps({"proof": [1]}).encode()),
            lambda data: b"no HTTP\r\n\r\n",
        ):
            other = Listener(api.url, answer)
            for _ in range(2):
                with pytest.raises(SchedulerUnavailableError):
                    gateway.ask(ListPools(), Listed)
            with discovered(target) as none:
                assert none is None
            other.close()
            assert b"GET /proof?nonce=" in other.heard
            assert b"sm_" not in other.heard
    assert "asked over Ray instead" in capsys.readouterr().err
    api.start()


def test_a_proof_that_is_fetched_from_the_real_server_is_not_accepted_elsewhere(api, monkeypatch):
    file = found(api.folder, "space", "mesh")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        elsewhere = f"http://127.0.0.1:{free.getsockname()[1]}"

    def passed_on(data):
        path = data.split(b" ")[1].decode()
        return response(api.client.get(path, headers={"authorization": ""}).content)

    other = Listener(elsewhere, passed_on)
    write(api.folder, msgspec.structs.replace(file, url=elsewhere))
    with discovered(Target(name="mesh", namespace="space")) as gateway:
        assert gateway is None
    other.close()
    write(api.folder, file)
    assert b"sm_" not in other.heard


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_address_that_the_user_names_is_checked_where_a_file_says_who_serves_there(api, host):
    """As in a notebook on the head, which holds its object for days."""
    named, file = api.url.replace("127.0.0.1", host), found(api.folder, "space", "mesh")
    target = Target(address=named)
    with schedulemesh.connect(f"{named}/", token=api.token) as scheduler:
        assert scheduler.list_pools()["pools"]
        api.end()
        write(api.folder, file)
        other = Listener(api.url, lambda data: response(b"{}"))
        for said in ("does not answer", "sent no token"):
            with pytest.raises(SchedulerUnavailableError, match=said):
                scheduler.list_pools()
        with pytest.raises(SchedulerUnavailableError), at_url(target):
            pass
        write(api.folder, msgspec.structs.replace(file, url="http://127.0.0.1:1"))
        with pytest.raises(SchedulerUnavailableError, match="serves there no more"):
            scheduler.list_pools()
    other.close()
    assert b"sm_" not in other.heard
    assert b"authorization" not in other.heard.lower()
    api.start()


@pytest.fixture
def names(monkeypatch):
    """Addresses that names stand for, as in the file of hosts of a machine."""
    addresses, resolve = {}, socket.getaddrinfo

    def resolved(name, *more, **named):
        return resolve(addresses.get(name, name), *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr(http_channel, "getaddrinfo", resolved)
    return addresses


def restarted_with(api, file):
    """The file says so while the server is away."""
    api.end()
    write(api.folder, file)


@pytest.mark.parametrize("host", ["[::1]", "LOCALHOST", "127.0.0.1", "ip6-loopback"])
def test_localhost_by_whatever_name_leads_to_the_server_of_the_file(api, names, host):
    names["ip6-loopback"] = "::1"
    address = "127.0.0.1" if host == "127.0.0.1" else "::1"
    port, file = httpx.URL(api.url).port, found(api.folder, "space", "mesh")
    with schedulemesh.connect(f"http://{host}:{port}", token=api.token) as scheduler:
        assert scheduler.list_pools()["pools"]
        restarted_with(api, file)
        other = Listener(
            str(httpx.URL(api.url).copy_with(host=address)), lambda data: response(b"{}")
        )
        for _ in range(2):
            with pytest.raises(SchedulerUnavailableError):
                scheduler.list_pools()
    other.close()
    assert b"sm_" not in other.heard
    api.start()


@pytest.mark.parametrize("host", ["127.0.0.2", "head"])
def test_a_neighbour_at_another_loopback_address_hears_no_token(api, names, host):
    """On many machines the machine's own name stands for 127.0.1.1."""
    names["head"] = "127.0.1.1"
    port = httpx.URL(api.url).port
    other = Listener(f"http://{names.get(host, host)}:{port}", lambda data: response(b"{}"))
    named = f"http://{host}:{port}"
    with pytest.raises(SchedulerUnavailableError, match="a scheduler of yours serves at"):
        schedulemesh.connect(named, token=api.token)
    with (
        pytest.raises(SchedulerUnavailableError, match="where anybody may listen"),
        at_url(Target(address=named)),
    ):
        pass
    other.close()
    assert other.heard == b""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "head"])
def test_a_server_at_every_address_is_checked_at_each(tmp_path, names, api, monkeypatch, host):
    names["head"] = "127.0.1.1"
    everywhere = Api(api.mesh, tmp_path / "everywhere", host="0.0.0.0")
    monkeypatch.setenv("SCHEDULEMESH_HOME", everywhere.folder)
    named = f"http://{host}:{httpx.URL(everywhere.url).port}"
    assert NamedServer(named, "t")().keys == (found(everywhere.folder, "space", "mesh").key,)
    with schedulemesh.connect(named, token=everywhere.token) as scheduler:
        assert scheduler.list_pools()["success"]
    everywhere.close()


@pytest.mark.parametrize("host", ["10.9.8.7", "head"])
@pytest.mark.parametrize("listening", ["127.0.0.1", "0.0.0.0", "[::1]"])
def test_an_address_of_another_machine_is_none_of_a_file(api, names, host, listening):
    names["head"] = "10.9.8.7"
    port, file = httpx.URL(api.url).port, found(api.folder, "space", "mesh")
    write(api.folder, msgspec.structs.replace(file, url=f"http://{listening}:{port}"))
    assert NamedServer(f"http://{host}:{port}", "t")() == Served(
        f"http://{host}:{port}", "t", "", ""
    )
    write(api.folder, file)


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:x", "no url", "http://[:8090"])
def test_a_file_with_a_url_that_is_none_is_passed_over(api, url):
    file = found(api.folder, "space", "mesh")
    write(api.folder, msgspec.structs.replace(file, name="broken", url=url))
    with schedulemesh.connect(api.url, token=api.token) as scheduler:
        assert scheduler.list_pools()["pools"]


def test_an_address_at_which_something_else_answers_is_said_to_be_that(api):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        elsewhere = f"http://127.0.0.1:{free.getsockname()[1]}"
    other = Listener(elsewhere, lambda data: response(b"<html>Sign in</html>"))
    with pytest.raises(SchedulerUnavailableError, match="is not the HTTP API of a scheduler"):
        schedulemesh.connect(elsewhere, token="x" * 43)
    other.close()


def test_a_nonce_has_one_form(api):
    for given in ("", "ab", "x" * 64, "0" * 65, "A" * 64):
        with api.client_with(None) as client:
            assert client.get("/proof", params={"nonce": given}).status_code == 400


def on_a_terminal(*words):
    """What a command writes to a terminal of 80 columns, and its exit code."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    command = [sys.executable, "-m", "schedulemesh", *words]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its) as started:
        os.close(its)
        written = b""
        # Reading fails when nobody has the terminal open any more.
        with contextlib.suppress(OSError):
            while part := os.read(mine, 65_536):
                written += part
    os.close(mine)
    return written.decode(), started.returncode


def test_on_a_terminal_the_live_view_is_redrawn_in_place(api, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    written, code = on_a_terminal("top", "--count", "2", "--interval", "0.1")
    assert code == 0
    assert written.count("1 running, 0 queued") == 2
    alternate_screen, back = "\x1b[?1049h", "\x1b[?1049l"
    assert written.index(alternate_screen) < written.index("研究") < written.index(back)


def test_help_needs_no_ray():
    done = process("--help")
    assert (done.returncode, done.stderr) == (0, "False\n")


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_an_export_needs_no_ray(api, tmp_path, form):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"jobs.{form}"
    done = process("history", "--export", str(path))
    assert (done.returncode, done.stdout) == (0, f"{path}\n"), done.stderr
    assert done.stderr == "1 attempts to run tasks were written\nFalse\n"
    (job,) = read(path, form)
    assert (job["job_id"], job["group_or_vc"], job["status"]) == ("甲", "研究", "running")
    assert float(job["cpus"]) == 1.0


def read(path, form):
    """The rows of an exported file."""
    if form == "csv":
        return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    if form == "jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    from pyarrow import parquet

    return parquet.read_table(path).to_pylist()


def test_an_export_that_is_refused_leaves_no_file(api, run, tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("kept")
    assert run("history", "--export", path, "--format", "xml").exit_code == ExitCode.USAGE
    api.gateway.cut_off = True
    assert run("history", "--export", path).exit_code == ExitCode.UNREACHABLE
    assert path.read_text() == "kept"
    assert [found.name for found in tmp_path.glob("*jobs*")] == ["jobs.csv"]
