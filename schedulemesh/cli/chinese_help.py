"""Help in Chinese: commands are copied, with contexts whose formatter exchanges the texts.

The commands are declared in English alone, see ``help_texts``. What has no text there stays in English.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from typing import Any
from unicodedata import east_asian_width

from schedulemesh.cli.help_texts import CHINESE, HEADINGS, REMARKS

#: The default value and the like, behind the text of an option.
_IN_BRACKETS = re.compile(r"\s\s\[(.*)\]$")
#: How a listing of commands ends a text that is too long for it.
_CUT = "..."
#: What is not divided between two lines: a word in Latin letters, or another character, with the marks that
#: open before it and those that close behind it.
_PARTS = re.compile(r"[\[（“]*(?:[!-~]+|.)[，。；：、）”]*")


def with_chinese_help(command: Any) -> Any:
    """A copy of a command that writes its help in Chinese, and so do those below it."""
    chinese = copy.copy(command)
    chinese.context_class = _context_class(command.context_class)
    if hasattr(command, "commands"):
        chinese.commands = {
            name: with_chinese_help(each) for name, each in command.commands.items()
        }
    return chinese


def in_chinese(text: str) -> str:
    """A text of help in Chinese, with what stands in brackets behind it."""
    brackets = _IN_BRACKETS.search(text)
    if brackets is not None:
        remarks = "；".join(map(_remark, brackets[1].split("; ")))
        return f"{in_chinese(text[: brackets.start()])}  [{remarks}]"
    line = " ".join(text.split())
    if line.endswith(_CUT):
        begin = line.removesuffix(_CUT)
        return next((CHINESE[one] for one in CHINESE if one.startswith(begin)), text)
    return CHINESE.get(line, text)


def _remark(remark: str) -> str:
    kind, colon, value = remark.partition(": ")
    name = REMARKS.get(kind, kind)
    return f"{name} {value}" if colon else name


def _context_class(base: Any) -> Any:
    """The contexts of a command, with the formatter in Chinese."""
    formatter_class = type("ChineseFormatter", (_InChinese, base.formatter_class), {})
    return type(base.__name__, (base,), {"formatter_class": formatter_class})


class _InChinese:
    """What a formatter of help does otherwise."""

    width: int
    current_indent: int

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        del prefix
        super().write_usage(prog, args, f"{HEADINGS['Usage']}：")  # type: ignore[misc]

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{HEADINGS.get(heading, heading)}：\n")  # type: ignore[attr-defined]

    def write_text(self, text: str) -> None:
        paragraphs = map(in_chinese, text.split("\n\n"))
        width = self.width - self.current_indent
        super().write_text("\n\n".join(_as_it_is(one, width) for one in paragraphs))  # type: ignore[misc]

    def write_dl(
        self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        first = min(max(len(name) for name, _ in rows), col_max) + col_spacing
        width = max(self.width - first - 2, 10)
        chinese = [(name, _as_it_is(in_chinese(text), width)) for name, text in rows]
        super().write_dl(chinese, col_max, col_spacing)  # type: ignore[misc]


def _as_it_is(text: str, width: int) -> str:
    """A paragraph in lines of this width, marked so that a formatter does not wrap it again."""
    return "\b\n" + "\n".join(_lines(" ".join(text.split()), width)) if text else text


def _lines(text: str, width: int) -> Iterator[str]:
    """A text in lines of a width, in columns of the terminal, in which a Chinese character takes two."""
    line, columns = "", 0
    for part in _PARTS.findall(text):
        size = sum(2 if east_asian_width(one) in "WF" else 1 for one in part)
        if columns + size > width and line:
            yield line.rstrip()
            line, columns = "", 0
        if line or part != " ":
            line, columns = line + part, columns + size
    yield line.rstrip()
