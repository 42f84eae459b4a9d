"""How calls travel: as bytes, with their size checked before they are decoded."""

from __future__ import annotations

from typing import Union

import msgspec

from schedulemesh.api.call import Call, CallWithBlobs
from schedulemesh.api.calls import CALLS
from schedulemesh.api.states import RestoreTask
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol import msgpack_head
from schedulemesh.protocol.agents import key_of

#: The most bytes of an encoded request without those that are stored as they are.
MAX_BYTES = 1024 * 1024


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(Union[CALLS])


def encode_request(request: Call) -> bytes:
    """Encode a request."""
    return _encoder.encode(request)


class _SavedBytes(msgspec.Struct):
    """What of a saved state is opaque bytes, which are not copied."""

    state: memoryview | None = None
    payload: memoryview | None = None
    members: tuple[memoryview | None, ...] = ()


class _Restored(msgspec.Struct):
    saved: _SavedBytes


_saved_bytes = msgspec.msgpack.Decoder(_Restored)


def plain_size(data: bytes) -> int:
    """The bytes of an encoded request beside those that are stored as they are: what is to be checked of it,
    for which others wait. Of one that no client of ours has encoded it may be all. Raises ValueError.
    """
    if len(data) <= MAX_BYTES:
        return len(data)
    reader = msgpack_head.Reader(data)
    if reader.size_of_map() == 0 or reader.text() != "request":
        return len(data)
    if reader.text() == RestoreTask.__struct_config__.tag:
        saved = _saved_bytes.decode(data).saved
        opaque = (saved.state, saved.payload, *saved.members)
        return len(data) - sum(len(part) for part in opaque if part is not None)
    if reader.text() != "blobs":
        return len(data)
    for _ in range(reader.size_of_map()):
        reader.text()
        reader.skip_bytes()
    return len(data) - reader.position


def _check_size(data: bytes) -> None:
    if (size := plain_size(data)) > MAX_BYTES:
        raise InvalidRequestError(
            f"a request has at most {MAX_BYTES:,} bytes beside classes, arguments and saved states, not "
            f"{size:,}"
        )


def decode_request(data: object) -> Call:
    """Decode and validate a request. Raises InvalidRequestError."""
    if type(data) is not bytes:
        raise InvalidRequestError(f"a request is sent as bytes, not as {shown(data)}")
    try:
        _check_size(data)
        request = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequestError(str(error)) from error
    if isinstance(request, CallWithBlobs):
        for key, blob in request.blobs.items():
            if key_of(blob) != key:
                raise InvalidRequestError(f"the bytes sent with key {key} have another SHA-256")
    return request
