"""In which language commands speak: that of ``--lang``, else that of the environment."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from schedulemesh.cli.command import Target, command
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
