"""Messages over a socket arrive as they were sent, however they are cut, and anything else is refused."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.config.settings import PROTOCOL_VERSION
from schedulemesh.protocol.frames import (
    MAX_REQUEST,
    Answered,
    Ask,
    FrameError,
    FrameReader,
    Greeting,
    OverRay,
    Withdraw,
    frame,
    from_client,
    from_supervisor,
    greeting,
)

NUMBERS = st.integers(min_value=0, max_value=2**63 - 1)
BYTES = st.binary(max_size=200)
OF_CLIENTS = st.one_of(
    st.builds(Ask, NUMBERS, BYTES, BYTES, BYTES, st.booleans()), st.builds(Withdraw, NUMBERS)
)
OF_SUPERVISORS = st.one_of(st.builds(Answered, NUMBERS, BYTES), st.builds(OverRay, NUMBERS))


def pieces(data, cuts):
    """The data cut at these places."""
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def read(reader, parts):
    messages = []
    for part in parts:
        reader.feed(part)
        while (packed := reader.next()) is not None:
            messages.append(packed)
    return messages


@given(messages=st.lists(OF_CLIENTS, max_size=20), cuts=st.lists(st.integers(0, 10_000)))
def test_requests_arrive_as_they_were_sent_however_they_are_cut(messages, cuts):
    reader = FrameReader(MAX_REQUEST)
    parts = pieces(b"".join(map(frame, messages)), cuts)
    assert [from_client(packed) for packed in read(reader, parts)] == messages
    assert len(reader) == 0


@given(messages=st.lists(OF_SUPERVISORS, max_size=20), cuts=st.lists(st.integers(0, 10_000)))
def test_answers_arrive_as_they_were_sent_however_they_are_cut(messages, cuts):
    parts = pieces(b"".join(map(frame, messages)), cuts)
    assert [from_supervisor(packed) for packed in read(FrameReader(1_000), parts)] == messages


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300)))
def test_bytes_of_anybody_are_messages_or_refused(data, cuts):
    try:
        for packed in read(FrameReader(100), pieces(data, cuts)):
            assert isinstance(from_client(packed), (Ask, Withdraw))
    except FrameError:
        pass


@given(size=st.integers(min_value=101, max_value=2**32 - 1))
def test_a_message_that_is_too_large_is_refused_before_it_arrives(size):
    reader = FrameReader(100)
    reader.feed(struct.pack(">I", size))
    with pytest.raises(FrameError, match=r"at most 100 bytes, not"):
        reader.next()


def test_what_has_arrived_in_part_is_counted():
    reader = FrameReader(100)
    reader.feed(frame(Withdraw(1)) + b"\0\0")
    assert reader.next() is not None
    assert len(reader) == 2
    assert reader.next() is None


@pytest.mark.parametrize(
    "message", [Answered(1, b""), Greeting(4, "x"), ["ask", "one", b""], ["ask", 1, "text"], 7, []]
)
def test_a_message_that_no_client_sends_is_refused(message):
    with pytest.raises(FrameError, match="cannot be read"):
        from_client(msgspec.msgpack.encode(message))


def test_deep_nesting_is_refused():
    with pytest.raises(FrameError):
        from_client(b"\x91" * 100_000)


def test_only_the_supervisor_of_the_same_scheduler_and_version_is_accepted():
    def greeted(*values):
        return greeting(msgspec.msgpack.encode(Greeting(*values)))

    greeted(PROTOCOL_VERSION, "this").check("this")
    for other in (greeted(PROTOCOL_VERSION, "that"), greeted(PROTOCOL_VERSION + 1, "this")):
        with pytest.raises(FrameError, match="another"):
            other.check("this")
