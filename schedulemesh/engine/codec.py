"""Encodes facts and snapshots as JSON and decodes them; the only form in which they are stored.

Chunks of snapshots are compressed, because they repeat the same field names.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import msgspec

from schedulemesh.engine.messages.facts import AnyFact
from schedulemesh.engine.state.snapshot import Snapshot
from schedulemesh.errors import JournalError, NotStorableError

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[AnyFact])
_part_decoder = msgspec.json.Decoder(Snapshot)
#: The number of characters of a value that an error shows.
_SHOWN = 100


def encode_facts(facts: Sequence[AnyFact]) -> bytes:
    """A JSON list, each fact an object whose ``type`` is its tag."""
    return _encoder.encode(facts)


def decode_facts(stored: bytes) -> list[AnyFact]:
    """The facts of one record. Raises msgspec.DecodeError if it is not a list of known facts."""
    return _decoder.decode(stored)


def storable(facts: Sequence[AnyFact]) -> bytes:
    """As ``encode_facts``, and verified: raises NotStorableError if decoding does not give the same facts."""
    try:
        record = _encoder.encode(facts)
        back = _decoder.decode(record)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        raise NotStorableError(f"{_culprit(facts)} cannot be stored: {error}") from error
    if back != list(facts):
        raise NotStorableError(
            f"{_culprit(facts)} cannot be stored: it does not read back the same"
        )
    return record


def joined(records: Iterable[bytes]) -> bytes:
    """One record with the facts of all of these, in order."""
    return b"[" + b",".join(record[1:-1] for record in records if len(record) > 2) + b"]"


def encode_chunk(part: Snapshot) -> bytes:
    """A compressed JSON object. Raises JournalError if it could not be decoded again."""
    encoded = _encoder.encode(part)
    try:
        _part_decoder.decode(encoded)
    except msgspec.MsgspecError as error:
        raise JournalError(f"a snapshot of the state could not be read back: {error}") from error
    return zlib.compress(encoded, 1)


def decode_chunk(stored: bytes) -> Snapshot:
    """A chunk of a snapshot. Raises msgspec.DecodeError or zlib.error if it is not one."""
    return _part_decoder.decode(zlib.decompress(stored))


def _culprit(facts: Sequence[AnyFact]) -> str:
    """The first field of a fact that does not decode to the same value, for an error."""
    for fact in facts:
        for field in msgspec.structs.fields(fact):
            value = getattr(fact, field.name)
            if not _comes_back(value, field.type):
                return f"{field.name} of {type(fact).__name__}, {ascii(value)[:_SHOWN]},"
    return "a fact"


def _comes_back(value: object, kind: object) -> bool:
    try:
        return bool(msgspec.json.decode(_encoder.encode(value), type=kind) == value)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError):
        return False
