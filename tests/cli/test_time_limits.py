"""Limits in time on the command line: of pools, of tasks that run or wait, and what listings show of them."""

from __future__ import annotations

import json
import re

import pytest
from rich.cells import cell_len

from tests.cli.conftest import Worker


@pytest.fixture
def limited(scheduler):
    """A pool with limits, a task that runs, and one that waits with a limit of its own."""
    scheduler.pool(cpu=1, default_max_run_s="2h", max_run_s="1d", idle_s=1800)
    scheduler.submit("运行", priority=50.0)
    scheduler.submit("waits", queue=True, max_run_s="4h", idle_s="1h")
    return scheduler


def test_a_pool_is_given_limits_as_durations_and_shows_them(limited, run):
    done = run("pools", "set", "研究", "max_run_s=12h", "default_max_run_s=90m", "idle_s=null")
    assert (done.exit_code, done.stderr) == (0, "")
    (row,) = json.loads(run("pools", "-o", "json").stdout)
    limits = ("max_run_s", "default_max_run_s", "idle_s")
    assert [row[name] for name in limits] == [43_200.0, 5_400.0, None]
    assert "12h00m (default 1h30m)" in run("pools", "-o", "wide", width=200).stdout
    lines = run("pools", "get", "研究").stdout.splitlines()
    assert [line.split() for line in lines if "run" in line] == [
        ["max", "run", "12h00m"],
        ["default", "max", "run", "1h30m"],
    ]
    assert max(map(cell_len, lines)) <= 80


def test_a_default_that_is_longer_than_the_most_is_refused(limited, run):
    done = run("pools", "set", "研究", "default_max_run_s=48h")
    assert done.exit_code == 2
    assert "default_max_run_s is 2d, longer than the 1d of max_run_s" in done.stderr


def test_wide_listings_show_the_time_that_is_left_and_the_limit_of_what_waits(limited, run):
    tasks = run("tasks", "-o", "wide", width=250).stdout
    assert "limit in" in tasks
    assert re.search(r"运行.*\b1h59m\b", tasks)
    assert re.search(r"waits.*\b4h00m\b", run("queue", "-o", "wide", width=250).stdout)
    text = run("tasks", "get", "waits").stdout
    assert re.search(r"max run +4h00m", text)
    assert re.search(r"idle +1h00m", text)


def test_the_limit_of_a_task_is_changed(limited, run):
    done = run("limit", "运行", "4h")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split() == ["运行", "limit", "4h"]
    assert "4h; ends at the latest in 4h by its limit" in run("explain", "运行").stdout
    assert run("limit", "waits", "none").exit_code == 0
    explained = json.loads(run("explain", "waits", "-o", "json").stdout)
    assert explained["run_limit_s"] == 7200.0
    refused = run("limit", "运行", "48h")
    assert refused.exit_code == 1
    assert "may run for at most 1d" in " ".join(refused.stderr.split())
    assert run("limit", "nobody", "1h").exit_code == 3
    assert run("limit", "运行", "soon").exit_code == 2


def test_that_nothing_measures_the_gpus_of_a_task_is_said(limited, run):
    limited.calls.ensure_pool("gpus", resources={"cpu": 1, "gpu": 1}, idle_s="30m")
    answer = limited.calls.submit_task_with_preemption(
        "notebook", "gpus", Worker, {"cpu": 1, "gpu": 1}
    )
    assert answer["success"], answer
    text = run("explain", "notebook").stdout
    assert "idle limit: 30m, but nothing measures its GPUs, so this never ends it" in text
    assert max(map(cell_len, text.splitlines())) <= 80
