"""Answers with many rows are encoded and decoded in portions of them, between which others are served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from schedulemesh.protocol.answers import AnyAnswer, Details, Listed, QueueListed, read_answer
from schedulemesh.protocol.portions import PORTION, PortionTurns

#: Bytes of an encoded answer up to which it is decoded at once: about half a millisecond.
_AT_ONCE = 32 * 1024

_Element = TypeVar("_Element")


async def with_encoded_rows(answer: AnyAnswer, turns: PortionTurns) -> AnyAnswer:
    """An answer whose many rows are encoded already, so that encoding the rest of it copies bytes only."""
    pack = msgspec.msgpack.Encoder().encode
    match answer:
        case Listed() | QueueListed() if len(answer.rows) > PORTION:
            return msgspec.structs.replace(answer, rows=await encoded(answer.rows, pack, turns))
        case Details():
            return Details(facts=await with_encoded_lists(answer.facts, pack, turns))
        case _:
            return answer


async def with_encoded_lists(
    facts: Mapping[str, Any], encode: Callable[[Any], bytes], turns: PortionTurns
) -> dict[str, Any]:
    """Plain data in which the elements of long lists are encoded already."""
    return {
        name: await encoded(value, encode, turns)
        if isinstance(value, list) and len(value) > PORTION
        else value
        for name, value in facts.items()
    }


async def encoded(
    elements: Sequence[Any], encode: Callable[[Any], bytes], turns: PortionTurns
) -> list[msgspec.Raw]:
    """Each of the elements encoded."""
    raws: list[msgspec.Raw] = []

    def add(portion: Sequence[Any]) -> None:
        raws.extend(msgspec.Raw(encode(element)) for element in portion)

    await turns.each(elements, add, quick=True)
    return raws


class _Long(msgspec.Struct):
    """An encoded answer of which only the kind and the parts are known."""

    answer: str
    rows: msgspec.Raw = msgspec.Raw()
    facts: dict[str, msgspec.Raw] = {}


_long_decoder = msgspec.msgpack.Decoder(_Long)
_list_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])
_row_decoder = msgspec.msgpack.Decoder(dict[str, Any])
_value_decoder = msgspec.msgpack.Decoder(Any)


async def read_long_answer(data: bytes, turns: PortionTurns) -> AnyAnswer:
    """As ``read_answer``; of one with rows or plain data the elements are decoded in portions."""
    if len(data) <= _AT_ONCE:
        return read_answer(data)
    answer = _long_decoder.decode(data)
    match answer.answer:
        case "listed":
            return Listed(rows=await _decoded(answer.rows, _row_decoder.decode, turns))
        case "details":
            facts = {
                name: await _decoded(value, _value_decoder.decode, turns)
                if _is_list(value)
                else _value_decoder.decode(value)
                for name, value in answer.facts.items()
            }
            return Details(facts=facts)
        case _:
            return read_answer(data)


async def _decoded(
    raw: msgspec.Raw, decode: Callable[[msgspec.Raw], _Element], turns: PortionTurns
) -> list[_Element]:
    """The elements of an encoded list."""
    elements: list[_Element] = []

    def add(portion: Sequence[msgspec.Raw]) -> None:
        elements.extend(map(decode, portion))

    await turns.each(_list_decoder.decode(raw), add)
    return elements


def _is_list(raw: msgspec.Raw) -> bool:
    """Whether an encoded value is a list: the first byte of MessagePack says so."""
    first = memoryview(raw)[0]
    return 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)
