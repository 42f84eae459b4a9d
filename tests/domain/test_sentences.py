"""Sentences as codes with parameters: each code has its text in both languages, and every text is used."""

from __future__ import annotations

import ast
import string

import msgspec
import pytest

from schedulemesh.domain.language import LANGUAGES
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.sentences import Sentence, Text, in_words, say, translation
from schedulemesh.domain.texts.table import TEXTS
from tests.sources import PACKAGE, nodes, trees

TABLES = PACKAGE / "domain" / "texts"


def parameters(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def modules():
    return [path for path in trees() if TABLES not in path.parents]


def said():
    """Calls of ``say`` and ``phrase``: the place, the possible codes and the names of the parameters."""
    for path in modules():
        for node in nodes(path):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("say", "phrase"):
                codes = [node.args[0]]
                if isinstance(node.args[0], ast.IfExp):
                    codes = [node.args[0].body, node.args[0].orelse]
                names = {keyword.arg for keyword in node.keywords}
                for code in codes:
                    yield f"{path.name}:{node.lineno}", getattr(code, "value", None), names


@pytest.mark.parametrize("code", TEXTS)
def test_both_languages_have_a_text_with_the_same_parameters(code):
    english, chinese = TEXTS[code]
    assert english
    assert chinese
    assert parameters(english) == parameters(chinese)


def test_every_sentence_that_is_said_has_a_text_with_its_parameters():
    wrong = [
        (place, code, names)
        for place, code, names in said()
        if isinstance(code, str) and (code not in TEXTS or parameters(TEXTS[code][0]) != names)
    ]
    assert wrong == []


def test_every_text_is_used():
    constants = {
        node.value
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    tables = (TABLES / "table.py").read_text(encoding="utf-8")
    assert [code for code in TEXTS if code not in constants and f'"{code}"' not in tables] == []


def test_codes_of_several_tables_do_not_hide_each_other():
    codes = [
        key.value
        for path in TABLES.glob("*.py")
        if path.name != "codes.py"
        for node in nodes(path)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    ]
    assert sorted(codes) == sorted(TEXTS)


def test_a_sentence_is_written_in_either_language():
    lack = say("pool_lacks", pool="a", short=Resources(gpu=40_000), need=Resources(gpu=80_000))
    sentence = say("parts", parts=[lack, say("held_by", holders=["x", "y"])])
    assert str(sentence) == "pool 'a' lacks gpu 4 of the gpu 8 asked for; held by x, y"
    assert in_words(sentence, "zh") == "资源池 'a' 还差 gpu 4（申请 gpu 8）；占用者：x、y"


def test_numbers_codes_and_durations_are_written_as_a_language_does():
    failed = say("tried_again", wait=3.25, why=say("run_failed", count=1))
    assert str(failed) == "it is tried again in 3.25 s, because its run failed once"
    standing = say("it_is", state="running")
    assert (str(standing), in_words(standing, "zh")) == ("it is running", "运行中")
    since = say("title_for", time=3_660.0)
    assert (str(since), in_words(since, "zh")) == (" for 1h01m", "，已 1 小时 1 分钟")


def test_nothing_is_named_in_both_languages():
    free = say("quota_free", free=Resources(), quota=Resources(gpu=10_000))
    assert str(free) == "nothing of its gpu 1 is free"
    assert in_words(free, "zh") == "配额 gpu 1，空闲 0"


def test_texts_of_others_stay_as_they_are():
    assert {in_words("ValueError: {x}", language) for language in LANGUAGES} == {"ValueError: {x}"}
    assert str(say("colon", what="{x}")) == ": {x}"


@pytest.mark.parametrize("text", ["as it is", say("parts", parts=[say("none"), "x"])])
def test_a_text_survives_its_message(text):
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(text), type=Text) == text


def test_a_sentence_of_another_version_is_shown_as_its_code():
    other = Sentence("of_a_newer_version", {"pool": "a"})
    assert in_words(other, "en") == "of_a_newer_version, pool a"
    assert str(Sentence("pool_lacks")) == "pool_lacks"
    with pytest.raises(KeyError):
        translation(other, "zh")


SPEAKERS = {
    "Refused": ("error_text", "hint_text"),
    "Finding": ("error_text", "hint_text"),
    "AlternativeFinding": ("alternative_text", "error_text"),
    "OrderFactor": ("detail_text",),
    "Explanation": ("error_text", "hint_text", "detail_text", "no_estimate_text"),
    "replace": ("error_text", "hint_text", "detail_text"),
}


def test_no_module_writes_a_sentence_in_english():
    written = [
        f"{path.relative_to(PACKAGE)}:{keyword.value.lineno}"
        for path in modules()
        for function in nodes(path)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg in SPEAKERS.get(getattr(node.func, "id", getattr(node.func, "attr", "")), ())
        if is_english(keyword.value, assigned_in(function))
    ]
    assert written == []


def assigned_in(function):
    """What the variables of a function are assigned, by name; parameters may be texts of others."""
    parameters_of = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
    return {
        target.id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id not in parameters_of
    }


def is_english(text, variables):
    """Whether an expression is a string with words: a constant, one with values in it, or a variable."""
    if isinstance(text, ast.Name) and text.id in variables:
        return is_english(variables[text.id], {})
    if isinstance(text, ast.IfExp):
        return is_english(text.body, variables) or is_english(text.orelse, variables)
    if isinstance(text, ast.BinOp):
        return is_english(text.left, variables) or is_english(text.right, variables)
    return isinstance(text, ast.JoinedStr) or (
        isinstance(text, ast.Constant) and text.value not in ("", None)
    )
