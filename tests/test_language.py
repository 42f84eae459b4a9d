"""Standard terms only: words that were given up in favour of a term of the field do not come back.

A word is searched for in code, identifiers included, in documents and in tests. If one of them is the right
word somewhere, add the place to ``ALLOWED`` with the reason.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: A word (a pattern, not within a longer word) and the term to write instead.
TERMS = {
    r"scribes?": "reactor",
    r"patrols?": "cluster monitor",
    r"births?": "agent start",
    r"hands(?![_ ](?:over|its|nothing))": "executor, passes, requested of",
    r"parcels?": "array transport",
    r"wish(?:es)?": "autoscaler request",
    r"dwellers?": "member",
    r"strays?": "orphan",
    r"newcomers?": "incoming task, incoming agent",
    r"strangers?": "foreign actor, other actor",
    r"ready hosts?": "warm host",
    r"by (?:our )?hand": "manually, by request",
    r"struck off": "removed",
    r"(?:on|off) the books?": "listed, removed",
    r"(?:quota|node|group) books?|GroupBook": "quota ledger, node state, placement groups",
    r"ma(?:de|kes?) way": "is evicted, is removed",
    r"seated": "placed, started",
    r"for want of": "because of a shortage of",
    r"former life|next life": "previous incarnation, after a restart",
}
#: (file, word) where the word is right, and why.
ALLOWED: dict[tuple[str, str], str] = {}
#: Whole folders that are not searched: data of others.
DATA = "tests/data/"


def files() -> list[Path]:
    """Every text file of the project that people read."""
    kinds = {".py", ".md", ".txt", ".toml"}
    folders = ("schedulemesh", "docs", "tests", "examples", "benchmarks", "packaging")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    found += [*ROOT.glob("*.md"), ROOT / "pyproject.toml"]
    return sorted(
        path
        for path in found
        if path.suffix in kinds and DATA not in path.as_posix() and path != Path(__file__)
    )


@cache
def texts() -> dict[str, tuple[str, str]]:
    """What is written in each file by its name, and the same in lower case, which is searched sooner."""
    written = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files()
    }
    return {name: (text, text.lower()) for name, text in written.items()}


def found_in(text: str, word: str) -> list[str]:
    """The lines in which the word stands alone, also as a part of a name such as ``a_word``."""
    alone = re.compile(f"(?<![A-Za-z])(?:{word})(?![A-Za-z])", re.IGNORECASE)
    return [line.strip() for line in text.splitlines() if alone.search(line)]


@pytest.mark.parametrize("word", TERMS)
def test_the_standard_term_is_used(word):
    wrong = []
    anywhere = re.compile(word.lower())  # its lines need to be looked at only where this is
    for name, (text, lowered) in texts().items():
        if anywhere.search(lowered) and (name, word) not in ALLOWED:
            wrong += [f"{name}: {line}" for line in found_in(text, word)]
    assert not wrong, f"write {TERMS[word]!r} instead:\n" + "\n".join(wrong)


def test_allowed_places_exist():
    for name, word in ALLOWED:
        assert found_in((ROOT / name).read_text(encoding="utf-8"), word), (name, word)


def test_a_word_is_found_in_names_and_not_within_others():
    assert found_in("def test_a_newcomer_waits():", r"newcomers?")
    assert found_in("Strays are ended.", r"strays?")
    assert not found_in("It describes the ashtray.", r"scribes?|strays?")
