"""Codes are strings for users, members for the package, and travel as plain strings."""

from __future__ import annotations

import copy
import json
import pickle

import msgspec
import pytest

from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.reason_uses import EVALUATION_REASONS, QUEUE_REASONS, REFUSALS
from schedulemesh.domain.reasons import (
    Change,
    PreemptionReason,
    Reason,
)

CODES = [code for enum in (Reason, PreemptionReason, EndReason, Change) for code in enum]


@pytest.mark.parametrize("code", CODES, ids=repr)
def test_a_code_is_its_string(code):
    assert code == code.value
    assert (type(code.value), type(str(code))) == (str, str)
    assert {code: 1}[code.value] == 1
    assert f"{code}" == str(code) == code.value
    assert json.dumps(code) == f'"{code.value}"'


@pytest.mark.parametrize("code", CODES, ids=repr)
def test_a_code_comes_back_as_the_same_member(code):
    assert pickle.loads(pickle.dumps(code)) is code
    assert copy.deepcopy(code) is code
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(code)) == code.value
        assert codec.decode(codec.encode(code), type=type(code)) is code


@pytest.mark.parametrize("code", CODES, ids=repr)
def test_a_meaning_is_a_sentence(code):
    assert code.meaning.endswith(".")
    assert code.meaning[0] == "`" or code.meaning[0].isupper()
    assert "|" not in code.meaning
    assert "\n" not in code.meaning


def test_a_code_is_unique_within_its_enumeration():
    for enum in (Reason, PreemptionReason, EndReason, Change):
        assert len(enum.__members__) == len(set(enum))


def test_an_unknown_code_is_refused():
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'nonsense'"):
        msgspec.json.decode(b'"nonsense"', type=Reason)


def test_every_reason_is_that_of_a_refusal_an_evaluation_or_a_wait():
    assert {*REFUSALS, *EVALUATION_REASONS, *QUEUE_REASONS} == set(Reason)
    assert set(REFUSALS) & set(EVALUATION_REASONS) == {Reason.ALREADY_BEING_PREEMPTED}
