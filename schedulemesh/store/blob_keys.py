"""The keys of stored bytes, of which a journal may have very many: nothing works on all of them at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

import msgspec

#: Keys in a portion.
PORTION = 1_000

_decoder = msgspec.msgpack.Decoder(list[str])


class BlobKeys:
    """A set of keys, encoded in portions, in ascending order.

    A set of very many texts takes the interpreter for tens of milliseconds when it grows and when it is
    freed; of this one only the portion in which was looked last is a set.
    """

    def __init__(self, encoded: Sequence[bytes]) -> None:
        #: As ``portions`` gives them.
        self._encoded = encoded
        self._firsts = [_decoder.decode(portion)[0] for portion in encoded]
        self._looked_at = -1
        self._keys: frozenset[str] = frozenset()

    def __contains__(self, key: object) -> bool:
        """Fast where keys are asked for in ascending order."""
        if not isinstance(key, str):
            return False
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return False
        if at != self._looked_at:
            self._looked_at, self._keys = at, frozenset(_decoder.decode(self._encoded[at]))
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        """In ascending order."""
        for portion in self._encoded:
            yield from _decoder.decode(portion)


def portions(keys: Collection[str]) -> list[bytes]:
    """Keys in ascending order, so many in each portion."""
    ordered = sorted(keys)
    return [
        msgspec.msgpack.encode(ordered[first : first + PORTION])
        for first in range(0, len(ordered), PORTION)
    ]
