"""What Ray says while it sets up a runtime environment, and why it could not: one line of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

#: How the lines begin in which pip, uv and conda name what is wrong; the first one says it.
_NAMED = re.compile(r"^\s*(?:ERROR:|error:|fatal:|[A-Z]\w*(?:NotFound|Unsatisfiable)\w*:)\s*\S")
#: uv names the cause under a headline: after ``error:`` in lines of this kind, or with a sign before each.
_CAUSE_OF_UV = re.compile(r"^\s+(?:cause|Caused by): (\S.*)")
_OF_UV = re.compile(r"^\s*(?:×|╰─▶)\s*(\S.*)")
#: The last line of a traceback: an exception with its message.
_EXCEPTION = re.compile(r"^(?:[\w]+\.)*\w*(?:Error|Exception|Exit)\w*: \S")
#: A line of a traceback, or around one.
_OF_TRACEBACK = re.compile(r"^\s*(?:File \"|Traceback \(|\^|During handling|The above exception)")
#: All versions that there are, which pip lists.
_VERSIONS = re.compile(r" \(from versions: [^)]*\)")
_MAX_CHARS = 500
#: How each line of Ray's own log begins: time, level and place.
_LOGGED = re.compile(r"^\d{4}-\d\d-\d\d \S+\s+[A-Z]+ \S+ -- ")
_TAIL_BYTES = 8192


def cause_of(message: str) -> str:
    """What Ray's message about a failed environment says of the cause, in one line: of pip its first
    ``ERROR:``, of uv its error with the causes of that, else the exception, else the last line that belongs
    to no traceback.
    """
    # Ray quotes the output of the installer as the text of an exception, with its line breaks escaped.
    lines = [line for line in message.replace("\\n", "\n").splitlines() if line.strip()]
    cause = _named_cause(lines)
    if cause is None:
        of_uv = [match[1] for line in lines if (match := _OF_UV.match(line))]
        cause = ": ".join(part.rstrip(":") for part in of_uv[:2]) or None
    if cause is None:
        cause = next((line for line in reversed(lines) if _EXCEPTION.match(line)), None)
    if cause is None:
        outside_traceback = [line for line in lines if not _OF_TRACEBACK.match(line)]
        cause = outside_traceback[-1] if outside_traceback else "Ray does not say why"
    line = _VERSIONS.sub("", cause.strip())
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}..."


def _named_cause(lines: Sequence[str]) -> str | None:
    """The first line in which an installer names what is wrong, with the causes below it; None: none does."""
    for number, line in enumerate(lines):
        if _NAMED.match(line):
            below = takewhile(bool, map(_CAUSE_OF_UV.match, lines[number + 1 :]))
            return ": ".join((line.strip(), *(match[1] for match in below if match)))
    return None


def last_line_of(log: Path) -> str:
    """The last line of a log of Ray that says anything, without its time and level; empty: there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _LOGGED.sub("", lines[-1])[:_MAX_CHARS] if lines else ""
