"""Commands that pages show exist, with their options."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from schedulemesh.cli.app import app
from tests.docs.documents import ROOT, blocks, pages

ROOT_COMMAND = typer.main.get_command(app)
#: A command of the program at the beginning of a line or of a part of one.
_CALL = re.compile(r"(?:^|[|;&(] *|\$ |-- )schedulemesh ([^|;&<>\n]*)")


def calls(page):
    """The calls of `schedulemesh` in the blocks of a page, with the line in which each stands."""
    for block in blocks(page):
        if block.language in ("bash", "console", "sh"):
            for number, line in enumerate(block.code.replace("\\\n", " ").splitlines()):
                for call in _CALL.findall(line):
                    yield f"{page.relative_to(ROOT)}:{block.line + number}", call


def words_of(call):
    """The words of a call; a placeholder such as … and a comment are left out."""
    lexer = shlex.shlex(call.replace("…", " "), posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        return list(lexer)
    except ValueError:  # a quotation that ends on a later line
        return call.split()


def problem_of(call):
    """What is wrong with a call; empty: nothing is."""
    command, names = ROOT_COMMAND, []
    for word in words_of(call):
        if word == "--":
            break
        if word.startswith("-") and word != "-":
            option = word.partition("=")[0]
            known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
            if option not in known | {"-h", "--help"} and not re.fullmatch(r"-\d.*", option):
                return f"{' '.join(names) or 'schedulemesh'} has no option {option}"
        elif hasattr(command, "commands"):
            if word in command.commands:
                command = command.commands[word]
                names.append(word)
            elif not names:
                return f"there is no command {word}"
    return ""


SHOWN = [
    (where, call) for page in pages() if page.name != "CHANGELOG.md" for where, call in calls(page)
]


@pytest.mark.parametrize(("where", "call"), SHOWN, ids=[where for where, _ in SHOWN])
def test_a_command_exists(where, call):
    if "/shared_day.md" not in where:  # it shows a mistake and its answer
        assert problem_of(call) == ""


def test_a_wrong_command_is_found():
    assert problem_of("sumbit --pool p") == "there is no command sumbit"
    assert problem_of("submit --pol p -- x") == "submit has no option --pol"
    assert problem_of("pools create p resources.gpu=8") == ""


def test_calls_are_found():
    assert len(SHOWN) > 150
