"""How calls travel: as bytes, with their size checked before they are decoded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Union

import msgspec

from schedulemesh.api.call import MAX_BLOBS, Call, CallWithBlobs
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.large_bytes import joined
from schedulemesh.protocol.msgpack_head import (
    LARGE,
    LargeBytes,
    Reader,
    before_bytes,
    containers_at_most,
    new_mark,
    split_at,
)

#: The most bytes of an encoded request without those that are stored as they are.
MAX_BYTES = 1024 * 1024
#: The most values of one that has more bytes, and the most maps and arrays of any: an object is made of each.
MAX_VALUES = 100_000


#: The name under which the call with a saved state travels.
_WITH_STATE = "restore_task"

Encoded = Union[bytes, memoryview]

_encoder = msgspec.msgpack.Encoder()


@functools.cache
def _decoder() -> msgspec.msgpack.Decoder[Call]:
    """Decodes every call. Clients only encode, and load no more than the calls that they make."""
    from schedulemesh.api.calls import CALLS  # noqa: PLC0415  # see above

    decoder: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(Union[CALLS])
    return decoder


def encode_request(request: Call) -> bytes:
    """Encode a request."""
    return _encoder.encode(request)


def encode_in_parts(request: Call) -> tuple[bytes, ...]:
    """The parts of an encoded request. Large bytes that are stored as they are make a part each: they are not
    copied.
    """
    large = [data for data in _stored(request) if len(data) > LARGE]
    if not large:
        return (encode_request(request),)
    mark = new_mark()
    marked = _with_stored(request, lambda data: mark if len(data) > LARGE else data)
    pieces = split_at(mark, encode_request(marked))
    parts = [pieces[0]]
    for data, piece in zip(large, pieces[1:], strict=True):
        parts += (before_bytes(len(data)), data, piece)
    return tuple(parts)


def _stored(request: Call) -> Iterable[bytes]:
    """What is stored of a request as it is, in the order in which it is encoded."""
    if isinstance(request, CallWithBlobs):
        return request.blobs.values()
    saved = getattr(request, "saved", None)
    parts = saved.opaque if isinstance(saved, SavedState) else ()
    return (part for part in parts if part is not None)


def _with_stored(request: Call, change: Callable[[bytes], bytes]) -> Call:
    """The request with other bytes for each of those that are stored of it as they are."""
    if isinstance(request, CallWithBlobs):
        blobs = {key: change(data) for key, data in request.blobs.items()}
        return msgspec.structs.replace(request, blobs=blobs)
    saved = getattr(request, "saved", None)
    if not isinstance(saved, SavedState):
        return request
    state, payload, *members = (None if part is None else change(part) for part in saved.opaque)
    saved = msgspec.structs.replace(saved, state=state, payload=payload, members=tuple(members))
    return msgspec.structs.replace(request, saved=saved)


def stored_in(data: Encoded) -> tuple[int, list[LargeBytes]]:
    """How many bytes of an encoded request are stored as they are, and the large ones among them; the others
    are to be checked, for which others wait. Of a request that no client of ours has encoded none may be.
    Raises ValueError.
    """
    reader = Reader(data)
    if reader.size_of_map() == 0 or reader.text() != "request":
        return 0, []
    if reader.text() == _WITH_STATE:
        return _stored_of_state(reader)
    if reader.text() != "blobs":
        return 0, []
    count = reader.size_of_map()
    if count > MAX_BLOBS:
        raise ValueError(f"a request has at most {MAX_BLOBS:,} blobs, not {count:,}")
    for _ in range(count):
        reader.text()
        reader.skip_bytes()
    return reader.position, reader.large


def _stored_of_state(reader: Reader) -> tuple[int, list[LargeBytes]]:
    """As ``stored_in``, of a saved state; what comes before it are texts."""
    while reader.text() != "saved":
        reader.text()
    count, most = reader.size_of_map(), len(SavedState.__struct_fields__)
    if count > most:
        raise ValueError(f"a saved state has at most {most} fields, not {count:,}")
    stored, most = 0, MAX_VALUES
    large: list[LargeBytes] = []
    for _ in range(count):
        field, begin = reader.text(), reader.position
        reader.large.clear()
        most -= reader.skip(most)
        if field in ("state", "payload", "members"):
            stored += reader.position - begin
            large += reader.large
    return stored, large


def _checked(data: Encoded) -> list[LargeBytes]:
    """Refuse what is too much before an object is made of any of it. The large bytes that are stored as they
    are.
    """
    if len(data) <= MAX_BYTES:
        check_values(data)
        return []
    stored, large = stored_in(data)
    if (size := len(data) - stored) > MAX_BYTES:
        raise InvalidRequestError(
            f"a request has at most {MAX_BYTES:,} bytes beside classes, arguments and saved states, not "
            f"{size:,}"
        )
    check_values(data)
    return large


def check_values(data: Encoded, most_bytes: int = MAX_BYTES) -> None:
    """Refuse a packed message of which a decoder would make too many objects. Raises ValueError.

    ``most_bytes``: of one with more bytes, numbers are counted, too.
    """
    if len(data) > most_bytes or containers_at_most(bytes(data)) > MAX_VALUES:
        Reader(data).skip(MAX_VALUES)


def decode_request(data: object) -> Call:
    """Decode and validate a request. Raises InvalidRequestError."""
    if type(data) is not bytes and type(data) is not memoryview:
        raise InvalidRequestError(f"a request is sent as bytes, not as {shown(data)}")
    try:
        large = _checked(data)
        request = _without_copies(data, large) if large else _decoder().decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequestError(str(error)) from error
    if isinstance(request, CallWithBlobs):
        for key, blob in request.blobs.items():
            if key_of(blob) != key:
                raise InvalidRequestError(f"the bytes sent with key {key} have another SHA-256")
    return request


def _without_copies(data: Encoded, large: Sequence[LargeBytes]) -> Call:
    """The request; a decoder would copy each of its large bytes at once."""
    view, mark = memoryview(data), new_mark()
    marks = [mark + number.to_bytes(4, "big") for number in range(len(large))]
    pieces, end = list[Encoded](), 0
    for each, place in zip(marks, large, strict=True):
        pieces += (view[end : place.head], before_bytes(len(each)), each)
        end = place.end
    marked = _decoder().decode(b"".join((*pieces, view[end:])))
    places = dict(zip(marks, large, strict=True))

    def stored(data: bytes) -> bytes:
        place = places.get(data)
        return data if place is None else joined((view[place.begin : place.end],))

    return _with_stored(marked, stored)
