"""Sending metrics: few messages, the newest first, and the last one always."""

from __future__ import annotations

import math
import queue
import threading
import time
from types import SimpleNamespace

import pytest
from ray.exceptions import RaySystemError

from schedulemesh.core.agent import metrics_sender
from schedulemesh.core.agent.metrics_sender import MetricsSender
from schedulemesh.protocol.agents import MetricsReport, unpack
from schedulemesh.protocol.metric_values import MAX_METRICS_BYTES, decode_metrics


class Supervisor:
    """Takes one message at a time, each when it is let."""

    def __init__(self):
        self.sent = queue.Queue()
        self.free = threading.Semaphore(0)
        self.failures = []

    def send(self, message):
        report = unpack(message, MetricsReport)
        assert (report.agent_name, report.incarnation) == ("a", 3)
        self.sent.put(decode_metrics(report.metrics))
        return self

    def wait(self):
        assert self.free.acquire(timeout=30)
        if self.failures:
            raise self.failures.pop()

    def next(self):
        return self.sent.get(timeout=30)


@pytest.fixture
def supervisor(monkeypatch):
    monkeypatch.setattr(metrics_sender, "_GAP_S", 0.001)
    monkeypatch.setattr(metrics_sender, "_GAP_FACTOR", 0)
    monkeypatch.setattr(metrics_sender, "_RETRY_S", 0.001)
    monkeypatch.setattr(metrics_sender.ray, "get", lambda ref: ref.wait())
    made = Supervisor()
    yield made
    made.free.release(1000)


@pytest.fixture
def sender(supervisor):
    return MetricsSender("a", 3, supervisor.send)


def report(sender, step, interval_s=0.0, *, at_once=False):
    return sender.report({"step": step}, interval_s, at_once=at_once)


def test_of_many_reports_the_first_and_the_last_are_sent(supervisor, sender):
    assert report(sender, 0)
    assert supervisor.next() == {"step": 0}
    for step in range(1, 1000):
        assert report(sender, step, at_once=True)
    assert supervisor.sent.empty(), "one message is under way at a time"
    supervisor.free.release()
    assert supervisor.next() == {"step": 999}


def test_a_report_within_the_interval_is_held_back_until_it_is_over(
    supervisor, sender, monkeypatch
):
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, sleep=time.sleep)
    monkeypatch.setattr(metrics_sender, "time", clock)
    supervisor.free.release(10)
    assert report(sender, 1, 60.0)
    assert supervisor.next() == {"step": 1}
    assert not report(sender, 2, 60.0)
    assert not report(sender, 3, 60.0)
    assert supervisor.sent.empty()
    now = 60.0
    with sender._changed:
        sender._changed.notify()
    assert supervisor.next() == {"step": 3}


def test_what_is_held_back_is_sent_by_itself(supervisor, sender):
    supervisor.free.release(10)
    began = time.monotonic()
    assert report(sender, 1, 0.2)
    assert supervisor.next() == {"step": 1}
    # On a busy machine the interval may be over by now.
    report(sender, 2, 0.2)
    assert supervisor.next() == {"step": 2}
    assert time.monotonic() - began >= 0.2


def test_one_at_once_is_not_held_back(supervisor, sender):
    supervisor.free.release(10)
    report(sender, 1, 3600.0)
    assert supervisor.next() == {"step": 1}
    assert not report(sender, 2, 3600.0)
    assert report(sender, 3, 3600.0, at_once=True)
    assert supervisor.next() == {"step": 3}
    assert not report(sender, 4, 3600.0), "an interval began with it"


def test_what_is_held_back_is_taken_by_who_sends_it_now_and_not_sent_again(supervisor, sender):
    def newest():
        return decode_metrics(unpack(sender.newest(), MetricsReport).metrics)

    assert sender.newest() is None
    supervisor.free.release(10)
    report(sender, 1, 3600.0)
    assert supervisor.next() == {"step": 1}
    report(sender, 2, 3600.0)
    assert newest() == {"step": 2}
    assert newest() == {"step": 2}, "it may not have arrived yet"
    report(sender, 3, at_once=True)
    assert supervisor.next() == {"step": 3}
    assert supervisor.sent.empty()


@pytest.mark.parametrize("error", [RaySystemError("gone"), ValueError("of nobody's making")])
def test_what_did_not_arrive_is_sent_again_unless_there_is_a_newer_one(supervisor, sender, error):
    supervisor.failures = [error, error]
    report(sender, 1)
    for _ in range(3):
        assert supervisor.next() == {"step": 1}
        supervisor.free.release()
    report(sender, 2)
    assert supervisor.next() == {"step": 2}


def test_a_new_supervisor_is_sent_the_last_report(supervisor, sender):
    supervisor.free.release(10)
    sender.send_again()
    report(sender, 1)
    assert supervisor.next() == {"step": 1}
    sender.send_again()
    assert supervisor.next() == {"step": 1}


def test_a_report_that_is_too_large_is_not_sent(supervisor, sender, caplog):
    assert not sender.report({"x": "y" * 9000, "z": ["y" * 9000] * 10}, 0.0, at_once=True)
    assert f"up to {MAX_METRICS_BYTES} bytes" in caplog.text
    supervisor.free.release()
    report(sender, 1)
    assert supervisor.next() == {"step": 1}


def test_a_report_costs_its_caller_microseconds(supervisor, sender):
    supervisor.free.release(1_000_000)
    best = math.inf
    metrics = {"step": 1, "loss": 0.5, "progress": 0.1}
    for _ in range(50):
        began = time.perf_counter()
        for _ in range(100):
            sender.report(metrics, 1.0, at_once=False)
        best = min(best, (time.perf_counter() - began) / 100)
    assert best < 20e-6
