"""``submit`` and what belongs to it, over HTTP, in processes that cannot import Ray."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pickle
import subprocess
import sys
import zipfile

import msgspec
import pytest

from schedulemesh.api.tasks import SubmitTask
from schedulemesh.cli.exits import ExitCode
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.errors import JobFailedError
from schedulemesh.protocol.agents import KeptResult, RunReport, pack
from schedulemesh.protocol.job_command import JobCommand
from tests.cli.served import named_by_environment
from tests.runtime.fake_backend import FakeBackend

#: Runs a command where importing Ray fails.
PROGRAM = """
import sys
sys.modules["ray"] = None
from schedulemesh.cli.entry import main
main()
"""
SUBMIT = ("submit", "--pool", "p", "--cpus", "1", "--id", "job")


@pytest.fixture
def api(tmp_path, monkeypatch):
    """The HTTP API of a scheduler with a pool of 2 CPUs, whose jobs end at once."""
    with named_by_environment(tmp_path, monkeypatch) as served:
        yield served


@pytest.fixture
def endless(monkeypatch):
    """Jobs do not end by themselves."""

    async def run_for_ever(self, handle, order):
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(FakeBackend, "run_task", run_for_ever)


@pytest.fixture
def run(tmp_path):
    """Runs a command in a folder with a script, without Ray."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("#SM --label team=a\nprint(1)\n")
    (folder / "secret").write_text("x")
    (folder / ".gitignore").write_text("secret\n")

    def invoke(*words):
        command = [sys.executable, "-c", PROGRAM, *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=folder, env=environment
        )

    return invoke


def sent(api):
    """The last submission that the supervisor was asked for."""
    return next(one for one in reversed(api.gateway.asked) if isinstance(one, SubmitTask))


def command_of(request):
    arguments = request.blobs[request.submission.agent.arguments_key]
    return msgspec.json.decode(arguments, type=JobCommand)


def test_a_folder_is_uploaded_with_the_options_of_the_command_a_file_and_the_script(
    api, run, tmp_path
):
    options = {"time": "30m", "env": {"A": "1"}, "command": ["python", "train.py"]}
    (tmp_path / "job.yaml").write_text(json.dumps(options))
    words = ("--working-dir", ".", "-f", str(tmp_path / "job.yaml"), "--priority", "7")
    done = run(*SUBMIT, *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "job\n", "")
    request = sent(api)
    submission, job = request.submission, request.submission.agent.payload
    with zipfile.ZipFile(io.BytesIO(request.blobs[job.folder_key])) as archive:
        assert sorted(archive.namelist()) == [".gitignore", "train.py"]
    command = command_of(request)
    assert (command.entrypoint, command.env) == (("python", "train.py"), {"A": "1"})
    task = submission.task
    assert (task.labels, task.priority, task.estimated_duration) == ({"team": "a"}, 7.0, 1800.0)
    assert (submission.queue, submission.agent.resources.public()) == (True, {"cpu": 1.0})


def test_a_dry_run_changes_nothing(api, run):
    done = run(*SUBMIT, "--dry-run", "--", "true")
    assert (done.returncode, done.stdout) == (0, "would start now\n"), done.stderr
    done = run(*SUBMIT, "--cpus", "3", "--dry-run", "--", "true")
    assert done.returncode == ExitCode.CONFLICT
    assert done.stdout.startswith("would not start now: ")
    assert api.get("/jobs")["items"] == []


def test_a_dry_run_says_behind_whom_a_job_would_wait_in_a_strict_pool(api, run, endless):
    api.send("PATCH", "/pools/p", {"queueing": "strict"})
    for name, cpus in (("runs", "1"), ("first", "2")):
        assert run(*SUBMIT[:-1], name, "--cpus", cpus, "--", "true").returncode == ExitCode.OK
    done = run(*SUBMIT, "--dry-run", "--", "true")
    assert done.returncode == ExitCode.CONFLICT, done.stderr
    reason, position, *_ = done.stdout.splitlines()
    assert reason.startswith("would not start now: 1 task of pool 'p' must start before it")
    assert position == "position in the queue of its pool: 2"
    assert run(*SUBMIT, "--dry-run", "--now", "--", "true").returncode == ExitCode.CONFLICT
    assert run(*SUBMIT, "--", "true").returncode == ExitCode.OK
    (row,) = [row for row in api.get("/queue")["items"] if row["task_id"] == "job"]
    assert row["position"] == 2


@pytest.mark.parametrize("word", ["--wait", "--follow"])
def test_a_command_waits_for_the_exit_code_of_the_driver(api, run, monkeypatch, word):
    done = run(*SUBMIT, word, "--", "true")
    assert (done.returncode, done.stderr) == (0, "submitted job\n")
    error = JobFailedError("the driver ended with exit code 3", "job", exit_code=3)
    kept = pack(KeptResult(exception=pickle.dumps(error), text="…"))
    failed = RunReport(kept=kept, reason=TaskEndReason.RUN_RAISED, error="exit code 3")

    async def fails(self, handle, order):
        return pack(failed)

    monkeypatch.setattr(FakeBackend, "run_task", fails)
    done = run(*SUBMIT[:-1], "other", word, "--", "false")
    assert (done.returncode, "exit code 3" in done.stderr) == (3, True), done.stderr


def test_a_runner_that_fails_is_said_in_one_sentence(api, run, monkeypatch):
    error = PermissionError(13, "Permission denied", "/var/lib/schedulemesh")
    kept = pack(KeptResult(exception=pickle.dumps(error), text="…"))
    failed = RunReport(kept=kept, reason=TaskEndReason.RUN_RAISED, error=str(error))

    async def fails(self, handle, order):
        return pack(failed)

    monkeypatch.setattr(FakeBackend, "run_task", fails)
    done = run(*SUBMIT, "--wait", "--", "true")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "job 'job' could not be run: PermissionError: [Errno 13] Permission denied: "
        "'/var/lib/schedulemesh'"
    )
    assert "Traceback" not in done.stderr


def test_what_cannot_be_sent_is_said_in_one_sentence(api, run, tmp_path):
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "noise").write_bytes(os.urandom(17 * 2**20))
    for words, said in (
        (("--working-dir", str(tmp_path / "large")), "more than 16 MB packed"),
        (("--working-dir", "/no/such/folder"), "no folder of this machine"),
        (("--checkpoint-dir", "here"), "absolute path"),
    ):
        done = run(*SUBMIT, *words, "--", "true")
        assert (done.returncode, said in done.stderr) == (ExitCode.USAGE, True), done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not [one for one in api.gateway.asked if isinstance(one, SubmitTask)]


def test_a_job_is_looked_at_and_ended(api, run, endless):
    assert run(*SUBMIT, "--", "sleep", "1000").returncode == 0
    assert json.loads(run("jobs", "-o", "json").stdout)[0]["task_id"] == "job"
    assert run("logs", "job").returncode == 0
    assert run("cancel", "job").returncode == 0
    assert json.loads(run("jobs", "-o", "json").stdout)[0]["state"] == "cancelled"
