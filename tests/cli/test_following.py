"""The command ``events --follow``: it resumes at its cursor over HTTP and over Ray, and ends by Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from schedulemesh.api.history import QueryEvents
from schedulemesh.cli import following, output
from schedulemesh.cli.command import Target
from schedulemesh.cli.exits import ExitCode, RefusedError
from schedulemesh.cli.following import HEARTBEAT, Part, by_requests, by_stream
from schedulemesh.cli.http_gateway import discovered
from schedulemesh.cli.ray_gateway import RayGateway
from schedulemesh.config.discovery import found, write
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import SchedulerNotFoundError, SchedulerUnavailableError
from schedulemesh.server import event_streams
from tests.cli.conftest import Scheduler
from tests.cli.test_http_gateway import PROGRAM
from tests.runtime.composition import InThread
from tests.server.local import Api


@pytest.fixture
def service(tmp_path):
    made = InThread(tmp_path / "j.sqlite")
    yield made
    made.close()


@pytest.fixture
def mesh(service):
    """A scheduler with a pool and a task."""
    made = Scheduler(service)
    made.pool()
    made.submit("甲")
    return made


@pytest.fixture
def api(service, mesh, tmp_path, monkeypatch):
    """Its HTTP API; commands find it."""
    served = Api(service, tmp_path / "home")
    monkeypatch.setenv("SCHEDULEMESH_HOME", served.folder)
    monkeypatch.setenv("SCHEDULEMESH_NAME", "mesh")
    monkeypatch.setenv("SCHEDULEMESH_NAMESPACE", "space")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield served
    served.close()


@pytest.fixture
def followed(api, interruptible):
    """A process that follows all events from the first on, as JSON."""
    command = [sys.executable, "-c", PROGRAM, "events", "--follow", "--after", "0", "-o", "json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def rows(process, count):
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def restarted(api):
    """The HTTP server, as after it was killed: its file stays."""
    file = found(api.folder, "space", "mesh")
    api.end()
    write(api.folder, file)
    api.start()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_it_resumes_where_the_http_process_was_restarted_and_ends_by_a_signal(
    api, mesh, followed, number, code
):
    known = api.get("/events")["items"]
    assert rows(followed, len(known)) == known
    mesh.submit("乙")
    first = rows(followed, 1)
    restarted(api)
    mesh.submit("丙")
    whole = api.get("/events")["items"]
    assert first + rows(followed, len(whole) - len(known) - 1) == whole[len(known) :]
    followed.send_signal(number)
    _, remarks = followed.communicate(timeout=30)
    assert (followed.returncode, remarks.splitlines()[-1]) == (code, "False")
    assert "Traceback" not in remarks


def test_it_ends_where_the_scheduler_was_shut_down(api, followed):
    rows(followed, 1)
    api.end()
    _, remarks = followed.communicate(timeout=30)
    assert followed.returncode == ExitCode.NOT_FOUND, remarks
    assert "was shut down" in remarks
    api.start()


@pytest.mark.parametrize("served", [True, False])
def test_a_watched_history_is_printed_again_when_something_has_happened(
    api, mesh, run, monkeypatch, served
):
    if not served:
        gateway = contextlib.nullcontext(RayGateway(mesh.connection))
        monkeypatch.setattr("schedulemesh.cli.gateway.gateway_to", lambda _target: gateway)
    monkeypatch.setattr(following, "_WAIT_S", 25.0)
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 60.0)
    looks = ["--watch", "--count", "2", "--interval", "0.1", "-o", "json"]
    timer = threading.Timer(1.0, mesh.submit, ["乙"])
    printed = []

    def emit(*found):
        output_emit(*found)
        printed.append(time.monotonic())
        if len(printed) == 1:
            timer.start()

    output_emit = output.emit
    monkeypatch.setattr(output, "emit", emit)
    done = run("history", *looks)
    assert done.exit_code == 0, done.output
    first, second = map(json.loads, done.stdout.splitlines())
    assert printed[1] - printed[0] >= 1.0
    assert [row["task_id"] for row in first] == ["甲"]
    assert "乙" in {row["task_id"] for row in second}
    timer.join()


def test_filters_are_those_of_the_server(api, mesh):
    mesh.pool("其他")
    with discovered(Target(name="mesh", namespace="space")) as gateway:
        stream = gateway.follow(QueryEvents(after=0, pool_name="其他", kinds=("pool_defined",)))
        (row,) = next(part.rows for part in stream if part.rows)
    assert (row["kind"], row["subject"]) == ("pool_defined", "其他")


@pytest.fixture
def impatient(monkeypatch):
    """It gives up after a number of attempts: time goes by only between two of them."""
    now = 0.0

    def sleep(seconds):
        nonlocal now
        now += seconds

    clock = SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    monkeypatch.setattr(following, "time", clock)


class Answers:
    """Answers to requests, one after the other; after the last one nobody answers."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def __call__(self, request):
        self.asked.append(request.after)
        answer = self.answers.pop(0) if self.answers else SchedulerUnavailableError("gone")
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_other_refusals_end_it(impatient):
    refused = RefusedError(Refused(reason=Reason.NOT_ALLOWED, error_text="not allowed"))
    with pytest.raises(RefusedError):
        next(by_requests(Answers(refused), QueryEvents()))


def facts(*cursors, gap=None):
    events = [{"cursor": cursor} for cursor in cursors]
    return {"events": events, "cursor": cursors[-1] if cursors else 4, "gap": gap}


def test_requests_go_on_after_the_supervisor_was_away(impatient):
    opening = Refused(reason=Reason.HISTORY_UNAVAILABLE, error_text="it is being opened")
    ask = Answers(
        facts(3, 4),
        SchedulerUnavailableError("away"),
        RefusedError(opening),
        facts(),
        facts(6, gap="removed"),
    )
    parts = []
    with pytest.raises(SchedulerUnavailableError, match="gone"):
        collect(by_requests(ask, QueryEvents(after=2)), parts)
    assert ask.asked[:6] == [2, 4, 4, 4, 4, 6]
    assert [row["cursor"] for part in parts for row in part.rows] == [3, 4, 6]
    assert [part.note for part in parts if part.note][:2] == [
        "away; waiting for it",
        "events after 4 are missing: the history does not keep them any more",
    ]


def collect(parts, found):
    """Append the parts to a list, which has them also where one raises."""
    for part in parts:
        found.append(part)  # extend would lose them


class Response:
    """A stream that brings these bytes, then ends."""

    def __init__(self, *parts):
        self.parts = list(parts)

    def read1(self, _size):
        return self.parts.pop(0) if self.parts else b""


def test_blocks_that_arrive_in_pieces_are_put_together_and_cut_off_ones_are_sent_again(impatient):
    event = b'id: 7\ndata: {"cursor": 7, "name": "\xe4\xb9\x99"}\n\n'
    streams = [
        Response(b"retry: 1000\n\n: heartbeat\nid: 6\n\n" + event[:20], event[20:] + b"id: 8\nda"),
        Response(b'event: gap\nid: 9\ndata: {"after": 7, "reason": "removed", "cursor": 9}\n\n'),
    ]
    asked, parts = [], []

    def connect(query):
        asked.append(query.after)
        if not streams:
            raise SchedulerNotFoundError("over")
        return contextlib.nullcontext(streams.pop(0))

    with pytest.raises(SchedulerNotFoundError):
        collect(by_stream(connect, QueryEvents(after=5)), parts)
    assert asked == [5, 7, 9]
    assert parts[:2] == [HEARTBEAT, Part([{"cursor": 7, "name": "乙"}])]
    assert any("events after 7 are missing" in part.note for part in parts)
