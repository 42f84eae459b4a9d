"""A command that is loaded alone is the one that all commands contain."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from schedulemesh.cli.app import app
from schedulemesh.cli.entry import ALONE, app_for

ALL = typer.main.get_group(app).commands


def parameters(command):
    return [(p.name, p.param_type_name, tuple(p.opts)) for p in command.params]


@pytest.mark.parametrize("name", ALONE)
def test_a_command_alone_is_that_of_all(name):
    alone = typer.main.get_group(app_for([name, "--help"])).commands
    assert set(alone) < set(ALL)
    assert parameters(alone[name]) == parameters(ALL[name])
    assert alone[name].help == ALL[name].help


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["no such command"], ["doctor"]])
def test_other_words_load_all(words):
    assert app_for(words) is app


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
