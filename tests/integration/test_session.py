"""A command under a lease on real Ray: its devices, its wait, and that nothing is left of it."""

from __future__ import annotations

import json
import sys
import threading

import pytest
from typer.testing import CliRunner

from schedulemesh.cli.app import app
from tests.integration.polling import groups_in, until

#: Prints what the command finds in its environment.
SHOW = (
    "import json, os, sys; names = ('CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS', 'SCHEDULEMESH_LEASE', "
    "'SCHEDULEMESH_PLACEMENT_GROUP'); "
    "json.dump({n: os.environ.get(n) for n in names}, open(sys.argv[1], 'w'))"
)


@pytest.fixture
def pool(scheduler):
    """A scheduler with a pool of 2 CPUs and a GPU."""
    scheduler.ensure_pool("p", resources={"cpu": 2, "gpu": 1})
    return scheduler


@pytest.fixture
def lease(pool, namespace):
    def leased(*words):
        where = ("--name", "mesh", "--namespace", namespace)
        return CliRunner().invoke(app, ["lease", "--pool", "p", *where, *words])

    return leased


def test_a_command_sees_its_devices_and_gives_them_back(pool, lease, tmp_path, namespace):
    seen = tmp_path / "seen"
    done = lease("--id", "s", "--gpus", "1", "--", sys.executable, "-c", SHOW, str(seen))
    assert done.exit_code == 0, done.output
    found = json.loads(seen.read_text())
    assert found["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    assert (found["OMP_NUM_THREADS"], found["SCHEDULEMESH_LEASE"]) == ("1", "s")
    assert len(found["SCHEDULEMESH_PLACEMENT_GROUP"]) == 36
    assert pool.explain("s")["state"] == "completed"
    until(lambda: not groups_in(namespace), "its placement group is left", 20)


def test_a_command_waits_for_its_turn_and_ends_with_its_lease(pool, lease, tmp_path):
    first = pool.lease("first", "p", [[{"cpu": 2}]])
    threading.Timer(3.0, first.release).start()
    runs = tmp_path / "runs"

    def release_once_it_runs():
        until(runs.exists, "it does not run", 60)
        pool.complete_task("second")

    threading.Thread(target=release_once_it_runs, daemon=True).start()
    done = lease("--id", "second", "--cpus", "2", "--", "sh", "-c", f"touch {runs}; exec sleep 600")
    assert done.exit_code == 128 + 15, done.output
    assert "queued, 1 of 1: insufficient_quota" in done.output
    assert "the lease has ended (completed)" in done.output


def test_what_does_not_fit_now_is_refused(pool, lease):
    pool.lease("first", "p", [[{"cpu": 2}]])
    done = lease("--now", "--", "true")
    assert (done.exit_code, "cpu 1 of the cpu 1 asked for" in done.output) == (1, True), done.output
    assert [task["task_id"] for task in pool.list_tasks()["tasks"]] == ["first"]
    assert lease("--id", "first", "--", "true").exit_code == 6
    assert lease("--pool", "none", "--", "true").exit_code == 3
