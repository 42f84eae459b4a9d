"""The command windows: announced, listed, shown beside nodes and deleted."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone

import pytest
from rich.cells import cell_len

from schedulemesh.cli.exits import ExitCode
from schedulemesh.domain.resources import parse_resources
from schedulemesh.runtime.backend import NodeView

ROOM = parse_resources({"cpu": 8})
WHEN = ("--start", "2090-01-01T00:00+01:00", "--duration", "4h")


@pytest.fixture
def nodes(scheduler):
    service = scheduler.connection.service
    service.backend.free = [
        NodeView(node_id=f"{host}-id", total=ROOM, free=ROOM, labels={"rack": rack}, host=host)
        for host, rack in (("gpu-7", "r1"), ("gpu-8", "r2"))
    ]
    service.do(service.running.monitor.observe())


def listed(run, *words):
    return json.loads(run(*words, "-o", "json").stdout)


def at(seconds_from_now):
    """A time as the command takes it."""
    return datetime.fromtimestamp(time.time() + seconds_from_now, timezone.utc).isoformat(
        timespec="seconds"
    )


def test_a_window_is_announced_listed_and_deleted(nodes, run):
    done = run("windows", "create", "更新", *WHEN, "--node-label", "rack=r1", "--comment", "驱动")
    assert (done.exit_code, done.stdout.splitlines()[1].split()) == (0, ["更新", "created"])
    (row,) = listed(run, "windows")
    assert row["start"] == "2090-01-01T00:00+01:00"
    assert (row["node_labels"], row["node_ids"], row["open"]) == (
        {"rack": "r1"},
        ["gpu-7-id"],
        False,
    )
    assert row["next_end"] - row["next_start"] == row["duration_s"] == 4 * 3600
    table = run("windows").stdout
    assert all(cell_len(line) <= 80 for line in table.splitlines())
    assert "rack=r1 (1)" in table
    again = run("windows", "create", "更新", *WHEN, "--node-label", "rack=r1", "--comment", "驱动")
    assert again.stdout.splitlines()[1].split() == ["更新", "unchanged"]
    other = run("windows", "create", "更新", *WHEN, "--all-nodes")
    assert other.exit_code == ExitCode.CONFLICT
    assert "replace or delete it" in other.stderr
    other = run("windows", "create", "更新", *WHEN, "--all-nodes", "--replace")
    assert other.stdout.splitlines()[1].split() == ["更新", "changed"]
    assert len(listed(run, "windows")[0]["node_ids"]) == 2
    assert "all (2)" in run("windows", width=120).stdout
    assert run("windows", "delete", "更新").exit_code == 0
    assert listed(run, "windows") == []
    assert run("windows", "delete", "更新").exit_code == ExitCode.NOT_FOUND


def test_nodes_are_named_as_everywhere(nodes, run):
    assert run("windows", "create", "w", *WHEN, "--node", "gpu-8").exit_code == 0
    assert listed(run, "windows")[0]["nodes"] == ["gpu-8-id"]
    unknown = run("windows", "create", "v", *WHEN, "--node", "gpu-8", "--node", "gpu-9")
    assert unknown.exit_code == ExitCode.NOT_FOUND
    assert "there is no node 'gpu-9'" in unknown.stderr
    assert [row["window"] for row in listed(run, "nodes")] == [None, "w"]
    assert "window" in run("nodes", width=200).stdout.splitlines()[0]


def test_without_windows_the_table_of_nodes_has_no_column_for_them(nodes, run):
    assert "window" not in run("nodes", width=200).stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--start", "2090-01-01", "--duration", "4h", "--all-nodes"),
        ("--start", "tomorrow", "--duration", "4h", "--all-nodes"),
        (*WHEN,),
        (*WHEN, "--all-nodes", "--node", "gpu-7"),
        (*WHEN, "--all-nodes", "--repeat", "yearly"),
        (*WHEN, "--node-label", "rack"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_happens(nodes, run, words):
    assert run("windows", "create", "w", *words).exit_code == ExitCode.USAGE
    assert listed(run, "windows") == []


def test_what_waits_for_an_open_window_is_explained_and_starts_after_it(nodes, scheduler, run):
    scheduler.pool(cpu=16)
    run("windows", "create", "w", "--start", at(-60), "--duration", "4h", "--all-nodes")
    assert all(row["draining"] and row["in_window"] for row in listed(run, "nodes"))
    scheduler.submit("训练", queue=True)
    explained = listed(run, "explain", "训练")
    assert explained["reason"] == "maintenance_window"
    assert "维护窗口" in run("explain", "训练", "--lang", "zh").stdout
    assert listed(run, "queue")[0]["reason"] == "maintenance_window"
    refused = run("undrain", "gpu-7")
    assert refused.exit_code == ExitCode.CONFLICT
    assert "windows delete" in refused.stderr
    run("windows", "delete", "w")
    assert not any(row["draining"] for row in listed(run, "nodes"))
    events = [row["kind"] for row in listed(run, "events", "--limit", "100")]
    assert {"window_created", "window_ended", "drain_started", "drain_ended"} <= set(events)
    calls = [row["call"] for row in listed(run, "audit")]
    assert {"create_window", "delete_window"} <= set(calls)


def test_nodes_are_reserved_for_a_pool(nodes, scheduler, run):
    scheduler.pool(cpu=16)
    scheduler.pool("演示", cpu=16)
    words = ("--start", at(-60), "--duration", "4h", "--all-nodes", "--for-pool", "演示")
    assert run("windows", "create", "w", *words, "--for-label", "team=x").exit_code == 0
    (row,) = listed(run, "windows")
    assert (row["pools"], row["owners"], row["labels"]) == (["演示"], [], {"team": "x"})
    assert "演示, team=x" in run("windows", width=120).stdout
    assert not any(node["draining"] for node in listed(run, "nodes"))
    assert all(node["window_reserves"] for node in listed(run, "nodes"))
    scheduler.submit("别人", queue=True)
    assert listed(run, "queue")[0]["reason"] == "node_reserved"
    assert "预留" in run("explain", "别人", "--lang", "zh").stdout
    scheduler.submit("演示任务", "演示")
    scheduler.submit("同一个团队", labels={"team": "x"})


def test_an_amount_is_reserved_on_nodes_that_are_chosen(nodes, scheduler, run):
    scheduler.pool("demo", cpu=16)
    words = ("windows", "create", "w", *WHEN, "--for-pool", "demo")
    assert run(*words, "--cpus", "8", "--node-label", "rack=r2").exit_code == 0
    (row,) = listed(run, "windows")
    assert (row["resources"], row["node_labels"], row["node_ids"], row["short"]) == (
        {"cpu": 8.0},
        {"rack": "r2"},
        ["gpu-8-id"],
        {},
    )
    assert "cpu 8 (gpu-8-id)" in run("windows", width=160).stdout
    assert [node["window"] for node in listed(run, "nodes")] == [None, "w"]
    assert run(*words, "--cpus", "24", "--replace").exit_code == 0
    (row,) = listed(run, "windows")
    assert (len(row["node_ids"]), row["short"]) == (2, {"cpu": 8.0})
    assert "cpu 8" in run("windows", "-o", "wide", width=200).stdout.splitlines()[1]
    events = [
        e for e in listed(run, "events", "--limit", "100") if e["kind"] == "window_nodes_chosen"
    ]
    assert [len(each["detail"]["nodes"]) for each in events] in ([1, 2], [2, 1])


@pytest.mark.parametrize(
    "words",
    [
        ("--gpus", "8"),
        ("--gpus", "8", "--all-nodes", "--for-owner", "ada"),
        ("--gpus", "8", "--cpus", "8", "--for-owner", "ada"),
        ("--gpus", "0", "--for-owner", "ada"),
        ("--gpus", "1.5", "--for-owner", "ada"),
    ],
)
def test_an_amount_that_makes_no_sense_is_refused(nodes, run, words):
    assert run("windows", "create", "w", *WHEN, *words).exit_code == ExitCode.USAGE
    assert listed(run, "windows") == []


def test_an_amount_is_declared_in_a_file(nodes, scheduler, run, tmp_path):
    scheduler.pool("demo", cpu=16)
    path = tmp_path / "windows.yaml"
    window = (
        "{name: w, start: '2090-01-01T00:00Z', duration: 4h, resources: {cpu: 8}, pools: [demo]"
    )
    path.write_text(f"windows:\n  - {window}, node_labels: {{rack: r1}}}}\n")
    assert run("apply", "-f", str(path)).exit_code == 0
    assert run("diff", "-f", str(path)).exit_code == 0
    exported = run("export").stdout
    assert "resources:\n    cpu: 8.0" in exported
    (row,) = listed(run, "windows")
    assert (row["resources"], row["node_labels"]) == ({"cpu": 8.0}, {"rack": "r1"})
    path.write_text(f"windows:\n  - {window}}}\n")
    assert run("apply", "-f", str(path)).exit_code == 0
    (row,) = listed(run, "windows")
    assert (row["resources"], row["node_labels"]) == ({"cpu": 8.0}, {})
    saved = tmp_path / "saved.yaml"
    saved.write_text(exported)
    assert run("apply", "-f", str(saved)).exit_code == 0
    assert listed(run, "windows")[0]["node_labels"] == {"rack": "r1"}
