"""Which Ray is joined, in which order, and what is said of one that cannot be."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time

import pytest

from schedulemesh.core.client import ray_cluster
from schedulemesh.core.client.scheduler_list import list_schedulers
from schedulemesh.errors import InvalidRequestError, SchedulerNotFoundError
from schedulemesh.simple import SimpleScheduler


@pytest.fixture
def attempts(monkeypatch):
    """The addresses that are tried; those in ``living`` can be joined."""
    tried, living = [], set()

    def join(address, **_options):
        tried.append(address)
        if address not in living:
            raise ConnectionError("it is dead")
        return "10.0.0.1:6379"

    monkeypatch.setattr(ray_cluster, "join", join)
    monkeypatch.setattr(ray_cluster, "_start", lambda options: tried.append(("start", options)))
    return tried, living


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (None, ["auto", "start"]),
        ("", ["auto", "start"]),
        ("10.0.0.9:6379", ["10.0.0.9:6379", "auto", "start"]),
        ("auto", ["auto", "start"]),
        ("local", ["start"]),
    ],
)
def test_the_order_is_address_then_this_machine_then_a_new_one(
    monkeypatch, attempts, named, expected
):
    if named is None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    else:
        monkeypatch.setenv("RAY_ADDRESS", named)
    tried, _ = attempts
    assert ray_cluster.join_or_start({"num_cpus": 3})
    assert [one if isinstance(one, str) else one[0] for one in tried] == expected
    options = tried[-1][1]
    assert options.pop("namespace").startswith("job-")
    assert options == {"num_cpus": 3}


def test_what_failed_and_what_was_joined_is_logged(monkeypatch, attempts, caplog):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    attempts[1].add("auto")
    with caplog.at_level(logging.INFO):
        assert not ray_cluster.join_or_start({})
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "RAY_ADDRESS=10.0.0.9:6379 is not joined: it is dead"),
        ("INFO", "joined the Ray cluster at 10.0.0.1:6379 (the cluster on this machine)"),
    ]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://127.0.0.1:8265", "a web server, as that of Ray's dashboard is"),
        ("https://ray.example.com", "a web server"),
        ("ray://head:10001", "Ray Client, which is not supported"),
        ("redis://head:6379", "no address of a Ray cluster"),
    ],
)
def test_what_is_no_address_of_a_cluster_is_refused_at_once(monkeypatch, address, said):
    monkeypatch.setenv("RAY_ADDRESS", address)
    for joins in (
        lambda: ray_cluster.join_or_start({}),
        ray_cluster.join_running,
        lambda: ray_cluster.join(address),
        SimpleScheduler,
        SimpleScheduler.attach,
    ):
        with pytest.raises(
            InvalidRequestError, match=rf"{said}.*unset RAY_ADDRESS, or give.*host:6379"
        ):
            joins()
    with pytest.raises(SchedulerNotFoundError, match=said):
        list_schedulers(address)


def test_a_machine_without_ray_is_not_a_failure(monkeypatch, caplog):
    def join(_address, **_options):
        raise ray_cluster.NoRayHereError("no Ray runs on this machine")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_cluster, "join", join)
    monkeypatch.setattr(ray_cluster, "_start", lambda options: None)
    with caplog.at_level(logging.INFO):
        assert ray_cluster.join_or_start({})
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "no Ray runs on this machine yet; starting one")
    ]


def refusal(address):
    began = time.monotonic()
    with pytest.raises(ConnectionError) as raised:
        ray_cluster.join(address)
    assert time.monotonic() - began < 30.0, "it waited for Ray's own attempts, which take 40 s"
    told = str(raised.value)
    assert "\n" not in told
    return told


def test_a_dead_address_is_reported_at_once(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:2")
    assert "nothing answers at" in refusal("127.0.0.1:1")
    assert os.environ["RAY_ADDRESS"] == "127.0.0.1:2", "the user's environment is left alone"


@pytest.mark.parametrize("address", ["nonsense", "host:port", ":"])
def test_a_malformed_address_is_reported(address):
    told = refusal(address)
    assert "is no address of a Ray cluster" in told or "nothing answers" in told


def test_an_address_that_never_responds_is_given_up(monkeypatch):
    monkeypatch.setattr(ray_cluster, "ATTEMPT_S", ray_cluster._CONNECT_S + 0.3)
    with socket.socket() as listening:
        listening.bind(("0.0.0.0", 0))
        listening.listen()
        told = refusal(f"127.0.0.1:{listening.getsockname()[1]}")
    assert "does not answer as a Ray cluster" in told


def said(*lines):
    """What a program of these lines prints, in a process that has configured no logging."""
    begin = ["import logging", "from schedulemesh.core.client.console import show_log"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*begin, *lines])],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr.splitlines()


SAY = "logging.getLogger('schedulemesh.simple').info('joined')"


def test_the_log_is_seen_once_whatever_the_program_does_about_logging():
    assert said("show_log()", "show_log()", SAY) == ["[INFO] joined"]
    configured = "logging.basicConfig(level='INFO', format='%(message)s')"
    assert said(configured, "show_log()", SAY) == ["joined"]
    assert said("show_log()", configured, SAY) == ["joined"]
    silent = "logging.getLogger('schedulemesh').setLevel('ERROR')"
    assert said(silent, "show_log()", SAY) == []


def test_an_address_that_is_no_text_is_refused_whatever_it_is():
    nested = []
    for _ in range(5_000):
        nested = [nested]
    with pytest.raises(
        InvalidRequestError, match="address must be host:port, not a value of type list"
    ):
        list_schedulers(nested)
