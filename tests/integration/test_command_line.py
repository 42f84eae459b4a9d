"""Every command against a real scheduler, in every format, at 80 and 200 columns, with Chinese names."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import uuid

import pytest
import ray
import typer
import yaml
from rich.cells import cell_len

from schedulemesh.cli import checks as doctor
from schedulemesh.cli.app import app
from schedulemesh.cli.table_names import DECLARED
from schedulemesh.core.client.scheduler import RayScheduler
from tests.command_runner import run_command
from tests.docs.test_command_line import commands
from tests.integration.agents import Counter
from tests.integration.polling import actors_in, until
from tests.runtime.chat_services import ChatServer, slack

POOL, OTHER = "研究-大模型训练", "线上服务"
FORMATS = ("table", "wide", "json", "yaml", "csv", "name")
#: What each command that looks is called with; those that are declared with a call need nothing.
LOOKS = {
    **{name: [] for name in DECLARED},
    "status": [],
    "list": [],
    "top": ["--count", "1"],
    "pools": [],
    "pools get": [POOL],
    "cohorts": [],
    "drains": [],
    "windows": [],
    "agents": [],
    "nodes": [],
    "health": [],
    "tasks": [],
    "tasks get": ["排队"],
    "tasks wait": ["--until", "running", "高"],
    "wait": ["--until", "running", "高"],
    "evaluate": ["--pool", POOL, "--cpus", "2"],
    "leases": [],
    "groups": [],
    "jobs": [],
    "external": [],
    "queue": [],
    "explain": ["排队"],
    "preemptions": ["--since", "1h"],
    "metrics": [],
    "alerts": [],
    "alerts test": [],
    "history": ["--since", "1h"],
    "usage": ["--by", "owner"],
    "events": ["--limit", "20"],
    "audit": ["--since", "1h"],
    "tokens list": [],
    "policy get": [],
    "policy diff": [],
    "policy history": ["--since", "1d"],
    "diff": ["-f", "-"],
    "export": [],
    "export config": [],
    "doctor": [],
    "plugins": [],
    "orphans": [],
    "version": [],
}
#: What each command that changes something is called with. Some of what it names does not exist, so that it
#: can be repeated in every format.
CHANGES = {
    "pools set": [POOL, "labels={团队: 语言}"],
    "pools create": ["建", "resources.cpu=1"],
    "pools rename": ["没有", "别的"],
    "pools delete": ["没有"],
    "cohorts create": ["组"],
    "cohorts rename": ["没有", "别的"],
    "cohorts delete": ["没有"],
    "pools apply": ["-f", "-"],
    "apply": ["-f", "-"],
    "policy set": ["min_preempt_score=0.1"],
    "hold": ["排队"],
    "release": ["排队"],
    "front": ["排队"],
    "priority": ["排队", "5"],
    "limit": ["没有", "4h"],
    "cancel": ["没有"],
    "complete": ["没有"],
    "save": ["没有"],
    "restore": ["没有"],
    "leases get": ["没有"],
    "leases renew": ["没有"],
    "leases release": ["没有"],
    "preempt": ["没有"],
    "cordon": ["没有"],
    "uncordon": ["没有"],
    "drain": ["没有"],
    "undrain": ["没有"],
    "windows create": [
        "维护",
        *("--start", "2090-01-01T00:00Z", "--duration", "1h", "--all-nodes", "--repeat", "weekly"),
    ],
    "windows delete": ["没有"],
    "tokens rotate": ["没有"],
    "tokens revoke": ["没有"],
}
#: Commands that print no data, a secret alone, or a file of one form.
OTHERS = {
    "help",
    "start",
    "stop",
    "demo",
    "submit",
    "lease",
    "adopt",
    "logs",
    "exec",
    "shell",
    "simulate",
    "rehearse",
    "tokens create",
    "export alerts",
    "export dashboard",
}
FILE = yaml.safe_dump({"pools": [{"name": POOL, "queueing": "best_effort"}]}, allow_unicode=True)


@pytest.fixture(scope="module")
def mesh(ray_cluster):
    """A scheduler with two pools, a running, a waiting and an evicted task."""
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    chat = ChatServer(slack)
    alerts = {"webhooks": [{"url": chat.url, "format": "slack", "name": "值班"}]}
    scheduler = RayScheduler("调度", namespace=namespace, alerts=alerts)
    scheduler.ensure_pool(POOL, resources={"cpu": 2}, labels={"团队": "语言"})
    scheduler.ensure_pool(OTHER, resources={"cpu": 1})
    scheduler.update_preemption_policy(min_preempt_score=0.1)
    for task_id, priority in (("低", 1.0), ("高", 9.0)):
        answer = scheduler.submit_task_with_preemption(
            task_id, POOL, Counter, {"cpu": 2}, priority, labels={"阶段": task_id}
        )
        assert answer["success"], answer
    scheduler.submit_task_with_preemption("排队", POOL, Counter, {"cpu": 2}, 1.0, queue=True)
    yield scheduler
    scheduler.shutdown()
    chat.close()
    until(lambda: not actors_in(namespace), lambda: f"left in Ray: {actors_in(namespace)}")


@pytest.fixture
def run(mesh, monkeypatch, tmp_path):
    monkeypatch.setenv("SCHEDULEMESH_HOME", str(tmp_path))

    def invoke(words, *more, width=80, stdin=None):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("SCHEDULEMESH_NAME", "调度")
        monkeypatch.setenv("SCHEDULEMESH_NAMESPACE", mesh.about()["namespace"])
        return run_command([*words.split(), *more], input=stdin)

    return invoke


def test_every_command_is_tried_here():
    known = {
        words.removeprefix("schedulemesh ") for words, _ in commands(typer.main.get_command(app))
    }
    assert known == {*LOOKS, *CHANGES, *OTHERS}


def rows_of(form, text):
    """The rows, or the one record, that are printed in a format that machines read."""
    if form == "csv":
        return list(csv.DictReader(io.StringIO(text)))
    if form == "name":
        return text.splitlines()
    return json.loads(text) if form == "json" else yaml.safe_load(text)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("words", [*LOOKS, *CHANGES])
def test_every_format(run, words, form):
    if words.startswith("export") and form not in ("json", "yaml"):
        assert run(words, "-o", form).exit_code == 2
        return
    more = [*LOOKS.get(words, CHANGES.get(words)), "-o", form]
    for width in (80, 200):
        done = run(words, *more, width=width, stdin=FILE if "-f" in more else None)
        if "没有" in more:
            assert (done.exit_code, "没有" in done.stderr) == (3, True), done.output
        else:
            assert (done.exit_code, done.exception) == (0, None), done.output
        if form in ("table", "wide"):
            assert "\x1b" not in done.stdout
            widest = max(map(cell_len, done.stdout.splitlines()), default=0)
            assert form == "wide" or widest <= width, done.stdout
        elif done.stdout or (form != "name" and done.exit_code == 0):
            rows_of(form, done.stdout)


def test_what_is_printed_is_what_there_is(run, mesh, monkeypatch):
    def printed(words, *more):
        return json.loads(run(words, *more, "-o", "json").stdout)

    # Another test may have created one before.
    assert [row["name"] for row in printed("pools")][:2] == [POOL, OTHER]
    assert printed("pools", "-l", "团队=语言") == mesh.list_pools()["pools"][:1]
    assert {row["task_id"] for row in printed("tasks")} == {"高", "排队"}
    assert [row["task_id"] for row in printed("queue")] == ["排队"]
    assert [row["task_id"] for row in printed("preemptions")] == ["低"]
    assert printed("list", "-f", "name=调度", "-f", f"namespace={mesh.about()['namespace']}")
    assert printed("explain", "高")["state"] == "running"
    assert printed("tasks", "-f", "owner=nobody") == []
    monkeypatch.setattr(doctor, "_SLOW_S", 60.0)  # a busy machine is no fault of the scheduler
    checks = {row["check"]: row["status"] for row in printed("doctor")}
    named = ("Ray", "Ray's version", "Ray's resources", "scheduler", "journal", "clock")
    assert {checks[name] for name in named} == {"ok"}
    (node,) = printed("nodes")
    assert run("cordon", node["node_id"]).exit_code == 0
    assert run("nodes", "-f", "cordoned=yes", "-o", "name").stdout.split() == [node["node_id"]]
    assert run("uncordon", node["node_id"]).exit_code == 0


def test_what_changes_is_done(run, mesh):
    mesh.submit_task_with_preemption("a", OTHER, Counter, {"cpu": 1})
    assert run("preempt", "a").exit_code == 0
    assert "a" not in {task["task_id"] for task in mesh.list_tasks()["tasks"]}
    mesh.submit_task_with_preemption("b", OTHER, Counter, {"cpu": 1})
    assert run("cancel", "b").exit_code == 0
    assert run("hold", "b").exit_code == 3
    assert run("pools set", OTHER, "resources.cpu=2").exit_code == 0
    assert mesh.list_pools()["pools"][1]["resources"] == {"cpu": 2.0}


def test_a_job_is_submitted_followed_and_listed(run, mesh):
    python = [sys.executable, "-c", "import sys; print('输出'); sys.exit(int(sys.argv[1]))"]
    words = ["--pool", OTHER, "--follow"]
    done = run("submit", "--id", "作业", *words, "--cpus", "1", "--", *python, "0")
    assert (done.exit_code, done.stdout) == (0, "输出\n"), done.output
    assert run("logs", "作业", "--tail", "1").stdout == "输出\n"
    (listed,) = json.loads(run("jobs", "-f", "state=completed", "-o", "json").stdout)
    assert (listed["task_id"], listed["attempt"]) == ("作业", 1)
    parts = ["--bundle", "cpu=0.5", "--bundle", "cpu=0.5", "--strategy", "SPREAD", "--"]
    done = run("submit", "--id", "失败", *words, *parts, *python, "3")
    assert done.exit_code == 3
    assert "exit code 3" in done.stderr
    assert run("logs", "没有").exit_code == 3
    assert "completed" in run("explain", "作业").stdout


def test_a_ray_job_that_is_not_there_is_not_adopted(run):
    done = run("adopt", "ff000000", "--pool", OTHER)
    assert done.exit_code == 3
    assert "there is no Ray job 'ff000000'" in done.stderr


def test_a_scheduler_that_is_not_there_and_a_ray_that_is_not(run, ray_cluster):
    assert run("status", "--name", "没有").exit_code == 3
    words = ["-m", "schedulemesh", "status", "--address", "127.0.0.1:1"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (5, "")
    assert "nothing answers at" in done.stderr


def test_a_scheduler_is_started_and_stopped(run, tmp_path, namespace):
    where = ["--name", "头", "--namespace", namespace]
    done = run("start", *where, "--state-path", tmp_path / "state")
    assert done.exit_code == 0, done.output
    assert "is alive" in done.stdout
    assert run("status", *where, "-o", "name").stdout == "头\n"
    assert run("stop", *where, "--yes").exit_code == 0
    assert run("stop", *where, "--yes").exit_code == 3
    assert ray.is_initialized()
