"""Windows in a declaration: what apply, diff and export make of them."""

from __future__ import annotations

import json

import pytest
import yaml

from schedulemesh.cli import declared_windows
from schedulemesh.cli.exits import ExitCode
from schedulemesh.domain.resources import parse_resources
from schedulemesh.runtime.backend import NodeView

ROOM = parse_resources({"cpu": 8})
DECLARED = """
windows:
- name: 驱动
  start: "2090-01-01T00:00+01:00"
  duration: 4h
  node_labels: {rack: r1}
  comment: 更新
- name: demo
  start: 2090-01-02T09:00:30Z
  duration: 90m
  nodes: [gpu-8, gpu-7]
  repeat: weekly
  notice: 30m
  pools: [研究]
  labels: {team: a}
- {name: past, start: "2020-01-01T00:00Z", duration: 1h, all_nodes: true}
"""


@pytest.fixture
def nodes(scheduler):
    scheduler.pool()
    service = scheduler.connection.service
    service.backend.free = [
        NodeView(node_id=f"{host}-id", total=ROOM, free=ROOM, labels={"rack": rack}, host=host)
        for host, rack in (("gpu-7", "r1"), ("gpu-8", "r2"))
    ]
    service.do(service.running.monitor.observe())


@pytest.fixture
def declare(tmp_path):
    def written(text):
        path = tmp_path / "windows.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def results(run, file, *words):
    done = run("apply", "-f", file, "-o", "json", *words)
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)
    return {row["name"]: row["result"] for row in rows if row["kind"] == "window"}


def test_windows_are_created_once_and_one_that_is_over_is_no_error(nodes, run, declare):
    file = declare(DECLARED)
    missing = run("diff", "-f", file)
    assert (missing.exit_code, "past" in missing.stdout) == (1, False)
    assert results(run, file) == {"驱动": "created", "demo": "created", "past": "over"}
    assert results(run, file) == {"驱动": "unchanged", "demo": "unchanged", "past": "over"}
    same = run("diff", "-f", file)
    assert (same.exit_code, json.loads(run("diff", "-f", file, "-o", "json").stdout)) == (0, [])
    rows = {row["name"]: row for row in json.loads(run("windows", "-o", "json").stdout)}
    assert rows["demo"]["start"] == "2090-01-02T09:00:30+00:00"
    assert rows["demo"]["node_ids"] == ["gpu-7-id", "gpu-8-id"]
    assert (rows["驱动"]["duration_s"], rows["demo"]["notice_s"]) == (4 * 3600, 1800)


def test_what_differs_is_shown_and_replaced_and_the_rest_of_a_window_stays(nodes, run, declare):
    results(run, declare(DECLARED))
    file = declare("windows: [{name: demo, duration: 2h, all_nodes: true}]")
    rows = json.loads(run("diff", "-f", file, "-o", "json").stdout)
    assert [(row["field"], row["current"], row["declared"]) for row in rows] == [
        ("duration", 5400, 7200),
        ("all_nodes", False, True),
    ]
    assert results(run, file) == {"demo": "changed"}
    (demo, _) = json.loads(run("windows", "-o", "json", "--sort", "name").stdout)
    assert (demo["duration_s"], demo["nodes"], demo["repeat"]) == (7200, [], "weekly")
    assert (demo["pools"], demo["labels"]) == (["研究"], {"team": "a"})


def test_what_is_exported_is_what_is_applied(nodes, run, declare):
    results(run, declare(DECLARED))
    exported = run("export").stdout
    windows = {each["name"]: each for each in yaml.safe_load(exported)["windows"]}
    assert set(windows["驱动"]) == {"name", "start", "duration", "node_labels", "comment"}
    assert run("windows", "delete", "驱动", "demo").exit_code == 0
    file = declare(exported)
    assert results(run, file) == {"驱动": "created", "demo": "created"}
    assert run("diff", "-f", file).exit_code == 0
    assert yaml.safe_load(run("export").stdout) == yaml.safe_load(exported)


