"""The reference of the commands is that of the app.

Run with REWRITE_DOCS=1 to write it anew.
"""

from __future__ import annotations

import dataclasses
import inspect
import re

import typer

from schedulemesh.cli.app import app
from schedulemesh.cli.command import Format, Select, Target, View
from schedulemesh.cli.exits import ExitCode
from tests.docs.documents import ROOT, check_generated, section

PAGE = ROOT / "docs" / "command_line.md"
COMMAND = "REWRITE_DOCS=1 .venv/bin/python -m pytest tests/docs/test_command_line.py"
#: Options that the page describes once for all commands.
SHARED = {field.name for group in (Target, View, Select) for field in dataclasses.fields(group)}


def commands(group, path="schedulemesh"):
    """Every command by its words; a group that does something by itself is one, too."""
    for name, one in group.commands.items():
        words = f"{path} {name}"
        if not hasattr(one, "commands") or one.invoke_without_command:
            yield words, one
        if hasattr(one, "commands"):
            yield from commands(one, words)


def usage(words, command):
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    shown = [f"{p.name.upper()}{'…' if p.nargs == -1 else ''}" for p in arguments]
    return " ".join([words, *shown])


def described(parameter):
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.name.upper()}`"
    default = parameter.default
    silent = default is None or default is False or default == () or callable(default)
    return f"| {names} | {parameter.help}{'' if silent else f' Default: `{default}`.'} |"


def reference():
    text = ""
    for words, command in sorted(commands(typer.main.get_command(app))):
        text += f"\n### `{usage(words, command)}`\n\n{inspect.cleandoc(command.help)}\n"
        own = [p for p in command.params if p.name not in SHARED and p.name != "help"]
        if own:
            text += "\n".join(["\n| option | meaning |", "|---|---|", *map(described, own), ""])
    return text.lstrip("\n")


def test_the_reference_of_commands_is_current():
    check_generated(PAGE, "commands", reference(), COMMAND)


def test_formats_and_shared_options_are_described():
    text = section(PAGE, "Output")
    for form in Format:
        assert f"| `{form.value}` |" in text
    whole = PAGE.read_text(encoding="utf-8")
    for name in (
        "filter",
        "label",
        "watch",
        "interval",
        "count",
        "since",
        "name",
        "namespace",
        "address",
    ):
        assert f"`--{name}" in whole, name


def test_exit_codes_are_described():
    codes = re.findall(r"^\| (\d+) \|", section(PAGE, "Exit codes"), re.MULTILINE)
    assert sorted(map(int, codes)) == sorted(ExitCode)
