"""Faults of user code as text."""

from __future__ import annotations

import pytest

from schedulemesh.core.agent.user_errors import error_text
from schedulemesh.protocol.agents import exception_line, line_and_traceback, writable


def caught(error):
    def raising():
        raise error

    with pytest.raises(type(error)) as found:
        raising()
    return found.value


class Unshowable(BaseException):
    def __str__(self):
        raise SystemExit(3)


class Meta(type):
    @property
    def __module__(cls):
        raise KeyboardInterrupt


class Nameless(BaseException, metaclass=Meta):
    pass


def test_a_traceback_ends_with_what_was_raised():
    shown = error_text(caught(ValueError("no")))
    assert shown.endswith("ValueError: no")
    assert "raise error" in shown


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (Unshowable(), "Unshowable"),
        (Nameless(), "Nameless"),
        (SystemExit(), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_what_cannot_be_shown_is_named_at_least(error, name):
    assert name in error_text(caught(error))


def test_texts_of_user_code_can_be_written_down():
    assert writable("schön") == "schön"
    assert writable("a\udcffb") == "a\\udcffb"
    long = writable("x" * 50_000)
    assert len(long) < 11_000
    assert "\n...\n" in long
    assert error_text(caught(OSError("no file \udcff"))).endswith("OSError: no file \\udcff")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError("first\n  File \nlast"), "ValueError: first"),
        (RuntimeError("\nshapes differ:\n(2,) (3,)"), "RuntimeError: shapes differ:"),
        (SyntaxError("bad", ("a.py", 1, 1, "x y")), "SyntaxError: bad"),
        (KeyError("count"), "KeyError: 'count'"),
        (ValueError("x" * 900), f"ValueError: {'x' * 488}..."),
    ],
)
def test_an_error_of_user_code_is_told_in_one_line(error, line):
    text = error_text(caught(error))
    assert line_and_traceback(text) == (line, text)


@pytest.mark.parametrize(
    ("text", "line"),
    [("not done after 1 s", "not done after 1 s"), ("", ""), ("The actor died.\n\tclass: X", None)],
)
def test_a_text_that_is_no_traceback_is_told_by_its_first_line(text, line):
    assert exception_line(text) == (text.partition("\n")[0] if line is None else line)
    assert bool(line_and_traceback(text)[1]) == (line is None)
