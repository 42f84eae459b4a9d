"""Own priority classes of the policy on the command line: wherever a number is."""

from __future__ import annotations

import json

import pytest

from schedulemesh.cli.exits import ExitCode


@pytest.fixture
def classes(scheduler, run):
    scheduler.pool(cpu=1)
    done = run("policy", "set", "priority_classes={urgent: 8, 夜间: 0.3}")
    assert done.exit_code == 0, done.stderr


def listed(run, *words):
    return json.loads(run(*words, "-o", "json").stdout)


def test_a_task_has_an_own_class_and_listings_show_it(classes, scheduler, run):
    scheduler.submit("t", queue=True, priority="urgent")
    scheduler.submit("w", queue=True, priority="夜间")
    rows = {row["task_id"]: row for row in [*listed(run, "tasks"), *listed(run, "queue")]}
    assert {name: (row["priority"], row["priority_class"]) for name, row in rows.items()} == {
        "t": (8.0, "urgent"),
        "w": (0.3, "夜间"),
    }
    assert run("priority", "w", "urgent").exit_code == 0
    assert listed(run, "queue")[0]["priority_class"] == "urgent"
    order = {each["factor"]: each for each in listed(run, "explain", "--order", "w")["order"]}
    assert "urgent" in order["priority"]["detail"]


def test_pools_tokens_and_questions_take_own_classes(classes, scheduler, run):
    done = run("pools", "set", "研究", "max_priority=urgent")
    assert done.exit_code == 0, done.stderr
    assert listed(run, "pools")[0]["max_priority"] == 8.0
    assert run("evaluate", "--pool", "研究", "--priority", "urgent").exit_code == 0
    words = ("--role", "submitter", "--owner", "ada", "--max-priority", "夜间")
    created = run("tokens", "create", "t", *words)
    assert created.exit_code == 0, created.stderr
    state = scheduler.connection.service.running.reactor.state
    assert [spec.max_priority for spec in state.tokens.values()] == [0.3]


def test_a_word_that_is_no_class_is_refused_with_all_of_them(classes, run):
    done = run("priority", "t", "urgnet")
    assert done.exit_code == ExitCode.USAGE
    assert "did you mean 'urgent'?" in done.stderr
    assert "background (0.1), urgent (8), 夜间 (0.3)" in done.stderr


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("{high: 8}", "'high', which is 5 everywhere"),
        ("{1e5: 8}", "is a number"),
        ("{urgent: high}", "class 'urgent'"),
        ("[urgent]", "a dict of up to 50 names"),
    ],
)
def test_what_is_no_class_is_not_declared(scheduler, run, value, error):
    done = run("policy", "set", f"priority_classes={value}")
    assert done.exit_code == ExitCode.USAGE
    assert error in " ".join(done.stderr.split())


def test_a_file_may_declare_classes_and_use_them(scheduler, run, tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "policy: {preemption: {priority_classes: {urgent: 8}}}\n"
        "pools: [{name: 研究, resources: {cpu: 1}, max_priority: urgent}]\n",
        encoding="utf-8",
    )
    assert run("apply", "-f", path).exit_code == 0
    assert listed(run, "pools")[0]["max_priority"] == 8.0
    assert run("diff", "-f", path).exit_code == 0
