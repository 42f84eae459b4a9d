"""What a screen says in one language: texts, codes, amounts and times as people read them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.language import LANGUAGES, Language
from schedulemesh.domain.reasons import LIMITS
from schedulemesh.domain.resources import is_memory
from schedulemesh.domain.texts.codes import CODES
from schedulemesh.errors import ScheduleMeshError
from schedulemesh.protocol.wording import in_commands, translated
from schedulemesh.server.listings import Row
from schedulemesh.server.page.call_texts import CALL_TEXTS
from schedulemesh.server.page.entries import InvalidEntryError
from schedulemesh.server.page.texts import TEXTS

#: MB of the unit in which memory is shown and entered.
MB_OF_GB = 1024.0
#: How many names a title has.
_NAMED = 3
_LIMITS = frozenset(limit.value for limit in LIMITS)
#: An id of a node of Ray within a sentence.
_NODE_ID = re.compile(r"\b[0-9a-f]{56}\b")
#: The units of durations, the longest first: the text, and the seconds of its first and of its second part.
_UNITS = (("days", 86_400, 3_600), ("hours", 3_600, 60), ("minutes", 60, 1))


class Words:
    """The texts of one language."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self.html_language = "zh-CN" if language == "zh" else "en"
        self._column = LANGUAGES.index(language)

    def text(self, key: str, **parameters: object) -> str:
        """A text with its parameters, which are not escaped."""
        return TEXTS[key][self._column].format_map(parameters)

    def call(self, name: str) -> str:
        """What a call in the record of changes did; one of another version, without a text, by its name."""
        texts = CALL_TEXTS.get(name)
        return name if texts is None else texts[self._column]

    def code(self, code: object) -> str:
        """What a code or a state says; one without a text, such as a user's own, as it is."""
        texts = CODES.get(str(code))
        return str(code) if texts is None else texts[self._column]

    def error(self, error: ScheduleMeshError) -> str:
        """Why what was asked for cannot be. What the page does not word itself stays as it is, and a phrase
        of this language says so.
        """
        if isinstance(error, InvalidEntryError):
            return self.text(error.key, **error.parameters)
        return self.text("in_english", error=error)

    def problem(self, body: Mapping[str, Any]) -> str:
        """The same of a refusal, which may be a sentence."""
        if "error" in body.get("sentences", ()):
            return str(translated(body, self.language)["error"])
        return self.text("in_english", error=body["error"])

    def end(self, state: str, reason: str) -> str:
        """What a state says of a task. One that was evicted and does not run again was not cancelled by
        anybody, although that is its state in the API.
        """
        is_evicted = (state, reason) == ("cancelled", TaskEndReason.PREEMPTED.value)
        return self.text("evicted_for_good") if is_evicted else self.code(state)

    def end_of_attempt(self, attempt: Row) -> str:
        """What a state says of an attempt; one that ended by an eviction was not cancelled, either, unless it
        reached a limit in time.
        """
        state, rule = attempt["state"], attempt["rule"]
        is_evicted = state == "cancelled" and rule == attempt["reason"] and rule not in _LIMITS
        return self.code("preempted" if rule and is_evicted else state)

    def span(self, seconds: float | None) -> str:
        """A duration in its two largest units, to the second."""
        if seconds is None:
            return self.text("none")
        rest = max(0, round(seconds))
        for key, first_s, second_s in _UNITS:
            if rest >= first_s:
                return self._parts(key, rest // first_s, rest % first_s // second_s)
        return self.text("seconds", first=rest)

    def _parts(self, key: str, first: int, second: int) -> str:
        """Two units of a duration; a second one that is zero is left out."""
        both = self.text(key, first=first, second=second)
        return both if second else both.rpartition(" 0")[0]

    def amount(self, kind: str, amount: float) -> str:
        """An amount of one kind, with its unit where it has one."""
        if not is_memory(kind):
            return number(amount)
        if amount < MB_OF_GB:
            return self.text("mb", amount=number(amount))
        return self.text("gb", amount=number(round(amount / MB_OF_GB, 1)))

    def kind(self, kind: str) -> str:
        """What a kind of resource is called; custom ones have their own names."""
        return {"cpu": "CPU", "gpu": "GPU", "memory": self.text("memory")}.get(kind, kind)

    def named(self, names: Sequence[str]) -> str:
        """The first of these names, and how many others there are."""
        first = self.text("name_separator").join(names[:_NAMED])
        if len(names) <= _NAMED:
            return first
        return f"{first} {self.text('and_more', count=len(names) - _NAMED)}"

    def amounts(self, amounts: Mapping[str, Any] | None) -> str:
        """Several amounts in one line; a dash for none."""
        parts = [
            f"{self.kind(kind)} {self.amount(kind, amount)}"
            for kind, amount in by_kind(amounts or {}).items()
        ]
        return self.text("separator").join(parts) or self.text("none")


#: In both languages.
WORDS: Mapping[Language, Words] = {language: Words(language) for language in LANGUAGES}


def number(value: float) -> str:
    """A number without digits that say nothing."""
    return f"{round(value, 4):.12g}"


def in_words(sentence: str, node_names: Mapping[str, str]) -> str:
    """A sentence of the scheduler in the words of the command line, with names for the ids of nodes."""
    return in_commands(_NODE_ID.sub(lambda match: node_names.get(match[0], match[0]), sentence))


def by_kind(amounts: Mapping[str, Any]) -> dict[str, float]:
    """The amounts by kind, GPUs first, custom resources by their names last; without those that are zero."""
    standard_amounts = {kind: amounts.get(kind) or 0.0 for kind in ("gpu", "cpu", "memory")}
    every = {**standard_amounts, **amounts.get("custom", {})}
    return {kind: amount for kind, amount in every.items() if amount}


def clock_time(at: float) -> str:
    """Seconds since 1970 as date, time and zone of this server's machine."""
    return datetime.fromtimestamp(at, tz=timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def machine_time(at: float) -> str:
    """Seconds since 1970 as the attribute of a ``time`` element."""
    return datetime.fromtimestamp(at, tz=timezone.utc).isoformat(timespec="seconds")
