"""The README says the same in both languages."""

from __future__ import annotations

import re

from tests.docs.documents import ROOT, blocks, headings, links, pages, prose

ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"


def test_the_same_headings():
    assert [level for level, _ in headings(ENGLISH)] == [level for level, _ in headings(CHINESE)]


def test_the_same_links():
    """Where there is a Chinese page, the Chinese README may lead to it."""
    other = {CHINESE.name: ENGLISH.name, ENGLISH.name: CHINESE.name}
    chinese = [
        other.get(target, target).replace("docs/zh/", "docs/").replace("_zh.png", ".png")
        for target in links(CHINESE)
    ]
    assert chinese == links(ENGLISH)


def test_it_is_one_screen_in_which_sentences_are_short():
    """A screen of a repository's site has about a hundred lines."""
    for page in (ENGLISH, CHINESE):
        assert len(page.read_text(encoding="utf-8").splitlines()) < 100
    sentences = re.split(r"(?<=[.:;])\s", prose(ENGLISH))
    assert [each for each in sentences if len(each.split()) > 30] == []


def test_the_same_code():
    def code(page):
        return [(b.language, b.runnable, re.sub(r" *#.*", "", b.code)) for b in blocks(page)]

    assert code(CHINESE) == code(ENGLISH)


def test_the_same_list_of_features():
    def items(page):
        return sum(line.startswith("- **") for line in page.read_text("utf-8").splitlines())

    assert items(CHINESE) == items(ENGLISH) > 0


def test_it_opens_with_the_demo_and_the_tests_then_code_that_runs():
    first, second = blocks(ENGLISH)[:2]
    assert first.code == "make demo\nmake test\n"
    assert second.language == "python"
    assert second.runnable


def test_pages_are_found():
    assert len(pages()) > 15
