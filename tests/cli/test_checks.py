"""What the command doctor finds wrong, and what it advises."""

from __future__ import annotations

import json
import shutil
import socket
from types import SimpleNamespace

import pytest
import ray

from schedulemesh.cli import checks, ray_gateway


@pytest.mark.parametrize(
    ("version", "fits"),
    [("2.60.0", True), ("2.60.9", True), ("2.61.0", False), ("2.59.3", False), ("3.0", False)],
)
def test_versions_are_compared_with_the_requirement(version, fits):
    assert checks._is_in_range(version, "ray[default]<2.61,>=2.60") is fits


@pytest.mark.parametrize(("free", "status"), [(100, "ok"), (1, "failed")])
def test_a_full_disk_is_a_failure(monkeypatch, tmp_path, free, status):
    gib = 2**30
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: SimpleNamespace(total=200 * gib, free=free * gib)
    )
    row = checks._disk(str(tmp_path))
    assert (row["status"], bool(str(row["advice"]))) == (status, status != "ok")


def test_a_folder_that_is_missing_is_a_warning(tmp_path):
    assert checks._disk(str(tmp_path / "none"))["status"] == "warning"


@pytest.mark.parametrize(
    ("theirs", "status", "words"),
    [(1000.5, "ok", "0.00 s"), (1010.0, "warning", "ahead"), (990.0, "warning", "behind")],
)
def test_clocks_are_compared_at_the_middle_of_the_answer(theirs, status, words):
    row = checks._clock(theirs, 1000.0, 1.0)
    assert row["status"] == status
    assert words in str(row["found"])


class Context:
    """The Ray context of a process on node ``here``."""

    def get_node_id(self):
        return "here"


@pytest.fixture
def on_this_node(monkeypatch):
    monkeypatch.setattr(ray, "get_runtime_context", Context)


def test_a_journal_that_is_gone_is_a_failure(on_this_node, tmp_path):
    gone = {"journal": str(tmp_path / "j.sqlite"), "node_id": "here"}
    (row,) = checks._journal(gone)
    assert (row["status"], "restore" in str(row["advice"])) == ("failed", True)
    (tmp_path / "j.sqlite").write_bytes(b"x" * 2**20)
    journal, disk = checks._journal(gone)
    assert (journal["status"], str(disk["check"])) == ("ok", f"disk at {tmp_path}")
    assert "1.0 MiB" in str(journal["found"])


def test_a_journal_elsewhere_is_not_looked_at(on_this_node):
    for about in (
        {"journal": "/nowhere/j.sqlite", "node_id": "there"},
        {"journal": "postgresql://host/db", "node_id": "here"},
    ):
        (row,) = checks._journal(about)
        assert row["status"] == "ok"


def test_a_port_that_does_not_answer_is_a_warning():
    assert checks._http(None)["status"] == "ok"
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert checks._http(url) == {
            "check": "HTTP API",
            "status": "ok",
            "found": url,
            "advice": "",
        }
    assert checks._http(url)["status"] == "warning"


def test_without_ray_the_other_checks_are_made_and_the_command_fails(monkeypatch, run):
    def refuse(address, **_options):
        raise ConnectionError("no Ray runs on this machine")

    monkeypatch.setattr(ray_gateway, "join", refuse)
    done = run("doctor", "-o", "json")
    assert done.exit_code == 1
    found = {row["check"]: row for row in json.loads(done.stdout)}
    assert found["ScheduleMesh"]["status"] == "ok"
    assert found["Ray"]["status"] == "failed"
    assert found["Ray"]["advice"]


def test_checks_are_in_chinese_where_that_is_asked_for(monkeypatch, run):
    rows = [*checks._versions(), checks._disk("/nowhere"), checks._clock(990.0, 1000.0, 1.0)]
    monkeypatch.setattr(checks, "examined", lambda _target: rows)
    output = run("doctor", "--lang", "zh").stdout
    for words in ("磁盘 /nowhere", "请创建", "时钟", "比本机慢 10.50 秒"):
        assert words in output
    assert run("doctor", "-o", "json").stdout.isascii()
