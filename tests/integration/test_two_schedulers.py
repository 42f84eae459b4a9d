"""Two schedulers on the same nodes: each warns, and whoever names neither is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import ray

from schedulemesh import RayScheduler, SimpleScheduler
from schedulemesh.errors import InvalidRequestError
from tests.command_runner import run_command


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("SCHEDULEMESH_HOME", str(tmp_path))

    def invoke(*words):
        return run_command(words)

    return invoke


@pytest.fixture
def first(make_scheduler):
    return make_scheduler("first")


def warnings_in(text):
    return " ".join(text.split()).count("is a second one on the same nodes, beside 'first'")


def test_a_second_scheduler_is_warned_of_in_python(first, make_scheduler, caplog):
    assert warnings_in(caplog.text) == 0
    make_scheduler("second")
    assert warnings_in(caplog.text) == 1
    assert "while there are several, each must be named" in caplog.text


def test_a_second_scheduler_is_warned_of_on_the_command_line(first, namespace, tmp_path):
    words = ["start", "--name", "second", "--namespace", namespace, "--http", "off"]
    address = ["--address", ray.get_runtime_context().gcs_address]
    command = [sys.executable, "-m", "schedulemesh", *words, *address]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    try:
        assert done.returncode == 0, done.stderr
        assert "scheduler second is alive" in " ".join(done.stdout.replace("'", "").split())
        assert warnings_in(done.stderr) == 1
    finally:
        RayScheduler.attach("second", namespace=namespace).shutdown(force=True)


@pytest.fixture
def both(first, make_scheduler):
    return first, make_scheduler("second")


def test_each_of_two_schedulers_is_looked_at_by_its_name(both, namespace, run):
    for name, other in (("first", "second"), ("second", "first")):
        where = ("--name", name, "--namespace", namespace, "-o", "json")
        assert json.loads(run("status", *where).stdout)["name"] == name
        checks = {row["check"]: row for row in json.loads(run("doctor", *where).stdout)}
        assert checks["scheduler"]["status"] == "ok"
        assert checks["other schedulers"]["status"] == "warning"
        assert f"'{other}'" in checks["other schedulers"]["found"]
    rows = json.loads(run("list", "-o", "json").stdout)
    assert {row["name"] for row in rows if row["namespace"] == namespace} == {"first", "second"}


@pytest.mark.parametrize(
    "words",
    [("status",), ("queue",), ("cancel", "t"), ("stop", "--yes"), ("start",), ("tokens", "list")],
)
def test_a_command_that_names_neither_of_two_schedulers_does_nothing(both, namespace, run, words):
    done = run(*words, "--namespace", namespace)
    assert (done.exit_code, done.stdout) == (2, "")
    said = " ".join(done.stderr.split())
    assert "2 schedulers live in this Ray cluster: 'first'" in said
    assert f"'second' (namespace '{namespace}')" in said
    assert "name the one that is meant" in said
    assert {row["name"] for row in RayScheduler.list()["schedulers"]} >= {"first", "second"}


def test_doctor_without_a_name_fails_and_names_both_schedulers(both, namespace, run):
    done = run("doctor", "--namespace", namespace, "-o", "json")
    assert done.exit_code == 1
    (check,) = [row for row in json.loads(done.stdout) if row["check"] == "scheduler"]
    assert check["status"] == "failed"
    assert "'first'" in check["found"]
    assert "'second'" in check["found"]


@pytest.mark.parametrize("made", [RayScheduler, RayScheduler.attach, SimpleScheduler])
def test_python_that_names_neither_of_two_schedulers_is_refused(both, namespace, made):
    with pytest.raises(InvalidRequestError, match=r"2 schedulers live.*'first'.*'second'"):
        made(namespace=namespace)
