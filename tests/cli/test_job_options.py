"""What a job asks for: options of submit, a file of them, directives in a script; durations and sizes."""

from __future__ import annotations

from dataclasses import fields

import pytest

from schedulemesh.cli import jobs
from schedulemesh.cli.exits import ExitCode
from schedulemesh.cli.job_options import JobOptions
from schedulemesh.cli.texts import duration, megabytes, seconds
from schedulemesh.domain.resources import amounts_text, parse_resources
from schedulemesh.domain.task import FIELDS
from schedulemesh.errors import InvalidRequestError
from tests.api.written_parts import WORDS as WORDS_OF_FORMS


@pytest.fixture
def submitted(scheduler, monkeypatch):
    """The arguments of each submission."""
    scheduler.pool()
    seen = []
    monkeypatch.setattr(jobs, "_submit", lambda _gateway, given: seen.append(given))
    return seen


#: A value for each option, by which the job differs from one without it; those of fields of a task need none.
WORDS = {
    "pool": "p",
    "bundle": ["cpu=1"],
    "strategy": "PACK",
    "gpu_model": "H100",
    "node_label": ["zone=a"],
    "priority": 9.0,
    "label": ["tier=premium"],
    "working_dir": ".",
    "env": ["A=b"],
    "runtime_env": "{env_vars: {A: b}}",
    "checkpoint_dir": "/shared",
    "driver_cpus": 1.0,
    "driver_gpus": 1.0,
    "start_limit": ["load=5m"],
    "grace": "90s",
    "over_claim": "end",
    "keep_actor": ["caches/weights"],
    "detached": True,
}
WORDS |= {
    name: WORDS_OF_FORMS[field.option.form]
    for field_name, field in FIELDS.items()
    if field.option and (name := field.option.name or field_name) not in WORDS
}
#: Those that are read when the scheduler is asked; see the tests of amounts and ids.
READ_LATER = {"task_id", "cpus", "gpus", "memory", "resource", "fallback"}


@pytest.mark.parametrize(
    "option", sorted({field.name for field in fields(JobOptions)} - READ_LATER)
)
def test_every_option_reaches_the_job(option):
    """One that is taken and not passed on would do nothing."""
    without = jobs._job_arguments(JobOptions())
    assert jobs._job_arguments(JobOptions(**{option: WORDS[option]})) != without


def test_a_job_has_labels_and_a_duration(submitted, run):
    words = ("-l", "tier=premium", "--label", "team=语言", "--time", "1h30m", "--memory", "2GB")
    done = run("submit", "--pool", "研究", *words, "--grace", "2m", "--", "true")
    assert done.exit_code == 0, done.stderr
    (given,) = submitted
    assert given["labels"] == {"tier": "premium", "team": "语言"}
    assert (given["estimated_duration"], given["grace_s"]) == (5400.0, 120.0)
    assert given["resources"]["memory"] == 2048.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--label", "tier"), "LABEL=VALUE"),
        (("--time", "2hours"), "90s, 30m"),
        (("--time", "-1"), "90s, 30m"),
        (("--memory", "64QB"), "512MB, 64GB"),
    ],
)
def test_what_is_written_otherwise_is_told_how_it_is_written(submitted, run, words, said):
    done = run("submit", "--pool", "研究", *words, "--", "true")
    assert (done.exit_code, submitted) == (ExitCode.USAGE, [])
    assert said in done.stderr


def test_a_file_has_the_options_by_name(submitted, run, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(
        "pool: 研究\nid: 作业\ncpus: 2\nmemory: 64GB\ntime: 2h\nlabel: {team: a}\nenv: {A: b, C: d}\n"
        "detached: true\ncommand: python train.py --lr 0.1\n"
    )
    done = run("submit", "-f", job, "--cpus", "3", "-l", "tier=gold")
    assert (done.exit_code, done.stdout) == (0, "作业\n"), done.stderr
    (given,) = submitted
    assert given["entrypoint"] == ["python", "train.py", "--lr", "0.1"]
    assert given["resources"] == {"cpu": 3.0, "memory": 65536.0}
    assert given["labels"] == {"team": "a", "tier": "gold"}
    assert (given["env"], given["detached"]) == ({"A": "b", "C": "d"}, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pool: 研究\ngpu: 4\ncommand: [x]", "--gpu"),
        ("pool: 研究\ncommand: {a: b}", "a text or a list"),
        ("- pool", "options of submit"),
        ("pool: [", "is no YAML"),
        ("pool: 研究\npool: lab\ncommand: x", "pool is given twice"),
        ("pool: 研究", "no command"),
        ("command: x", "--pool NAME"),
        ("pool: 研究\nfollow: true\ncommand: x", "only the command line takes"),
    ],
)
def test_a_file_that_is_wrong_is_told_where(submitted, run, tmp_path, text, said):
    (tmp_path / "job.yaml").write_text(text)
    done = run("submit", "--file", tmp_path / "job.yaml")
    assert (done.exit_code, submitted) == (ExitCode.USAGE, []), done.output
    assert said in done.stderr


