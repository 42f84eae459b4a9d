"""How calls travel: as bytes, with their size checked before they are decoded."""

from __future__ import annotations

import functools
from typing import Union

import msgspec

from schedulemesh.api.call import MAX_BLOBS, Call, CallWithBlobs
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol import msgpack_head
from schedulemesh.protocol.agents import key_of

#: The most bytes of an encoded request without those that are stored as they are.
MAX_BYTES = 1024 * 1024
#: The most values of one that has more bytes, and the most maps and arrays of any: an object is made of each.
MAX_VALUES = 100_000


#: The name under which the call with a saved state travels.
_WITH_STATE = "restore_task"

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


def plain_size(data: bytes) -> int:
    """The bytes of an encoded request beside those that are stored as they are: what is to be checked of it,
    for which others wait. Of one that no client of ours has encoded it may be all. Raises ValueError.
    """
    if len(data) <= MAX_BYTES:
        return len(data)
    reader = msgpack_head.Reader(data)
    if reader.size_of_map() == 0 or reader.text() != "request":
        return len(data)
    if reader.text() == _WITH_STATE:
        return len(data) - _opaque_size(reader)
    if reader.text() != "blobs":
        return len(data)
    count = reader.size_of_map()
    if count > MAX_BLOBS:
        raise ValueError(f"a request has at most {MAX_BLOBS:,} blobs, not {count:,}")
    for _ in range(count):
        reader.text()
        reader.skip_bytes()
    return len(data) - reader.position


def _opaque_size(reader: msgpack_head.Reader) -> int:
    """The bytes of a saved state that are stored as they are; what comes before it are texts."""
    while reader.text() != "saved":
        reader.text()
    count, most = reader.size_of_map(), len(SavedState.__struct_fields__)
    if count > most:
        raise ValueError(f"a saved state has at most {most} fields, not {count:,}")
    opaque, most = 0, MAX_VALUES
    for _ in range(count):
        field, begin = reader.text(), reader.position
        most -= reader.skip(most)
        if field in ("state", "payload", "members"):
            opaque += reader.position - begin
    return opaque


def _check_size(data: bytes) -> None:
    """Refuse what is too much before an object is made of any of it."""
    if (size := plain_size(data)) > MAX_BYTES:
        raise InvalidRequestError(
            f"a request has at most {MAX_BYTES:,} bytes beside classes, arguments and saved states, not "
            f"{size:,}"
        )
    check_values(data)


def check_values(data: bytes, most_bytes: int = MAX_BYTES) -> None:
    """Refuse a packed message of which a decoder would make too many objects. Raises ValueError.

    ``most_bytes``: of one with more bytes, numbers are counted, too.
    """
    if len(data) > most_bytes or msgpack_head.containers_at_most(data) > MAX_VALUES:
        msgpack_head.Reader(data).skip(MAX_VALUES)


def decode_request(data: object) -> Call:
    """Decode and validate a request. Raises InvalidRequestError."""
    if type(data) is not bytes:
        raise InvalidRequestError(f"a request is sent as bytes, not as {shown(data)}")
    try:
        _check_size(data)
        request = _decoder().decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequestError(str(error)) from error
    if isinstance(request, CallWithBlobs):
        for key, blob in request.blobs.items():
            if key_of(blob) != key:
                raise InvalidRequestError(f"the bytes sent with key {key} have another SHA-256")
    return request
