"""Large bytes of requests are never copied at once: they are a part of what is sent, or copied in slices."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.api.states import RestoreTask
from schedulemesh.api.tasks import RegisterTask, SubmitMany, SubmitTask
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol import requests
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.frames import (
    MAX_REQUEST,
    Ask,
    FrameReader,
    Withdraw,
    frame,
    frame_in_parts,
    from_client,
)
from schedulemesh.protocol.large_bytes import SLICE, joined, sliced
from schedulemesh.protocol.msgpack_head import LARGE
from schedulemesh.protocol.requests import decode_request, encode_in_parts, encode_request
from tests.server.work import CLASS, submission

FIRST, SECOND = b"x" * 1_500_000, bytes(LARGE + 1)
TASK = submission("t").task


def state(**parts):
    return RestoreTask(
        saved=SavedState(task=TASK, agent_name="a", source="save_state", saved_at=0.0, **parts),
        request_id="r",
    )


def with_blobs(*blobs):
    return {key_of(data): data for data in blobs}


REQUESTS = {
    "one blob": SubmitTask(submission=submission("t"), blobs=with_blobs(FIRST, CLASS)),
    "two blobs": SubmitMany(
        submissions=(submission("t"), submission("u")), blobs=with_blobs(SECOND, CLASS, FIRST)
    ),
    "of a task": RegisterTask(task=TASK, agent_name="a", blobs=with_blobs(FIRST)),
    "a state": state(state=FIRST, payload=b"payload"),
    "a state and a payload": state(state=SECOND, payload=FIRST),
    "states of members": state(members=(FIRST, None, b"small", SECOND)),
}


@pytest.fixture(params=REQUESTS)
def request_of(request):
    return REQUESTS[request.param]


def stored_in(request):
    return [data for data in requests._stored(request) if len(data) > LARGE]


def test_the_parts_are_the_encoded_request_and_hold_large_bytes_themselves(request_of):
    parts = encode_in_parts(request_of)
    assert b"".join(parts) == encode_request(request_of)
    large = [part for part in parts if len(part) > LARGE]
    assert [id(part) for part in large] == [id(data) for data in stored_in(request_of)]
    assert sum(map(len, parts)) - sum(map(len, large)) < 2_000


def test_what_has_no_large_bytes_is_one_part():
    for request in (
        SubmitTask(submission=submission("t"), blobs=with_blobs(CLASS, bytes(LARGE))),
        state(state=b"state"),
        state(),
    ):
        assert encode_in_parts(request) == (encode_request(request),)


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_a_decoder_gets_no_large_bytes(request_of, kind, monkeypatch):
    decoder, given = requests._decoder(), []

    class Counting:
        def decode(self, data):
            given.append(len(data))
            return decoder.decode(data)

    monkeypatch.setattr(requests, "_decoder", Counting)
    assert decode_request(kind(encode_request(request_of))) == request_of
    assert sum(given) < 2_000


def test_what_was_changed_on_the_way_is_refused(request_of):
    data = encode_request(request_of)
    if b"blobs" not in data:
        return
    changed = data.replace(FIRST, b"y" + FIRST[1:])
    with pytest.raises(InvalidRequestError, match="another SHA-256"):
        decode_request(changed)


def test_blobs_that_come_twice_are_those_that_come_last_as_to_every_decoder():
    fields = msgspec.msgpack.decode(encode_request(REQUESTS["one blob"]))
    again = msgspec.msgpack.encode({**fields, "blobs": with_blobs(FIRST)})
    count, rest = again[0], again[1:]
    twice = bytes((count + 1,)) + rest + msgspec.msgpack.encode("blobs")
    for last in (with_blobs(CLASS), with_blobs(SECOND)):
        data = twice + msgspec.msgpack.encode(last)
        assert decode_request(data).blobs == last
        assert decode_request(data) == requests._decoder().decode(data)


@pytest.mark.parametrize("field", ["state", "payload", "members", "last_metrics", "warning"])
@pytest.mark.parametrize("value", [FIRST, [FIRST], {"a": FIRST}, [[FIRST]], "t" * 900_000])
def test_of_a_state_that_no_client_has_made_nothing_else_is_read(field, value):
    fields = msgspec.msgpack.decode(encode_request(state(payload=SECOND)))
    fields["saved"][field] = value
    data = msgspec.msgpack.encode(fields)
    try:
        expected = requests._decoder().decode(data)
    except msgspec.ValidationError:
        expected = None
    is_plain = field not in ("state", "payload", "members")
    if expected is None or (is_plain and len(data) - len(SECOND) > requests.MAX_BYTES):
        with pytest.raises(InvalidRequestError):
            decode_request(data)
    else:
        assert decode_request(data) == expected


def test_a_frame_of_parts_is_that_of_the_whole():
    for request in (*REQUESTS.values(), SubmitTask(submission=submission("t"))):
        parts = encode_in_parts(request)
        ask = Ask(7, b"", b"credential", b"caller", handles=False)
        whole = msgspec.structs.replace(ask, data=b"".join(parts))
        framed = frame_in_parts(ask, parts)
        assert b"".join(framed) == frame(whole)
        assert [id(p) for p in framed if len(p) > LARGE] == [id(d) for d in stored_in(request)]


def test_a_large_request_is_read_where_it_has_arrived():
    data, small = encode_request(REQUESTS["two blobs"]), Ask(2, b"small")
    sent = b"".join(map(frame, (Ask(1, data, b"c", b"d"), small, Withdraw(3), Ask(4, data))))
    reader, messages, arrived = FrameReader(MAX_REQUEST), [], []
    for part in sliced((sent,)):
        reader.feed(bytes(part))
        arrived.append(reader._buffer)
        while (packed := reader.next()) is not None:
            messages.append(from_client(packed))
    first, second, third, fourth = messages
    assert (second, third) == (small, Withdraw(3))
    assert (first.number, first.credential, first.caller) == (1, b"c", b"d")
    for large in (first, fourth):
        assert isinstance(large.data, memoryview)
        assert any(large.data.obj is buffer for buffer in arrived), "it was copied"
        assert decode_request(large.data) == REQUESTS["two blobs"]
    assert len(reader) == 0


@pytest.mark.parametrize("parts", [(), (b"",), (b"a", bytes(SLICE), b"b"), (FIRST, SECOND, b"c")])
def test_what_is_joined_is_copied_in_slices(parts):
    assert joined(parts) == b"".join(parts)
    slices = list(sliced(parts))
    assert b"".join(slices) == b"".join(parts)
    assert max(map(len, slices), default=0) <= SLICE
