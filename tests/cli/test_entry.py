"""A command that is loaded alone is the one that all commands contain."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from schedulemesh.cli.app import app
from schedulemesh.cli.entry import MODULES, app_for
from schedulemesh.cli.root import GROUPS
from schedulemesh.cli.table_names import DECLARED
from tests.cli.served import named_by_environment

ALL = typer.main.get_group(app).commands


def parameters(command):
    return [(p.name, p.param_type_name, tuple(p.opts)) for p in command.params]


@pytest.mark.parametrize("name", [*MODULES, *DECLARED])
def test_a_command_alone_is_that_of_all(name):
    alone = typer.main.get_group(app_for([name, "--help"])).commands
    assert set(alone) < set(ALL)
    assert parameters(alone[name]) == parameters(ALL[name])
    assert alone[name].help == ALL[name].help


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["no such command"], ["help"]])
def test_other_words_load_all(words):
    assert app_for(words) is app


def test_help_lists_each_command_in_one_of_six_groups(run):
    assert len(GROUPS) == 6
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(ALL)
    for words in (["-h"], ["--help"], ["help"]):
        done = run(*words)
        assert done.exit_code == 0
        assert "..." not in done.stdout.partition("Look:")[2], "sentences are whole"
        assert max(map(len, done.stdout.splitlines())) <= 80
        for heading in GROUPS:
            assert f"\n{heading}:\n" in done.stdout


def test_help_tells_of_one_command_and_of_its_subcommands(run):
    for words in (["queue"], ["pools"], ["pools", "set"]):
        asked, own = run("help", *words), run(*words, "-h")
        assert (asked.exit_code, asked.stdout) == (0, own.stdout)
    done = run("help", "queu")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "did you mean 'queue'?" in done.stderr


@pytest.mark.parametrize(
    ("words", "variable", "value"),
    [
        (["--name", "lab"], "SCHEDULEMESH_NAME", "lab"),
        (["--namespace=n"], "SCHEDULEMESH_NAMESPACE", "n"),
        (["--address", "http://127.0.0.1:1"], "RAY_ADDRESS", "http://127.0.0.1:1"),
        (["--lang", "zh"], "SCHEDULEMESH_LANG", "zh"),
    ],
)
def test_options_of_every_command_may_stand_before_it(run, monkeypatch, words, variable, value):
    monkeypatch.setenv(variable, "")
    done = run(*words, "plugins")
    assert done.exit_code == 0, done.stderr
    assert os.environ[variable] == value


def test_of_an_option_that_is_given_twice_the_last_one_counts(scheduler, run):
    """So that an alias or a script that has it can be overridden."""
    scheduler.pool("a")
    scheduler.pool("b")
    scheduler.submit("t", "a")
    done = run("agents", "--pool", "b", "--pool", "a", "-o", "table", "-o", "name")
    assert (done.exit_code, done.stdout.count("\n")) == (0, 1)
    assert run("agents", "--pool", "a", "--pool", "b", "-o", "name").stdout == ""


def test_another_option_before_the_command_is_told_where_it_belongs(run):
    done = run("-o", "json", "pools")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "No such option: -o before the command" in done.stderr
    assert "COMMAND -o" in done.stderr
    done = run("--lang", "fr", "pools")
    assert (done.exit_code, "before the command" in done.stderr) == (2, False)


def test_status_loads_neither_other_commands_nor_ray():
    program = (
        "import sys; from schedulemesh.cli.entry import app_for; app_for(['status']); "
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "schedulemesh.cli.status" in loaded
    assert not loaded & {"ray", "sqlalchemy", "schedulemesh.cli.doctor", "schedulemesh.cli.app"}


def test_the_process_says_what_the_app_says():
    for words in (["--version"], ["status", "--help"]):
        command = [sys.executable, "-m", "schedulemesh", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "schedulemesh" in done.stdout
        assert not done.stderr


def output_to(stdout, *words):
    """The exit code of a process with this output, and what it says."""
    command = [sys.executable, "-X", "dev", "-m", "schedulemesh", *words]
    done = subprocess.run(command, check=False, stdout=stdout, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
@pytest.mark.parametrize("words", [["version"], ["version", "-o", "json"], ["help"], ["--help"]])
def test_output_that_cannot_be_written_ends_with_a_sentence(words):
    with Path("/dev/full").open("wb") as full:
        said = output_to(full, *words)
    assert said == (1, "the output cannot be written: No space left on device\n")


def test_a_reader_that_has_gone_is_not_told():
    reading, writing = os.pipe()
    os.close(reading)
    assert output_to(writing, "version") == (1, "")
    os.close(writing)


def test_a_command_without_an_output_runs():
    program = f"{shlex.quote(sys.executable)} -m schedulemesh version >&-"
    done = subprocess.run(["sh", "-c", program], check=True, stderr=subprocess.PIPE, text=True)
    assert done.stderr == ""


def test_a_list_without_an_output_runs(tmp_path, monkeypatch):
    with named_by_environment(tmp_path, monkeypatch):
        program = f"{shlex.quote(sys.executable)} -m schedulemesh tasks >&-"
        done = subprocess.run(["sh", "-c", program], check=True, stderr=subprocess.PIPE, text=True)
    assert done.stderr == "no tasks\n"


def test_what_every_command_that_asks_needs_does_not_load_all_calls():
    """Nor what packs jobs: both take longer than a short command."""
    script = (
        "import sys; import schedulemesh.cli.http_gateway; "
        "print([name for name in ('api.calls', 'api.windows', 'api.exec_sessions', 'client.packing') "
        "if f'schedulemesh.{name}' in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
