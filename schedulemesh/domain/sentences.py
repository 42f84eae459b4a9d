"""Sentences for people: a code and its parameters, put into words in English or Chinese.

The words of every code are in ``schedulemesh.domain.texts``, in both languages. A text there is a format
string, whose fields may say how a parameter is written:

- ``{wait:span}``: seconds as a duration;
- ``{state:code}``: a code, which Chinese texts translate; ``{reason:meaning}``: what it means;
- ``{count:# task|# tasks}``: one form for 1 and one for all others, in which ``#`` is the number;
- ``{names:; }``: the parts of a tuple with this separator between them;
- anything else as in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from string import Formatter
from typing import Union

import msgspec

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.language import LANGUAGES, Language
from schedulemesh.domain.numbers import span_text
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.texts.codes import CODES
from schedulemesh.domain.texts.table import TEXTS
from schedulemesh.errors import nearest_name

#: What a sentence is about; a sentence within another one is put into the same language.
Parameter = Union[str, int, float, "Sentence", tuple[Union[str, "Sentence"], ...]]
#: What has to be converted to be a parameter.
Convertible = Union[Parameter, Resources, Sequence["str | Sentence"]]

#: What each code means, as the end of a sentence.
_MEANINGS = {code.value: code.meaning.rstrip(".") for code in (*Reason, *TaskEndReason)}
_SPAN_PART = re.compile(r"(\d+)([dhms])")
_CHINESE_UNITS = {"d": "天", "h": "小时", "m": "分钟", "s": "秒"}


class Sentence(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A sentence, or a part of one. As a string it is in English."""

    code: str
    parameters: dict[str, Parameter] = {}

    def __str__(self) -> str:
        return in_words(self, "en")


#: A sentence of ours, or a text of others as it is, such as the message of an exception.
Text = Union[str, Sentence]


class InEnglish:
    """An attribute of a struct: the text of one of its fields in English."""

    __slots__ = ("_field",)

    def __init__(self, field: str) -> None:
        self._field = field

    def __get__(self, struct: object, kind: type | None = None) -> str:
        return str(getattr(struct, self._field))


def say(code: str, /, **parameters: Convertible) -> Sentence:
    """The sentence of a code with these parameters."""
    return Sentence(code, {name: _parameter(value) for name, value in parameters.items()})


def did_you_mean(word: str, allowed: Iterable[str]) -> Text:
    """Which of the allowed names was probably meant, in brackets; empty: none is similar."""
    near = nearest_name(word, allowed)
    return "" if near is None else say("did_you_mean", name=near)


def in_words(text: Text, language: Language) -> str:
    """A text in a language; what is no sentence as it is."""
    if isinstance(text, str):
        return text
    try:
        return translation(text, language)
    except KeyError:
        # Of another version, for example in an old journal.
        parameters = [f"{name} {value}" for name, value in text.parameters.items()]
        return ", ".join((text.code, *parameters))


def translation(sentence: Sentence, language: Language) -> str:
    """A sentence in a language. Raises KeyError for one of another version, which has no text here, or other
    parameters.
    """
    template = TEXTS[sentence.code][LANGUAGES.index(language)]
    return _WORDS[language].vformat(template, (), sentence.parameters)


def duration(seconds: float, language: Language) -> str:
    """A duration to the nearest second, in its two largest units."""
    text = span_text(seconds)
    if language == "en":
        return text
    parts = _SPAN_PART.findall(text)
    return " ".join(f"{int(number)} {_CHINESE_UNITS[unit]}" for number, unit in parts)


def _parameter(value: Convertible) -> Parameter:
    if isinstance(value, Resources):
        return str(value) if value else Sentence("nothing")
    if isinstance(value, (str, int, float, Sentence)):
        return value
    return tuple(value)


class _Words(Formatter):
    """Fills texts of one language."""

    def __init__(self, language: Language) -> None:
        self._language = language

    def format_field(self, value: object, format_spec: str) -> str:
        """A parameter as its field says."""
        if isinstance(value, Sentence):
            return in_words(value, self._language)
        if isinstance(value, tuple):
            return format_spec.join(in_words(part, self._language) for part in value)
        if format_spec == "span" and isinstance(value, (int, float)):
            return duration(value, self._language)
        if format_spec in ("code", "meaning"):
            return self._of_code(str(value), format_spec)
        if "|" in format_spec:
            one, others = format_spec.split("|")
            return (one if value == 1 else others).replace("#", str(value))
        return format(value, format_spec)

    def _of_code(self, code: str, form: str) -> str:
        """A code itself, or what it means; both are its short text in Chinese."""
        if self._language == "en":
            return code if form == "code" else _MEANINGS.get(code, code)
        return CODES[code][1] if code in CODES else code


_WORDS: dict[Language, _Words] = {language: _Words(language) for language in LANGUAGES}
