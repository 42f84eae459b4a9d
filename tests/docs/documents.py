"""The documents of the repository, taken apart: headings, links, code blocks."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Where documents are; what is built or installed elsewhere is not ours.
FOLDERS = ("docs", "examples", "packaging", "schedulemesh", "tests", "benchmarks")
#: Stands on the line before a block that is run; the blocks of one document share their names.
RUNNABLE = "<!-- runnable -->"
#: Stands before what the block above it prints.
PRINTS = "<!-- prints -->"

_FENCE = re.compile(r"^(`{3,})(\S*)[^\n]*\n(.*?)^\1 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    page: Path
    #: Of its first line of code.
    line: int
    language: str
    code: str
    runnable: bool
    #: Whether it is what the runnable block above it prints.
    output: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every document."""
    found = [*ROOT.glob("*.md")]
    for folder in FOLDERS:
        found += (ROOT / folder).rglob("*.md")
    return sorted(found)


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page=page,
            line=text.count("\n", 0, match.start(3)) + 1,
            language=match[2],
            code=match[3],
            runnable=text[: match.start()].rstrip("\n").endswith(RUNNABLE),
            output=text[: match.start()].rstrip("\n").endswith(PRINTS),
        )
        for match in _FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def headings(page: Path) -> list[tuple[int, str]]:
    """Level and text of each heading."""
    found = re.findall(r"^(#{1,6}) +(.+?) *$", prose(page), re.MULTILINE)
    return [(len(marks), text) for marks, text in found]


def links(page: Path) -> list[str]:
    """The targets of all links, in order; what stands in `code` is none."""
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page)))


def anchors(page: Path) -> set[str]:
    """What a link to this page may have after its #, as GitHub makes them."""
    found: set[str] = set()
    for _, text in headings(page):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        name, n = slug, 0
        while name in found:
            n += 1
            name = f"{slug}-{n}"
        found.add(name)
    return found


def section(page: Path, heading: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    text = page.read_text(encoding="utf-8")
    match = re.search(rf"^(#+) {re.escape(heading)} *$", text, re.MULTILINE)
    if match is None:
        raise AssertionError(f"{page.relative_to(ROOT)} has no heading {heading!r}")
    rest = text[match.end() :]
    end = re.search(rf"^#{{1,{len(match[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def check_generated(page: Path, name: str, content: str, command: str) -> None:
    """Fail where a page does not have this between its markers of a generated part; with REWRITE_DOCS it is
    written there.
    """
    text = page.read_text(encoding="utf-8")
    marked = re.compile(f"(<!-- generated: {name} -->\n).*?(<!-- end -->\n)", re.DOTALL)
    wanted, replaced = marked.subn(lambda found: found[1] + content + found[2], text)
    assert replaced == 1
    if os.environ.get("REWRITE_DOCS"):
        page.write_text(wanted, encoding="utf-8")
    elif text != wanted:
        pytest.fail(f"the part {name!r} of {page.relative_to(ROOT)} is stale; run {command}")