def test_prune_deletes_what_the_list_leaves_out(nodes, run, declare):
    results(run, declare(DECLARED))
    assert results(run, declare("pools: []")) == {}
    file = declare("windows: [{name: demo, comment: the board}]")
    assert results(run, file) == {"demo": "changed"}
    (row,) = json.loads(run("apply", "-f", file, "--prune", "--dry-run", "-o", "json").stdout)
    assert (row["kind"], row["name"], row["declared"]) == ("window", "驱动", "is deleted")
    assert results(run, file, "--prune") == {"demo": "unchanged", "驱动": "deleted"}


def test_prune_deletes_windows_of_amounts_and_leaves_those_that_are_named(nodes, run, declare):
    amount = "resources: {cpu: 8}, pools: [研究], repeat: weekly"
    when = "start: 2090-01-01T00:00Z, duration: 4h"
    both = f"windows: [{{name: a, {when}, {amount}}}, {{name: b, {when}, {amount}}}]"
    assert results(run, declare(both), "--prune") == {"a": "created", "b": "created"}
    rows = json.loads(run("windows", "-o", "json", "--sort", "name").stdout)
    assert [row["node_ids"] for row in rows] == [["gpu-7-id"], ["gpu-8-id"]]
    file = declare("windows: [{name: b, comment: the board}]")
    dry = json.loads(run("apply", "-f", file, "--prune", "--dry-run", "-o", "json").stdout)
    assert [row["declared"] for row in dry if row["name"] == "a"] == ["is deleted"]
    assert results(run, file, "--prune") == {"a": "deleted", "b": "changed"}
    (row,) = json.loads(run("windows", "-o", "json").stdout)
    assert (row["resources"], row["node_ids"]) == ({"cpu": 8.0}, ["gpu-8-id"])
    assert results(run, declare("windows: []"), "--prune") == {"b": "deleted"}
    assert json.loads(run("nodes", "-o", "json").stdout)[1]["window"] is None


@pytest.mark.parametrize(
    ("window", "error"),
    [
        (
            "{name: w, duration: 1h, all_nodes: true}",
            "window 'w' does not exist, so it needs start",
        ),
        ("{name: w, all_nodes: true}", "it needs start and duration"),
        ("{name: w, start: 2090-01-01T00:00:00, duration: 1h}", "the offset from UTC"),
        ("{name: w, start: tomorrow, duration: 1h}", "start is 'tomorrow'"),
        ('{name: w, start: "2090-01-01T00:00Z", duration: 1h}', "give one of the three"),
        ('{name: w, start: "2090-01-01T00:00Z", until: 1h}', "unknown field 'until'"),
        ('{name: w, start: "2090-01-01T00:00Z", durations: 1h}', "did you mean 'duration'?"),
        (
            '{name: w, start: "2090-01-01T00:00Z", duration: 1h, all_nodes: true, repeat: monthly}',
            "daily",
        ),
        ("{name: w, all_nodes: 3}", "all_nodes"),
        ("{start: 1}", "windows[0] must have a name"),
        ("[]", "windows[0] must have a name"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_changed(nodes, run, declare, window, error):
    file = declare(f"pools: [{{name: new, resources: {{cpu: 1}}}}]\nwindows: [{window}]")
    done = run("apply", "-f", file)
    assert (done.exit_code, error in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert "new" not in run("pools").stdout
    assert run("apply", "-f", file, "--dry-run").exit_code == 2


def test_an_unknown_node_is_refused(nodes, run, declare):
    file = declare('windows: [{name: w, start: "2090-01-01T00:00Z", duration: 1h, nodes: [gpu-9]}]')
    done = run("apply", "-f", file)
    assert (done.exit_code, "gpu-9" in done.stderr) == (ExitCode.NOT_FOUND, True)


def test_every_field_of_a_window_can_be_declared():
    declared = declared_windows.normal(dict.fromkeys(("repeat", "nodes", "labels", "comment")))
    assert declared == {"repeat": None, "nodes": [], "labels": {}, "comment": ""}
