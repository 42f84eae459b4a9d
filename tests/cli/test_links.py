"""Links of tasks to pages elsewhere, where people and programs look for them."""

from __future__ import annotations

import asyncio
import json

import pytest

WANDB = "https://wandb.ai/t/a%2F1"


@pytest.fixture
def linked(scheduler, monkeypatch):
    """A job that runs, one that waits, and a task that has ended, of which all but the second have a run."""
    service = scheduler.connection.service
    scheduler.pool(cpu=1)
    scheduler.submit("ended", labels={"run": "a/1"})
    scheduler.calls.complete_task("ended", end_agent=True)
    monkeypatch.setattr(service.backend, "run_task", lambda *_: asyncio.Event().wait())
    for name, labels in (("job", {"run": "a/1"}), ("waits", {})):
        fields = {"labels": labels, "queue": True}
        assert scheduler.calls.submit_job(name, ["true"], "研究", {"cpu": 1}, **fields)["success"]
    return scheduler


@pytest.fixture
def answer(linked, run):
    def asked(*words):
        done = run(*words)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    assert asked("policy", "set", "links={wandb: 'https://wandb.ai/t/{label.run}'}")
    return asked


def test_the_policy_shows_its_templates(answer):
    rows = json.loads(answer("policy", "get", "-o", "json"))
    assert {"wandb": "https://wandb.ai/t/{label.run}"} in [row["value"] for row in rows]


def test_commands_show_the_links_of_tasks(answer):
    jobs = {row["task_id"]: row for row in json.loads(answer("jobs", "-o", "json"))}
    assert jobs["job"]["links"] == {"wandb": WANDB}
    assert "links" not in jobs["waits"]
    assert f"wandb={WANDB}" in answer("jobs", "-o", "wide")
    tasks = {row["task_id"]: row for row in json.loads(answer("tasks", "-o", "json"))}
    assert tasks["job"]["links"] == {"wandb": WANDB}
    assert f"wandb={WANDB}" in answer("tasks", "get", "job")
    assert f"wandb={WANDB}" in answer("tasks", "get", "ended")
    for task_id in ("job", "ended"):
        explained = json.loads(answer("explain", task_id, "-o", "json"))
        assert explained["links"] == {"wandb": WANDB}
    assert json.loads(answer("explain", "waits", "-o", "json"))["links"] == {}


def test_a_template_with_an_unknown_field_is_refused(answer, run):
    done = run("policy", "set", "links={wandb: 'https://wandb.ai/{lable.run}'}")
    assert done.exit_code == 2
    assert "unknown field {lable.run}" in done.stderr
