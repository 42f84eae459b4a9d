"""The commands about waiting tasks: a table that fits 80 columns, and a request for each task."""

from __future__ import annotations

import json

import pytest
from rich.cells import cell_len

from schedulemesh.cli.command import Output
from schedulemesh.cli.output import emit
from schedulemesh.cli.queue import queue_listing
from schedulemesh.domain.resources import NOTHING, parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.protocol.answers import QueueListed, QueueRow, decode_answer, encode_answer
from tests.counted_calls import calls_of


@pytest.fixture
def waiting(scheduler):
    """Two tasks wait behind one that runs, and that they may not evict."""
    scheduler.pool(cpu=1)
    scheduler.submit("running", priority=50.0)
    for name in ("甲", "b"):
        scheduler.submit(name, queue=True)
    return scheduler


def order(run):
    return run("queue", "-o", "name").stdout.split()


def test_the_queue_is_a_table_and_says_what_it_leaves_out(waiting, run):
    done = run("queue", "--pool", "研究", "--limit", "1")
    assert done.exit_code == 0
    assert "研究" in done.stdout
    assert "甲" in done.stdout
    assert done.stderr == "1 of 2 tasks are shown; --limit 0 shows all, --after 1 the next ones\n"
    following = run("queue", "--limit", "1", "--after", "1", "-o", "name")
    assert following.stdout.split() == ["b"]
    assert "0 of 2 tasks are shown\n" in run("queue", "--limit", "1", "--after", "2").stderr
    assert run("queue", "--limit", "0").stderr == ""
    assert order(run) == ["甲", "b"]
    assert run("queue", "--pool", "nowhere").exit_code == 3


def test_each_task_is_held_and_released(waiting, run):
    done = run("hold", "甲", "b")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split() == ["甲", "held"]
    assert run("queue", "-f", "held=yes", "-o", "name").stdout.split() == ["甲", "b"]
    run("release", "甲")
    assert run("queue", "-f", "held=yes", "-o", "name").stdout.split() == ["b"]


def test_the_order_is_changed(waiting, run):
    assert run("front", "b").exit_code == 0
    assert order(run) == ["b", "甲"]
    assert run("priority", "甲", "7.5").exit_code == 0
    rows = json.loads(run("queue", "-o", "json").stdout)
    assert {row["task_id"]: row["priority"] for row in rows} == {"b": 5.0, "甲": 7.5}
    assert run("priority", "甲", "-2").exit_code == 0
    rows = json.loads(run("queue", "-o", "json").stdout)
    assert {row["task_id"]: row["priority"] for row in rows} == {"b": 5.0, "甲": -2.0}
    assert run("priority", "甲", "--unknown").exit_code == 2


def test_a_refusal_is_an_exit_code_and_the_others_are_changed(waiting, run):
    done = run("hold", "running", "b", "-o", "json")
    assert done.exit_code == 6
    assert "running" in done.stderr
    assert json.loads(done.stdout) == [
        {"name": "running", "result": "refused: not_queued"},
        {"name": "b", "result": "held"},
    ]
    assert run("release", "gone").exit_code == 3


def test_each_row_says_what_the_task_asks_for_and_why_it_waits(waiting, run):
    run("hold", "b")
    rows = {row["task_id"]: row for row in json.loads(run("queue", "-o", "json").stdout)}
    assert rows["甲"]["resources"] == {"cpu": 1.0}
    assert (rows["甲"]["reason"], rows["甲"]["short"]) == ("insufficient_quota", {"cpu": 1.0})
    assert (rows["b"]["reason"], rows["b"]["short"]) == ("held_by_user", {})
    table = run("queue").stdout
    assert table.splitlines()[0].split() == [
        "pool",
        "#",
        "task",
        "owner",
        "prio",
        "asks",
        "waits",
        "reason",
    ]
    assert "insufficient_quota" in table
    assert "cpu 1 short" in table
    for listing in (waiting.calls.list_queue()["tasks"], waiting.calls.list_tasks()["tasks"]):
        assert {t["task_id"]: t["reason"] for t in listing if "reason" in t} == {
            "甲": "insufficient_quota",
            "b": "held_by_user",
        }
    assert "held_by_user" in run("top", "--count", "1").stdout


def test_the_queue_is_filtered_and_sorted_by_reason(waiting, run):
    run("hold", "b")
    assert run("queue", "-f", "reason=held_by_user", "-o", "name").stdout.split() == ["b"]
    assert run("queue", "--sort", "reason", "-o", "name").stdout.split() == ["b", "甲"]
    assert run("queue", "--sort", "-reason", "-o", "name").stdout.split() == ["甲", "b"]
    assert run("queue", "--sort", "raeson").exit_code == 2


def test_the_table_fits_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    row = {
        "task_id": "a-training-with-a-very-long-name-0123456789",
        "pool_name": "一个名字很长的资源池",
        "owner": "somebody-with-a-long-name",
        "priority": -123456.5,
        "position": 14_999,
        "resources": {"cpu": 1024.0, "memory": 1_048_576.0, "gpu": 128.0},
        "reason": "cluster_out_of_resources",
        "short": {"gpu": 120.0},
        "waiting_time": 1e6,
        "preemptions": 12,
        "cannot_start": "",
    }
    emit(queue_listing([row]), Output())
    text = capsys.readouterr().out
    assert max(map(cell_len, text.splitlines())) <= 80
    for part in ("14999", "-123456", "11d13h", "cluster_out_of_resources", "gpu 120 short", "12x"):
        assert part in text, text


