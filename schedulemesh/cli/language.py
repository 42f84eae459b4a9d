"""The language in which commands speak: that of ``--lang``, else that of the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from schedulemesh.domain.language import Language, language_of

if TYPE_CHECKING:
    from schedulemesh.domain.sentences import Text

_selected: Language | None = None


def speak(language: Language | None) -> None:
    """Speak this language from now on, whatever the environment says; None: what that says."""
    global _selected  # noqa: PLW0603  # a process is one command
    _selected = language


def language() -> Language:
    """The language of this command."""
    return language_of(os.environ) if _selected is None else _selected


def spoken(text: Text) -> str:
    """A text in the language of this command."""
    from schedulemesh.domain.sentences import in_words

    return in_words(text, language())
