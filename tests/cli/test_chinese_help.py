"""Help in Chinese: every command and the options of the most used ones have a text, and lines fit."""

from __future__ import annotations

from unicodedata import east_asian_width

import pytest
import typer

from schedulemesh.cli.app import app
from schedulemesh.cli.help_texts import CHINESE, HEADINGS
from schedulemesh.cli.root import GROUPS, new_app
from tests.command_runner import run_command

#: The commands whose options are in Chinese, too.
MOST_USED = (
    "status",
    "pools",
    "nodes",
    "tasks",
    "queue",
    "explain",
    "submit",
    "cancel",
    "logs",
    "usage",
    "wait",
    "history",
    "start",
    "stop",
    "apply",
    "evaluate",
    "preemptions",
    "events",
    "demo",
)


def in_one_line(text):
    return " ".join((text or "").split())


def summaries(command):
    """What a command and each below it does."""
    if command.help:
        yield in_one_line(command.help.partition("\n\n")[0])
    for each in getattr(command, "commands", {}).values():
        yield from summaries(each)


def texts_of(command):
    """All texts of the help of a command."""
    yield from map(in_one_line, command.help.split("\n\n"))
    yield from (in_one_line(one.help) for one in command.params if getattr(one, "help", None))


def columns(line):
    return sum(2 if east_asian_width(one) in "WF" else 1 for one in line)


def test_every_command_and_each_option_of_the_most_used_ones_has_a_text():
    root = typer.main.get_command(app)
    shown = {*summaries(root), *GROUPS, new_app().info.epilog}
    for name in MOST_USED:
        shown.update(texts_of(root.commands[name]))
    assert sorted(shown - set(CHINESE) - set(HEADINGS)) == []


def test_no_text_is_left_of_what_help_does_not_say():
    root, shown = typer.main.get_command(app), set()

    def collect(command):
        shown.update(texts_of(command) if command.help else ())
        for each in getattr(command, "commands", {}).values():
            collect(each)

    collect(root)
    shown |= {new_app().info.epilog}
    # What Typer adds to every command.
    added = {text for text in CHINESE if "completion for the current shell" in text}
    added |= {"Show this message and exit."}
    assert sorted(set(CHINESE) - shown - added) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        [],
        ["help"],
        ["pools", "--help"],
        ["help", "pools"],
        ["submit", "-h"],
        ["tokens"],
        ["queue", "--help", "--lang", "zh"],
        ["--lang=zh", "tasks", "wait", "--help"],
    ],
)
def test_help_is_in_chinese_where_chinese_is_asked_for(monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("SCHEDULEMESH_LANG", "en" if "zh" in "".join(words) else "zh_CN.UTF-8")
    output = run_command(words).output
    assert "用法：" in output
    assert "显示此说明并退出。" in output
    assert not {"Usage:", "Options:", "Commands:", "default:"} & set(output.split())
    assert max(map(columns, output.splitlines())) <= 80


def test_help_is_in_english_else(monkeypatch):
    monkeypatch.setenv("SCHEDULEMESH_LANG", "zh")
    output = run_command(["queue", "--help", "--lang", "en"]).output
    assert "Usage:" in output
    assert "用法" not in output
