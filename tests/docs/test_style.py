"""Pages that people read from top to bottom are short: how-to pages, their paragraphs, and sentences."""

from __future__ import annotations

import re

import pytest

from tests.docs.documents import ROOT, prose
from tests.docs.test_site import DOCS, SETTINGS, entries

#: Words of two screens of a wide window, of a paragraph and of a sentence, at most.
PAGE, PARAGRAPH, SENTENCE = 1_800, 150, 30
#: It follows the sections of the document that the project began with, one after the other.
LONG_PAGES = {"preemption_guide.md"}
_GENERATED = re.compile(r"<!-- generated: \S+ -->\n.*?<!-- end -->\n", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK_TARGET = re.compile(r"(?<=\])\([^)]*\)")


def pages_of(part):
    """The pages of a part of the navigation."""
    section = next(each[part] for each in SETTINGS["nav"] if part in each)
    return [DOCS / name for name in entries(section)]


HOW_TO = pages_of("How-to")
READ_THROUGH = [*pages_of("Tutorial"), *HOW_TO, ROOT / "README.md", ROOT / "CHANGELOG.md"]


def text_of(page):
    """What is read of a page: no code, no comments, nothing generated, no targets of links."""
    text = _GENERATED.sub("", prose(page))
    return _LINK_TARGET.sub("", _COMMENT.sub("", text))


def words(text):
    return [word for word in text.split() if re.search(r"\w", word)]


def sentences(page):
    for line in text_of(page).splitlines():
        for part in line.split("|") if line.startswith("|") else (line,):
            yield from re.split(r"(?<=[.:;!?])\s+", part)


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.name)
def test_a_how_to_page_fits_two_screens(page):
    """What goes further is a page of its own among the reference or the explanations."""
    count = len(words(text_of(page)))
    assert (count > PAGE) == (page.name in LONG_PAGES), f"{count} words"


@pytest.mark.parametrize("page", READ_THROUGH, ids=lambda page: page.name)
def test_paragraphs_and_sentences_are_short(page):
    paragraphs = re.split(r"\n\s*\n", text_of(page))
    long = [each for each in paragraphs if len(words(each)) > PARAGRAPH]
    assert [each for each in long if not re.match(r"\s*([-*|]|\d+\.)", each)] == []
    assert [each for each in sentences(page) if len(words(each)) > SENTENCE] == []
