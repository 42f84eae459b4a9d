"""The language of texts for people: English, or Chinese where the environment or a browser asks for it."""

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


#: Characters of a header that are looked at. Browsers send fewer than 100.
_MOST_OF_HEADER = 1_000


def preferred_language(accepted: str) -> Language:
    """The language that a header ``Accept-Language`` prefers, by its first 1,000 characters; English where it
    names none of all.
    """
    best: tuple[float, Language] = (0.0, "en")
    if not accepted:
        return "en"
    for part in accepted[:_MOST_OF_HEADER].split(","):
        tag, _, quality = part.strip().lower().partition(";q=")
        language: Language | None = next(
            (one for one in LANGUAGES if tag == one or tag.startswith(f"{one}-")), None
        )
        if language is not None and _quality(quality) > best[0]:
            best = (_quality(quality), language)
    return best[1]


def _quality(text: str) -> float:
    """The weight of a language; 1.0 where there is none, 0.0 where it is not valid."""
    try:
        return float(text or 1.0)
    except ValueError:
        return 0.0
