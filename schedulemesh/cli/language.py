"""The language in which commands speak: that of ``--lang``, else that of the environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

from schedulemesh.domain.language import Language, language_of

if TYPE_CHECKING:
    from schedulemesh.domain.sentences import Convertible, Text

_selected: Language | None = None
#: What asks for help.
_HELP = frozenset(("-h", "--help", "help"))


def speak(language: Language | None) -> None:
    """Speak this language from now on, whatever the environment says; None: what that says."""
    global _selected  # noqa: PLW0603  # a process is one command
    _selected = language


def asks_for_chinese_help(words: Sequence[str]) -> bool:
    """Whether a command line asks for help, and the language is Chinese, by its ``--lang`` or else by the
    environment.
    """
    own_words = [*takewhile(lambda word: word != "--", words)]
    if len(own_words) > 1 and not _HELP.intersection(own_words):
        return False
    named = [word.removeprefix("--lang=") for word in own_words if word.startswith("--lang=")]
    named += [word for before, word in pairwise(own_words) if before == "--lang"]
    return named[0] == "zh" if named else language_of(os.environ) == "zh"


def language() -> Language:
    """The language of this command."""
    return language_of(os.environ) if _selected is None else _selected


def spoken(text: Text) -> str:
    """A text in the language of this command."""
    from schedulemesh.domain.sentences import in_words

    return in_words(text, language())


def phrase(code: str, /, **parameters: Convertible) -> str:
    """The sentence of a code in the language of this command."""
    from schedulemesh.domain.sentences import say

    return spoken(say(code, **parameters))