def test_no_amount_that_is_short_is_broken_however_narrow_the_table_is(monkeypatch, capsys):
    row = {
        "pool_name": "training",
        "task_id": "pretrain",
        "owner": "ada",
        "priority": 5.0,
        "position": 1,
        "resources": {"cpu": 16.0, "memory": 65_536.0, "gpu": 8.0},
        "reason": "insufficient_quota",
        "short": {"cpu": 2.0, "gpu": 4.0},
        "waiting_time": 3_600.0,
        "preemptions": 1,
        "cannot_start": "",
    }
    rows = [row, {**row, "short": {"cpu": 2.0}, "preemptions": 0}]
    broken = []
    for width in range(50, 140):
        monkeypatch.setenv("COLUMNS", str(width))
        emit(queue_listing(rows), Output())
        lines = capsys.readouterr().out.splitlines()
        broken += [(width, line) for line in lines if line.endswith(("cpu", "gpu"))]
    assert broken == []


def test_a_wide_table_shows_how_long_tasks_run(scheduler, run):
    scheduler.pool(cpu=1)
    for number in range(3):
        scheduler.submit(f"train-{number}")
        assert scheduler.calls.complete_task(f"train-{number}", end_agent=True)["success"]
    scheduler.submit("running")
    scheduler.submit("train-3", queue=True)
    scheduler.submit("declared", queue=True, estimated_duration=60.0)
    shown = run("queue", "-o", "wide", width=250).stdout
    lines = {line.split()[2]: line for line in shown.splitlines()[1:]}
    assert "~0s" in lines["train-3"]
    assert " 1m00s" in lines["declared"]


def test_a_class_is_given_in_place_of_a_number_and_a_running_task_is_changed(scheduler, run):
    scheduler.pool(cpu=1)
    scheduler.submit("runs", priority="normal")
    scheduler.submit("waits", priority="low", queue=True)
    assert run("priority", "waits", "background").exit_code == 0
    assert run("priority", "runs", "critical").exit_code == 0
    rows = json.loads(run("tasks", "-o", "json").stdout)
    found = {row["task_id"]: (row["priority"], row["priority_class"]) for row in rows}
    assert found == {"runs": (10.0, "critical"), "waits": (0.1, "background")}
    assert run("priority", "runs", "-2.5").exit_code == 0
    events = json.loads(run("events", "--task", "runs", "-o", "json").stdout)
    changes = [event["detail"] for event in events if event["kind"] == "priority_changed"]
    assert changes == [{"before": 1.0, "priority": 10.0}, {"before": 10.0, "priority": -2.5}]
    refused = run("priority", "runs", "hihg")
    assert refused.exit_code == 2
    assert "did you mean 'high'?" in " ".join(refused.output.split())


def test_in_a_narrow_terminal_columns_are_left_out_rather_than_each_word_broken(scheduler, run):
    scheduler.pool("research")
    scheduler.submit("train-1", "research", cpu=4)
    scheduler.submit("train-2", "research", cpu=4, queue=True)
    done = run("queue", width=40)
    assert max(map(len, done.stdout.splitlines())) <= 40
    assert {"research", "train-", "insufficient_quota,"} <= set(done.stdout.split())
    assert "not shown, for the width of the terminal: waits, owner, prio, asks" in done.stderr


def queue_rows(count):
    """Tasks that wait: they ask for one of three sizes, and few reasons keep them."""
    sizes = [parse_resources({"cpu": 1}), parse_resources({"gpu": 4, "custom": {"加速器": 2}})]
    return [
        QueueRow(
            task=TaskSpec(task_id=f"t-{number}", pool_name="研究", owner="ann", priority=5.0),
            agent_name=f"a-{number}",
            position=number + 1,
            waiting_s=float(number),
            queued_at=0.0,
            arrived_at=0.0,
            resources=sizes[number % 2],
            reason=("insufficient_quota", "held_by_user")[number % 3 == 0],
            short=(sizes[0], NOTHING)[number % 3 == 0],
            preemptions=number % 2,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("count", [3, 1500])
def test_a_table_of_short_rows_is_that_of_whole_ones(count, capsys):
    rows = queue_rows(count)
    emit(queue_listing([row.public() for row in rows]), Output())
    whole = capsys.readouterr()
    emit(queue_listing([row.in_short() for row in rows]), Output())
    assert capsys.readouterr() == whole
    assert whole.out.count("\n") >= count + 1


def test_each_row_of_a_long_table_costs_few_calls(capsys):
    """Ten thousand of them are printed in a fraction of a second."""
    data = encode_answer(QueueListed(rows=queue_rows(2000), total=2000))

    def printed():
        answer = decode_answer(data, QueueListed)
        emit(queue_listing([row.in_short() for row in answer.rows]), Output())

    printed()  # what is the same for all commands is done once
    calls = calls_of(printed)[1] / 2000
    assert calls < 30
    assert len(capsys.readouterr().out.splitlines()) == 2 * 2001