def test_a_script_has_options_at_its_beginning(submitted, run, tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\n#SM --pool 研究 --cpus 2\n\n# a remark\n#SM --time 30m -l 'a=b c'\n"
        "echo begins\n#SM --priority 9\n"
    )
    assert run("submit", "--cpus", "1", "--", "bash", script).exit_code == 0
    (given,) = submitted
    assert given["entrypoint"] == ["bash", str(script)]
    assert (given["pool_name"], given["resources"]) == ("研究", {"cpu": 1.0})
    assert (given["estimated_duration"], given["labels"]) == (1800.0, {"a": "b c"})
    assert given["priority"] == 5.0


def test_a_wrong_directive_names_the_script(submitted, run, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("#SM --gups 4\nprint()\n")
    done = run("submit", "--pool", "研究", "--", "python", script)
    assert (done.exit_code, submitted) == (ExitCode.USAGE, [])
    assert str(script) in done.stderr
    assert "--gups" in done.stderr


def test_a_dry_run_says_what_would_happen_and_changes_nothing(scheduler, run):
    scheduler.pool()
    words = ("--pool", "研究", "--cpus", "4", "--dry-run", "--", "true")
    done = run("submit", *words)
    assert (done.exit_code, done.stdout) == (0, "would start now\n"), done.output
    scheduler.submit("runs", estimated_duration=600.0)
    done = run("submit", *words)
    assert done.exit_code == ExitCode.CONFLICT
    assert done.stdout.startswith("would not start now: ")
    assert "earliest start: " in done.stdout
    done = run("submit", "--priority", "9", *words)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("would start now, and evict 1:\n  runs (same_pool_preemption)")
    assert [task["task_id"] for task in scheduler.calls.list_tasks()["tasks"]] == ["runs"]
    assert run("submit", *words[2:]).exit_code == ExitCode.USAGE


@pytest.mark.parametrize("span", [42.0, 187.0, 18_720.0, 187_200.0])
def test_a_duration_is_read_as_tables_show_it(span):
    assert seconds(duration(span), "it") == span


def test_sizes_are_read_as_tables_show_them():
    assert [megabytes(size, "it") for size in ("512", "512MB", "1.5g", "1TiB")] == [
        512.0,
        512.0,
        1536.0,
        1_048_576.0,
    ]
    assert amounts_text({"memory": 65536.0}) == "memory 64 GB"
    assert str(parse_resources({"memory": "64 GB"})) == "memory 64 GB"
    with pytest.raises(InvalidRequestError):
        parse_resources({"memory": "64"})
    with pytest.raises(InvalidRequestError):
        parse_resources({"cpu": "1G"})


def test_models_labels_and_alternatives_are_joined_from_the_line_the_file_and_the_script(
    submitted, run, tmp_path
):
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n#SM --gpus 1 --gpu-model H100 --node-label zone=!b\ntrue\n")
    job = tmp_path / "job.yaml"
    job.write_text(f"pool: 研究\nor: [gpu-model=A100]\ncommand: [sh, {script}]\n")
    done = run("submit", "-f", job, "--or", "gpu-model=L40S,gpus=2")
    assert done.exit_code == 0, done.stderr
    (given,) = submitted
    model = "ray.io/accelerator-type"
    assert given["label_selector"] == {model: "H100", "zone": "!b"}
    assert given["fallback_strategy"] == [
        {"label_selector": {model: "A100"}},
        {"label_selector": {model: "L40S"}, "resources": {"gpu": 2, "cpu": 2.0}},
    ]
