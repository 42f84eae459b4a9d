"""Facts and snapshots as JSON and back; the only form in which they are stored.

Parts of snapshots are deflated: they say the same words over and over.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from schedulemesh.engine.messages.facts import AnyFact
from schedulemesh.engine.state.snapshot import Snapshot

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[AnyFact])
_part_decoder = msgspec.json.Decoder(Snapshot)


def encode_facts(facts: Sequence[AnyFact]) -> bytes:
    """A JSON list, each fact an object whose ``type`` is its name."""
    return _encoder.encode(facts)


def decode_facts(stored: bytes) -> list[AnyFact]:
    """The facts of one record. Raises msgspec.DecodeError where it is no list of known facts."""
    return _decoder.decode(stored)


def encode_part(part: Snapshot) -> bytes:
    """A JSON object, deflated."""
    return zlib.compress(_encoder.encode(part), 1)


def decode_part(stored: bytes) -> Snapshot:
    """A part of a snapshot. Raises msgspec.DecodeError or zlib.error where it is none."""
    return _part_decoder.decode(zlib.decompress(stored))
