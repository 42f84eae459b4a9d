"""Attempts as traces: their spans, what a collector receives, and what it misses when it is away."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from schedulemesh.config.settings import HistorySettings
from schedulemesh.config.traces import TraceSettings
from schedulemesh.errors import InvalidRequestError
from schedulemesh.runtime import supervisor
from schedulemesh.runtime.services import traces
from schedulemesh.runtime.traces import collector as traces_module
from schedulemesh.runtime.traces.spans import Reception, spans_of
from schedulemesh.version import VERSION
from tests.runtime.composition import InThread
from tests.runtime.test_history import make_pool, run_task

ATTEMPT = {
    "cursor": 7,
    "task_id": "train-1",
    "attempt": 2,
    "agent_name": "train-1",
    "pool_name": "research",
    "owner": "ann",
    "priority": 5.0,
    "labels": {"project": "chat"},
    "gpu": 8.0,
    "cpu": 0.0,
    "memory_mb": 0.0,
    "submitted_at": 50.0,
    "queued_at": 100.0,
    "admitted_at": 160.0,
    "started_at": 170.0,
    "evicted_at": 900.0,
    "ended_at": 930.0,
    "state": "preempted",
    "reason": "cross_pool_preemption",
    "rule": "cross_pool_preemption",
    "error": "",
    "by_task": "urgent",
    "by_pool": "prod",
    "lost_s": 30.0,
}


def test_an_attempt_is_a_span_with_one_for_each_phase():
    whole, *phases = spans_of(ATTEMPT, "default/head")
    assert (whole.name, whole.parent_id, whole.start, whole.end) == ("train-1", None, 100.0, 930.0)
    assert [(each.name, each.start, each.end) for each in phases] == [
        ("queued", 100.0, 160.0),
        ("starting", 160.0, 170.0),
        ("running", 170.0, 900.0),
        ("preempting", 900.0, 930.0),
    ]
    assert {each.parent_id for each in phases} == {whole.span_id}
    assert {each.trace_id for each in phases} == {whole.trace_id}
    assert whole.attributes["schedulemesh.by_task"] == "urgent"
    assert whole.attributes["schedulemesh.label.project"] == "chat"
    assert "schedulemesh.reason" in whole.attributes
    assert whole.error == ""


def test_attempts_of_a_task_are_one_trace_and_those_of_a_later_task_of_the_id_another():
    first = spans_of(ATTEMPT, "default/head")[0]
    again = spans_of({**ATTEMPT, "cursor": 9}, "default/head")[0]
    later = spans_of({**ATTEMPT, "cursor": 12, "submitted_at": 5000.0}, "default/head")[0]
    assert first.trace_id == again.trace_id != later.trace_id
    assert len({first.span_id, again.span_id, later.span_id}) == 3
    assert spans_of(ATTEMPT, "default/head")[0] == first


def test_an_attempt_that_never_started_has_waited_only():
    given = {**ATTEMPT, "admitted_at": None, "started_at": None, "evicted_at": None}
    failed = {**given, "state": "failed", "error": "it could never fit"}
    whole, queued = spans_of(failed, "default/head")
    assert (queued.name, queued.end, whole.error) == ("queued", 930.0, "it could never fit")
    assert spans_of({**given, "queued_at": None}, "default/head") == []


@pytest.mark.parametrize("endpoint", ["collector:4318", "", 5, "ftp://x/y", "http://"])
def test_what_is_no_address_is_refused(endpoint):
    with pytest.raises(InvalidRequestError, match="it must be the address"):
        TraceSettings(endpoint=endpoint)
    with pytest.raises(InvalidRequestError, match="collector"):
        HistorySettings(traces=endpoint or 5)


class Collector:
    """An OpenTelemetry collector that accepts as it is told."""

    def __init__(self):
        self.spans, self.headers, self.scopes, self.status = [], [], set(), 200
        #: Whether a span is one that it does not take.
        self.refuses = lambda _span: False
        self.asked = threading.Semaphore(0)
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    data = gzip.decompress(data)
                self.send_response(collector.take(dict(self.headers), data))
                self.end_headers()
                collector.asked.release()

            def log_message(self, *_):
                """Nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, headers, data):
        if self.status != 200:
            return self.status
        self.headers.append(headers)
        request = ExportTraceServiceRequest.FromString(data)
        if any(self.refuses(span) for span in _spans(request)):
            return 400
        self.spans += _spans(request)
        self.scopes |= {
            (scope.scope.name, scope.scope.version)
            for resource in request.resource_spans
            for scope in resource.scope_spans
        }
        return 200

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def _spans(request):
    return [
        span
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def begin(tmp_path, collector, monkeypatch):
    """Begins a supervisor that sends traces; it is ended before the next."""
    monkeypatch.setenv("TRACE_HEADERS", "authorization=secret, x-team = gpu")
    # The tests take its rounds.
    monkeypatch.setattr(supervisor, "traces_of", lambda _running: None)
    begun = []

    def begin():
        end()
        settings = TraceSettings(endpoint=collector.url, headers_env="TRACE_HEADERS", timeout_s=2.0)
        mesh = InThread(tmp_path / "j.sqlite", history=HistorySettings(traces=settings))
        begun.append(mesh)
        return mesh

    def end():
        if begun:
            begun.pop().close()

    yield begin
    end()


def round_of(mesh, made=None):
    made = made or traces.traces_of(mesh.running)
    mesh.do(mesh.running.history.caught_up(25.0))
    mesh.do(made.round())
    return made


def names(collector):
    return [span.name for span in collector.spans]


def test_a_collector_receives_what_has_ended_once(begin, collector):
    mesh = begin()
    make_pool(mesh)
    sending = round_of(mesh)
    run_task(mesh, "t1")
    round_of(mesh, sending)
    round_of(mesh, sending)
    assert names(collector).count("t1") == 1
    whole = next(span for span in collector.spans if span.name == "t1")
    assert whole.parent_span_id == b""
    running = next(span for span in collector.spans if span.name == "running")
    assert (running.parent_span_id, running.trace_id) == (whole.span_id, whole.trace_id)
    assert collector.headers[0]["authorization"] == "secret"
    assert collector.headers[0]["x-team"] == "gpu"
    assert collector.scopes == {("schedulemesh", VERSION)}


def test_a_restarted_supervisor_sends_what_has_ended_meanwhile(begin, collector):
    mesh = begin()
    make_pool(mesh)
    round_of(mesh)
    run_task(mesh, "t1")
    round_of(begin())
    assert names(collector).count("t1") == 1


def test_what_a_collector_does_not_take_is_sent_again_after_a_while(begin, collector, monkeypatch):
    mesh = begin()
    make_pool(mesh)
    sending = round_of(mesh)
    collector.status = 403
    run_task(mesh, "t1")
    round_of(mesh, sending)
    assert collector.asked.acquire(timeout=30)
    collector.status = 200
    round_of(mesh, sending)
    assert names(collector) == []
    monkeypatch.setattr(sending, "_not_before", 0.0)
    round_of(mesh, sending)
    assert names(collector).count("t1") == 1


def test_an_attempt_that_a_collector_refuses_does_not_keep_back_the_others(
    begin, collector, caplog
):
    """Status 400: by the protocol it is not sent again."""
    mesh = begin()
    make_pool(mesh)
    sending = round_of(mesh)
    collector.refuses = lambda span: span.name == "t2"
    for task_id in ("t1", "t2", "t3"):
        run_task(mesh, task_id)
    round_of(mesh, sending)
    assert [name for name in names(collector) if name in ("t1", "t2", "t3")] == ["t1", "t3"]
    assert "the collector refuses the trace of an attempt of t2" in caplog.text
    collector.refuses = lambda _span: False
    round_of(mesh, sending)
    assert "t2" not in names(collector)


def test_texts_that_are_no_utf_8_are_sent_with_escapes(collector):
    settings = TraceSettings(endpoint=collector.url)
    failed = {**ATTEMPT, "state": "failed", "error": "\ud800", "owner": "\udfff"}
    sender = traces_module.Collector(settings, "mesh", "space")
    assert sender.send(spans_of(failed, "default/head")) is Reception.TAKEN
    assert collector.spans[0].status.message == r"\ud800"
