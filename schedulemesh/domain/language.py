"""The language of texts for people: English, or Chinese where the environment asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Language = Literal["en", "zh"]

#: All languages.
LANGUAGES: tuple[Language, ...] = ("en", "zh")

#: The variable that selects the language, before those of the locale.
VARIABLE = "SCHEDULEMESH_LANG"
#: The variables of the locale, in the order in which POSIX reads them.
_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")


def language_of(environ: Mapping[str, str]) -> Language:
    """The language that the variables of a process select; any other than Chinese gives English."""
    selected = next((environ[name] for name in (VARIABLE, *_LOCALE) if environ.get(name)), "")
    return "zh" if selected.strip().lower().startswith("zh") else "en"
