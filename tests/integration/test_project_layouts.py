"""Common layouts of projects run as jobs as they run under ``ray job submit``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from schedulemesh.errors import JobFailedError
from tests.integration import ray_job_submit
from tests.integration.project_layouts import LAYOUTS


@pytest.fixture
def folders(tmp_path):
    """The working directory of each project, by its name."""
    made = {}
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        (tmp_path / str(number)).mkdir()
        made[name] = layout.written_to(tmp_path / str(number) / "project")
    return made


def environment(layout):
    """The runtime environment of a project, with the commands of this environment found first."""
    commands = f"{Path(sys.executable).parent}:${{PATH}}"
    given = {"PATH": commands, **layout.runtime_env.get("env_vars", {})}
    given["PATH"] = given["PATH"].replace("${COMMANDS}", commands)
    return {**layout.runtime_env, "env_vars": given}


def printed(log):
    """What a driver says of what it has found."""
    return [line for line in log.splitlines() if line.startswith("> ")]


def under_ray(folders):
    """The exit code and the lines of each project under ``ray job submit``."""
    given = {
        name: {
            "entrypoint": layout.entrypoint,
            "runtime_env": {"working_dir": str(folders[name]), **environment(layout)},
        }
        for name, layout in LAYOUTS.items()
    }
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, ray_job_submit.__file__],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "RAY_ADDRESS": address},
    )
    ended = json.loads(done.stdout.splitlines()[-1])
    for name, (code, log) in ended.items():
        if code != LAYOUTS[name].exit_code:
            print(f"{name}: exit code {code}: {log}")  # pytest shows it where the test fails
    return {name: (code, printed(log)) for name, (code, log) in ended.items()}


def under_the_scheduler(mesh, folders):
    """The same of jobs of the scheduler."""
    for name, layout in LAYOUTS.items():
        given = {"working_dir": folders[name], "runtime_env": environment(layout), "queue": True}
        assert mesh.submit_job(name, layout.entrypoint, "p", {"cpu": 2}, **given)["success"]
    assert mesh.wait(list(LAYOUTS), timeout=600)["pending"] == []
    return {name: (code_of(mesh, name), printed("".join(mesh.job_logs(name)))) for name in LAYOUTS}


def code_of(mesh, name):
    """The exit code of a job that has ended."""
    try:
        return mesh.result(name)["result"]["exit_code"]
    except JobFailedError as failed:
        return failed.exit_code


# Twice as many jobs as there are layouts, one after another where processes start slowly.
@pytest.mark.timeout(1300)
def test_projects_find_what_they_find_under_ray_job_submit(scheduler, folders):
    scheduler.ensure_pool("p", resources={"cpu": 8})

    ours, rays = under_the_scheduler(scheduler, folders), under_ray(folders)

    assert ours == rays
    for name, layout in LAYOUTS.items():
        code, lines = ours[name]
        assert code == layout.exit_code, name
        assert lines, name
