"""The page for users of Slurm and Kueue has each of their terms, in both languages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.test_site import DOCS

TERMS = [
    line
    for line in Path(__file__).with_name("peer_terms.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
]
_ROW = re.compile(r"^\| (.+) \|$", re.MULTILINE)


@pytest.mark.parametrize("folder", ["", "zh"])
def test_every_term_of_slurm_and_kueue_has_its_row(folder):
    text = (DOCS / folder / "coming_from.md").read_text("utf-8")
    said = {word for span in re.findall(r"`([^`]+)`", text) for word in re.split(r"[ =:]", span)}
    said |= set(re.findall(r"[A-Za-z][\w-]+", text))
    assert [term for term in TERMS if term not in said] == []


@pytest.mark.parametrize("folder", ["", "zh"])
def test_every_row_says_what_there_is_here(folder):
    text = (DOCS / folder / "coming_from.md").read_text("utf-8")
    rows = [row.split(" | ") for row in _ROW.findall(text)]
    headings = [row for row in rows if row[0].startswith("*")]
    assert len(rows) > 150
    assert [row for row in rows if row not in headings and not row[1].strip()] == []


def test_both_pages_have_as_many_rows_in_each_part():
    parts = [
        re.split(
            r"^##+ ", (DOCS / folder / "coming_from.md").read_text("utf-8"), flags=re.MULTILINE
        )
        for folder in ("", "zh")
    ]
    english, chinese = ([len(_ROW.findall(part)) for part in page] for page in parts)
    assert english == chinese
