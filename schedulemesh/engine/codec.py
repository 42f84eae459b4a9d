"""Facts as JSON and back; the only form in which they are stored."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from schedulemesh.engine.facts import AnyFact

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[AnyFact])


def encode_facts(facts: Sequence[AnyFact]) -> bytes:
    """A JSON list, each fact an object whose ``type`` is its name."""
    return _encoder.encode(facts)


def decode_facts(stored: bytes) -> list[AnyFact]:
    """The facts of one record. Raises msgspec.DecodeError where it is no list of known facts."""
    return _decoder.decode(stored)
