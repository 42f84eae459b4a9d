"""Reads the beginning of a MessagePack message, as far as texts, bytes and maps go, and writes what comes
before bytes.

So what is large and hostile is refused before a decoder makes an object of each of its parts; a decoder that
is asked for one field walks through all others. And what has large bytes in it is put together without a copy
of them.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

#: Bytes above which a value is not copied at once.
LARGE = 256 * 1024
_MARK_BYTES = 16

#: The first bytes of a map, an array, a text and bytes that tell their size in 1, 2 or 4 further bytes.
_MAPS = {0xDE: 2, 0xDF: 4}
_ARRAYS = {0xDC: 2, 0xDD: 4}
_TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
#: The bytes that follow the first one of numbers and of small extensions.
_FIXED = {
    **dict(zip(range(0xCA, 0xD4), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8), strict=True)),
    **dict(zip(range(0xD4, 0xD9), (2, 3, 5, 9, 17), strict=True)),
}
#: The first bytes of maps and arrays.
_CONTAINERS = bytes((*range(0x80, 0xA0), *_MAPS, *_ARRAYS))


class LargeBytes(NamedTuple):
    """Where in a message there are large bytes: what comes before them, they themselves, and what follows."""

    head: int
    begin: int
    end: int


class Reader:
    """Reads one value after the other. Raises ValueError where there is another one, or the end."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data
        #: Of the next value.
        self.position = 0
        #: The large bytes that were skipped.
        self.large: list[LargeBytes] = []

    def size_of_map(self) -> int:
        """How many keys a map has, which follow with their values."""
        first = self._first()
        return first & 0x0F if first & 0xF0 == 0x80 else self._size(_MAPS, first)

    def text(self) -> str:
        """A text."""
        first = self._first()
        size = first & 0x1F if first & 0xE0 == 0xA0 else self._size(_TEXTS, first)
        return str(self._take(size), "utf-8")

    def skip_bytes(self) -> None:
        """Skip bytes."""
        self._pass_bytes(self._first())

    def size_of_array(self) -> int:
        """How many elements an array has, which follow."""
        first = self._first()
        return first & 0x0F if first & 0xF0 == 0x90 else self._size(_ARRAYS, first)

    def skip(self, most: int) -> int:
        """Skip a value with all that is in it; returns how many values that are. Raises ValueError where
        there are more than so many, before all of them are looked at.
        """
        skipped, unread = 0, 1
        while unread:
            if skipped + unread > most:
                raise ValueError(f"the message has more than {most:,} values")
            skipped, unread = skipped + 1, unread - 1
            first = self._data[self.position] if self.position < len(self._data) else -1
            if 0x80 <= first <= 0x8F or first in _MAPS:
                unread += 2 * self.size_of_map()
            elif 0x90 <= first <= 0x9F or first in _ARRAYS:
                unread += self.size_of_array()
            else:
                self._skip_scalar()
        return skipped

    def _skip_scalar(self) -> None:
        first = self._first()
        if 0xA0 <= first <= 0xBF:
            self._pass(first & 0x1F)
        elif first in _TEXTS:
            self._pass(self._size(_TEXTS, first))
        elif first in _BYTES:
            self._pass_bytes(first)
        elif first in _EXTENSIONS:
            self._pass(1 + self._size(_EXTENSIONS, first))
        else:
            self._pass(_FIXED.get(first, 0))

    def _pass_bytes(self, first: int) -> None:
        head = self.position - 1
        size = self._size(_BYTES, first)
        begin = self.position
        self._pass(size)
        if size > LARGE:
            self.large.append(LargeBytes(head, begin, self.position))

    def _pass(self, size: int) -> None:
        if self.position + size > len(self._data):
            raise ValueError("the message is cut off")
        self.position += size

    def _first(self) -> int:
        return self._take(1)[0]

    def _size(self, sizes: dict[int, int], first: int) -> int:
        if first not in sizes:
            raise ValueError(f"the message has another value at byte {self.position - 1}")
        return int.from_bytes(self._take(sizes[first]), "big")

    def _take(self, size: int) -> bytes | memoryview:
        end = self.position + size
        if end > len(self._data):
            raise ValueError("the message is cut off")
        part, self.position = self._data[self.position : end], end
        return part


def new_mark() -> bytes:
    """Random bytes that stand for large ones while the rest of a message is encoded or decoded."""
    return secrets.token_bytes(_MARK_BYTES)


def split_at(mark: bytes, encoded: bytes) -> list[bytes]:
    """What is between the bytes that are this mark."""
    return encoded.split(before_bytes(len(mark)) + mark)


def before_bytes(size: int) -> bytes:
    """What comes before so many bytes."""
    first, width = next((first, width) for first, width in _BYTES.items() if size < 1 << 8 * width)
    return bytes((first,)) + size.to_bytes(width, "big")


def containers_at_most(data: bytes) -> int:
    """How many maps and arrays a message has, or more: bytes of texts and of numbers are counted, too."""
    return len(data) - len(data.translate(None, _CONTAINERS))
