"""In which language commands speak: that of ``--lang``, else that of the environment."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from schedulemesh.cli.app import app as whole_app
from schedulemesh.cli.command import Output, Target, command
from schedulemesh.cli.language import language, spoken
from schedulemesh.domain.sentences import say


@pytest.mark.parametrize(
    ("words", "variable", "shown"),
    [
        ([], "", "it is held"),
        ([], "zh_CN.UTF-8", "它被挂起"),
        (["--lang", "zh"], "", "它被挂起"),
        (["--lang", "en"], "zh", "it is held"),
    ],
)
def test_an_option_comes_before_the_environment(monkeypatch, words, variable, shown):
    monkeypatch.setenv("SCHEDULEMESH_LANG", variable or "en")
    app = typer.Typer()

    @command(app)
    def show(target: Target) -> None:
        print(spoken(say("start_held")))

    assert CliRunner().invoke(app, words).output == f"{shown}\n"


def test_an_option_holds_for_one_command(monkeypatch):
    monkeypatch.setenv("SCHEDULEMESH_LANG", "en")
    app = typer.Typer()

    @command(app)
    def show(target: Target) -> None:
        print(language())

    outputs = [CliRunner().invoke(app, words).output for words in (["--lang", "zh"], [])]
    assert outputs == ["zh\n", "en\n"]


def test_a_command_that_asks_no_scheduler_takes_the_option_too(monkeypatch):
    monkeypatch.setenv("SCHEDULEMESH_LANG", "en")
    app = typer.Typer()

    @command(app)
    def show(output: Output) -> None:
        print(language())

    outputs = [CliRunner().invoke(app, words).output for words in (["--lang", "zh"], [])]
    assert outputs == ["zh\n", "en\n"]


def commands_of(group, path=()):
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from commands_of(each, (*path, name))
        else:
            yield " ".join((*path, name)), each


def test_every_command_takes_a_language():
    options = {
        name: {option for parameter in each.params for option in parameter.opts}
        for name, each in commands_of(typer.main.get_command(whole_app))
    }
    assert len(options) > 50
    assert [name for name, taken in options.items() if "--lang" not in taken] == []


def test_help_is_in_the_language_that_stands_after_the_command(run):
    assert "用法" in run("help", "simulate", "--lang", "zh").stdout
    assert "Usage" in run("help", "simulate", "--lang", "en").stdout
