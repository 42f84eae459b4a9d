"""Answers with many rows are encoded and decoded in portions, and are what they would be otherwise."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import msgspec
import pytest

from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.answers import (
    Details,
    Listed,
    Malformed,
    QueueListed,
    QueueRow,
    Refusal,
    decode_answer,
    encode_answer,
    read_answer,
)
from schedulemesh.protocol.long_answers import (
    read_long_answer,
    with_encoded_lists,
    with_encoded_rows,
)
from schedulemesh.protocol.portions import PORTION, PortionTurns

COUNT = 40 * PORTION + 1
ROWS = [{"task_id": f"t{number}", "labels": {"team": "x"}, "n": number} for number in range(COUNT)]
QUEUED = [
    QueueRow(
        task=TaskSpec(task_id=f"t{number}", pool_name="p"),
        agent_name="a",
        position=number,
        waiting_s=1.0,
        queued_at=1.0,
        arrived_at=1.0,
    )
    for number in range(COUNT)
]
LONG = [
    Listed(rows=ROWS),
    QueueListed(rows=QUEUED, total=COUNT),
    Details(facts={"items": ROWS, "more": True, "events": list(range(COUNT)), "few": [1, None]}),
]


async def served_meanwhile(work):
    """The result of some work, and how often others were served in between."""
    turns, task = 0, asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return task.result(), turns


def done(work):
    return asyncio.run(served_meanwhile(work))


@pytest.mark.parametrize("answer", LONG, ids=lambda answer: type(answer).__name__)
def test_the_rows_of_an_answer_are_encoded_in_portions(answer):
    prepared, turns = done(with_encoded_rows(answer, PortionTurns()))
    assert encode_answer(prepared) == encode_answer(answer)
    assert turns >= COUNT // PORTION


@pytest.mark.parametrize("answer", [LONG[0], LONG[2]], ids=lambda answer: type(answer).__name__)
def test_the_rows_of_an_answer_are_decoded_in_portions(answer):
    data = encode_answer(answer)
    decoded, turns = done(read_long_answer(data, PortionTurns()))
    assert decoded == answer == read_answer(data)
    assert turns >= COUNT // PORTION


@pytest.mark.parametrize(
    "answer",
    [
        LONG[1],
        Malformed(error="x" * 100_000),
        Listed(rows=[]),
        Details(facts={}),
        Details(facts={"text": "x" * 100_000, "none": None, "items": []}),
    ],
    ids=range(5),
)
def test_any_other_answer_is_decoded_as_it_is(answer):
    decoded, _ = done(read_long_answer(encode_answer(answer), PortionTurns()))
    assert decoded == answer


def test_long_lists_are_encoded_as_json_in_portions():
    facts = LONG[2].facts
    encode = msgspec.json.Encoder().encode
    prepared, turns = done(with_encoded_lists(facts, encode, PortionTurns()))
    assert encode(prepared) == encode(facts)
    assert turns >= COUNT // PORTION


def test_an_answer_of_another_type_than_the_expected_one_is_an_error():
    refused = Refused(reason=Reason.POOL_NOT_FOUND, error_text="there is none")
    assert decode_answer(encode_answer(Refusal(refused=refused)), QueueListed) == refused
    with pytest.raises(InvalidRequestError, match="too long"):
        decode_answer(encode_answer(Malformed(error="too long")), QueueListed)
    with pytest.raises(TypeError, match=r"the supervisor answered Listed\(.*, not QueueListed"):
        decode_answer(encode_answer(Listed(rows=[])), QueueListed)


def test_commands_make_no_decoder_of_all_answers():
    """Which takes as long as a short command."""
    script = (
        "from schedulemesh.cli import http_gateway; from schedulemesh.protocol import answers; "
        "answers.decode_answer(answers.encode_answer(answers.Listed(rows=[])), answers.Listed); "
        "print(answers._decoder.cache_info().currsize)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"
