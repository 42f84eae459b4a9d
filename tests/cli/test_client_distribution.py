"""The distribution schedulemesh-client, built and installed where there is nothing else, and no Ray."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from schedulemesh import __version__
from schedulemesh.api.tasks import SubmitTask
from tests.cli.served import named_by_environment

ROOT = Path(__file__).parents[2]
MOST_MB = 30


def required(name, found):
    """Add a distribution and all that it needs, of those that are installed here."""
    if name in found:
        return found
    found[name] = metadata.distribution(name)
    for line in found[name].requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            required(requirement.name, found)
    return found


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """The folder of an environment that has the client and what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("client")
    # The build writes beside the project file.
    shutil.copytree(ROOT / "packaging" / "client", folder / "packaging" / "client")
    (folder / "schedulemesh").symlink_to(ROOT / "schedulemesh")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", folder]
    subprocess.run([*build, folder / "packaging" / "client"], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    install = [*pip, "--python", python, "install", "--no-index", "--no-deps", wheel]
    subprocess.run(install, check=True, capture_output=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (built,) = metadata.distributions(name="schedulemesh-client", path=[str(site)])
    found = {}
    for line in built.requires:
        required(Requirement(line).name, found)
    for one in found.values():
        for file in one.files:
            if ".." not in file.parts and file.suffix != ".pyc":
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), target)
    return folder / "venv"


@pytest.fixture
def run(client, tmp_path, monkeypatch):
    """Runs the command of the client, in an empty folder."""
    monkeypatch.setenv("SCHEDULEMESH_HOME", "/nowhere")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    folder = tmp_path / "project"
    folder.mkdir()

    def invoke(*words, program="schedulemesh"):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        command = [client / "bin" / program, *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=folder, env=environment
        )

    return invoke


@pytest.fixture
def api(tmp_path, run, monkeypatch):
    """The HTTP API of a scheduler with a pool of 2 CPUs, which the environment names."""
    with named_by_environment(tmp_path, monkeypatch) as served:
        yield served


def test_it_is_small_and_has_no_ray(client, run):
    (site,) = (client / "lib").glob("python*/site-packages")
    size = sum(file.stat().st_size for file in site.rglob("*") if file.suffix != ".pyc")
    assert size < MOST_MB * 2**20, f"{size:,} bytes"
    names = {path.name for path in site.iterdir()}
    assert not names & {"ray", "numpy", "sqlalchemy", "starlette", "uvicorn", "psutil"}
    packages = {path.name for path in (site / "schedulemesh").iterdir() if path.is_dir()}
    assert (
        site / f"schedulemesh_client-{__version__}.dist-info" / "licenses" / "LICENSE"
    ).is_file()
    assert not packages & {"core", "runtime", "server", "sim", "integrations", "checkpoints"}


def test_the_commands_work_without_ray(run, api):
    assert "submit" in run("--help").stdout
    assert run("--version").stdout.startswith("schedulemesh ")
    assert run("version").returncode == 0
    done = run("pools", "-o", "name")
    assert (done.returncode, done.stdout) == (0, "p\n"), done.stderr
    (Path(api.folder).parent / "project" / "train.py").write_text("print(1)")
    words = ("--pool", "p", "--cpus", "1", "--id", "job", "--working-dir", ".", "--wait")
    done = run("submit", *words, "--", "python", "train.py")
    assert (done.returncode, done.stderr) == (0, "submitted job\n"), done.stderr
    request = next(one for one in api.gateway.asked if isinstance(one, SubmitTask))
    assert request.submission.agent.payload.folder_key in request.blobs
    for look in ("status", "tasks", "queue", "jobs", "history", "metrics", "export", "events"):
        done = run(look)
        assert done.returncode == 0, (look, done.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ("start",),
        ("stop", "--yes"),
        ("list",),
        ("orphans",),
        ("doctor",),
        ("demo",),
        ("lease", "--pool", "p", "--", "true"),
        ("adopt", "02000000", "--pool", "p"),
        ("simulate", "trace.csv", "--cluster", "gpu=8"),
        ("rehearse", "j.sqlite"),
    ],
)
def test_what_needs_ray_says_so_in_one_sentence(run, api, words):
    done = run(*words)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1, done.stderr
    assert "schedulemesh-core" in line


def test_without_an_address_it_says_how_to_reach_a_scheduler(run):
    done = run("pools")
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert "--address http://HOST:8090" in line


def test_the_python_calls_work_without_ray(run, api):
    program = """
import os, schedulemesh
with schedulemesh.connect(os.environ["RAY_ADDRESS"]) as scheduler:
    assert scheduler.submit_job("t", ["true"], "p", {"cpu": 1}, wait=True)["success"]
    print(scheduler.list_pools()["pools"][0]["name"])
    with scheduler.lease("l", "p", [[{"cpu": 1}]]) as lease:
        print(lease.state)
for name in ("RayScheduler", "SimpleScheduler", "AgentActor"):
    try:
        getattr(schedulemesh, name)
    except ImportError as error:
        print(error)
"""
    done = run("-c", program, program="python")
    assert done.returncode == 0, done.stderr
    pool, state, *errors = done.stdout.splitlines()
    assert (pool, state) == ("p", "running")
    assert [error.split()[0] for error in errors] == [
        "RayScheduler",
        "SimpleScheduler",
        "AgentActor",
    ]
    assert all("schedulemesh.connect(url)" in error for error in errors)
