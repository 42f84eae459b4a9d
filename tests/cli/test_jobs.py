"""The command submit: the claim that its options describe, whose child a job is, and interruptions."""

from __future__ import annotations

import contextlib
import json

import pytest

from schedulemesh.api.tasks import SubmitTask
from schedulemesh.cli import gateway, job_ends, jobs, ray_gateway
from schedulemesh.cli.exits import ExitCode
from schedulemesh.cli.jobs import parse_bundle_words
from schedulemesh.errors import InvalidRequestError, SchedulerUnavailableError
from schedulemesh.protocol import patience
from schedulemesh.protocol.answers import Listed, TaskResult


def test_bundles_are_amounts_by_name():
    assert parse_bundle_words(["cpu=8,gpu=4", "memory=10,licence=2"]) == [
        {"cpu": 8, "gpu": 4},
        {"memory": 10, "custom": {"licence": 2}},
    ]


def test_without_bundles_there_are_none():
    assert parse_bundle_words([]) is None


@pytest.mark.parametrize("word", ["cpu", "", "=4", "cpu=4,"])
def test_what_is_no_bundle_is_refused(word):
    with pytest.raises(InvalidRequestError):
        parse_bundle_words([word])


@pytest.mark.parametrize("name", ["env.yaml", "env.json", "env"])
def test_a_runtime_environment_is_a_file_or_a_text(busy, run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text('{"env_vars": {"A": "b"}}')
    seen = []
    monkeypatch.setattr(jobs, "_submit", lambda _gateway, given: seen.append(given))
    for given in (name, "{env_vars: {A: b}}", "env_vars:\n  A: b"):
        assert run(*SUBMIT, "--runtime-env", given, "--", "true").exit_code == 0
    assert [given["runtime_env"] for given in seen] == [{"env_vars": {"A": "b"}}] * 3
    for wrong, said in (
        ("none.yaml", "cannot be read"),
        ("- a: b", "names and values"),
        ("{", "no YAML"),
    ):
        done = run(*SUBMIT, "--runtime-env", wrong, "--", "true")
        assert (done.exit_code, said in done.stderr) == (ExitCode.USAGE, True), done.stderr


@pytest.mark.parametrize(
    ("words", "claim", "note"),
    [
        (("--gpus", "2"), {"gpu": 2.0, "cpu": 2.0}, ""),
        (("--gpus", "0.5"), {"gpu": 0.5, "cpu": 1.0}, ""),
        (("--gpus", "2", "--cpus", "8"), {"gpu": 2.0, "cpu": 8.0}, ""),
        (("--gpus", "2", "--cpus", "0"), {"gpu": 2.0}, ""),
        (("--memory", "1e9"), {"memory": 1e9}, ""),
        (("--pool", "gpus", "--gpus", "2"), {"gpu": 2.0}, "has no CPU quota"),
        (("--pool", "borrows", "--gpus", "2"), {"gpu": 2.0, "cpu": 2.0}, ""),
        (("--pool", "may-not", "--gpus", "2"), {"gpu": 2.0}, "has no CPU quota"),
        (("--pool", "nobody-has", "--gpus", "2"), {"gpu": 2.0}, "has no CPU quota"),
    ],
)
def test_gpus_without_cpus_claim_a_cpu_each(scheduler, run, monkeypatch, words, claim, note):
    scheduler.pool(gpu=8)
    scheduler.pool("gpus", cpu=0, gpu=8)
    scheduler.calls.ensure_cohort("top")
    scheduler.calls.ensure_cohort("team", parent="top")
    scheduler.pool("cpus", cpu=64, cohort="top")
    scheduler.pool("borrows", cpu=0, gpu=8, cohort="team")
    scheduler.pool("may-not", cpu=0, gpu=8, cohort="team", borrowing_limit={"cpu": 0})
    scheduler.pool("nobody-has", cpu=0, gpu=8, cohort="other")
    requests = []
    monkeypatch.setattr(jobs, "_submit", lambda _gateway, given: requests.append(given))
    done = run("submit", "--pool", "研究", *words, "--", "true")
    assert (done.exit_code, note in done.stderr) == (0, True), done.stderr
    assert requests[0]["resources"] == claim


@pytest.mark.parametrize(
    ("bundles", "noted"),
    [(["gpu=2"], True), (["cpu=2,gpu=2", "gpu=1"], True), (["cpu=2,gpu=2"], False)],
)
def test_a_bundle_of_gpus_without_cpus_is_noted(scheduler, run, monkeypatch, bundles, noted):
    scheduler.pool(gpu=8)
    monkeypatch.setattr(jobs, "_submit", lambda _gateway, _given: None)
    words = [word for bundle in bundles for word in ("--bundle", bundle)]
    done = run("submit", "--pool", "研究", *words, "--", "true")
    assert (done.exit_code, "num_cpus=0" in done.stderr) == (0, noted), done.stderr


#: A job that waits, because another task has a part of the pool.
SUBMIT = ("submit", "--pool", "研究", "--cpus", "4", "--id", "作业")


@pytest.fixture
def busy(scheduler):
    """A scheduler with a pool of 4 CPUs, one of which is taken."""
    scheduler.pool()
    scheduler.submit("甲")
    return scheduler


@pytest.fixture
def in_task(monkeypatch):
    """Makes this process that of the driver of a task."""
    for name, value in (("NAME", "mesh"), ("NAMESPACE", "space"), ("TASK_ID", "甲")):
        monkeypatch.setenv(f"SCHEDULEMESH_{name}", value)


@pytest.mark.parametrize(("words", "parent"), [((), "甲"), (("--detached",), "")])
def test_a_job_that_is_submitted_inside_a_task_is_its_child(busy, run, in_task, words, parent):
    assert run(*SUBMIT, *words, "--", "true").stdout == "作业\n"
    parents = {task["task_id"]: task["parent"] for task in busy.calls.list_tasks()["tasks"]}
    assert parents == {"甲": "", "作业": parent}


def test_an_interrupted_command_leaves_the_job_and_says_how_to_go_on(busy, run, monkeypatch):
    def interrupted(notes):
        raise KeyboardInterrupt

    monkeypatch.setattr(job_ends.QueueNotes, "until_started", interrupted)
    done = run(*SUBMIT, "--wait", "--", "true")
    assert done.exit_code == 130
    assert "job '作业' is not ended by this" in done.stderr
    assert "schedulemesh logs 作业 --follow" in done.stderr
    assert "schedulemesh cancel 作业" in done.stderr
    assert waiting(busy) == ["作业"]


class Told:
    """A connection on which the job is in one state after the other."""

    def __init__(self, *states):
        self.states = list(states)

    def ask(self, request, expected):
        return Listed(rows=[self.states.pop(0)])


def test_a_command_that_waits_says_why_and_each_change_of_that_once(capsys):
    queued = {"state": "queued", "position": 2, "queue_length": 5, "reason": "insufficient_quota"}
    short = {**queued, "short": {"gpu": 4.0}}
    held = {**queued, "reason": "held_by_user", "short": {}}
    told = Told(short, short, held, {"state": "starting"}, {"state": "running"})
    notes = job_ends.QueueNotes(told, "作业")
    notes.until_started()
    notes.until_started()
    assert capsys.readouterr().err.splitlines() == [
        "queued, 2 of 5: insufficient_quota, gpu 4 short",
        "queued, 2 of 5: held_by_user",
        "starting",
    ]


def test_of_a_job_that_does_not_wait_nothing_is_said(capsys):
    job_ends.QueueNotes(Told({"state": "running"}), "作业").until_started()
    assert capsys.readouterr().err == ""


def test_jobs_say_why_they_wait(busy, run):
    run(*SUBMIT, "--gpus", "0", "--", "true")
    (row,) = json.loads(run("jobs", "-o", "json").stdout)
    assert (row["reason"], row["short"]) == ("insufficient_quota", {"cpu": 1.0})
    assert (row["position"], row["queue_length"]) == (1, 1)
    assert "insufficient_quota" in run("jobs").stdout


def waiting(scheduler):
    return [task["task_id"] for task in scheduler.calls.list_queue()["tasks"]]


class Restarting(ray_gateway.RayGateway):
    """A connection to a scheduler that every second request reaches, and every other answer."""

    def __init__(self, connection):
        super().__init__(connection)
        self.asked = []

    def ask(self, request, expected):
        self.asked.append(request)
        if len(self.asked) % 2 and not isinstance(request, SubmitTask):
            raise SchedulerUnavailableError("it restarts")
        answer = super().ask(request, expected)
        if len(self.asked) % 2:
            raise SchedulerUnavailableError("the answer was lost")
        return answer


@pytest.fixture
def restarting(scheduler, monkeypatch):
    """What the commands reach the scheduler by, which is not always there."""
    found = Restarting(scheduler.connection)
    monkeypatch.setattr(gateway, "gateway_to", lambda target: contextlib.nullcontext(found))
    monkeypatch.setattr(patience, "_AGAIN_S", 0.0)
    return found


def test_a_submission_whose_answer_was_lost_is_repeated_and_starts_one_job(busy, run, restarting):
    done = run(*SUBMIT, "--", "true")
    assert (done.exit_code, done.stdout) == (0, "作业\n"), done.output
    assert len(restarting.asked) == 2
    assert waiting(busy) == ["作业"]


def test_a_command_that_waits_for_a_job_waits_for_a_scheduler_that_restarts(
    restarting, monkeypatch
):
    ended = TaskResult(state="completed")
    monkeypatch.setattr(ray_gateway.RayGateway, "ask", lambda *_asked: ended)
    assert job_ends.exit_code(restarting, "作业") == 0
    assert len(restarting.asked) == 2


@pytest.mark.parametrize("word", ["gpu:4", "gpu", "=4", "cpu=1,,gpu=1", "cpu=1,gpu"])
def test_a_bundle_in_another_form_is_told_how_it_is_written(word):
    with pytest.raises(InvalidRequestError, match=r"--bundle is .*NAME=AMOUNT.*cpu=8,gpu=4"):
        parse_bundle_words([word])
