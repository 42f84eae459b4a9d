"""Reads the beginning of a MessagePack message, as far as texts, bytes and maps go.

So what is large and hostile is refused before a decoder makes an object of each of its parts; a decoder that
is asked for one field walks through all others.
"""

from __future__ import annotations

#: The first bytes of a map, a text and bytes that tell their size in 1, 2 or 4 further bytes.
_MAPS = {0xDE: 2, 0xDF: 4}
_TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}


class Reader:
    """Reads one value after the other. Raises ValueError where there is another one, or the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        #: Of the next value.
        self.position = 0

    def size_of_map(self) -> int:
        """How many keys a map has, which follow with their values."""
        first = self._first()
        return first & 0x0F if first & 0xF0 == 0x80 else self._size(_MAPS, first)

    def text(self) -> str:
        """A text."""
        first = self._first()
        size = first & 0x1F if first & 0xE0 == 0xA0 else self._size(_TEXTS, first)
        return self._take(size).decode()

    def skip_bytes(self) -> None:
        """Skip bytes."""
        size = self._size(_BYTES, self._first())
        if self.position + size > len(self._data):
            raise ValueError("the message is cut off")
        self.position += size

    def _first(self) -> int:
        return self._take(1)[0]

    def _size(self, sizes: dict[int, int], first: int) -> int:
        if first not in sizes:
            raise ValueError(f"the message has another value at byte {self.position - 1}")
        return int.from_bytes(self._take(sizes[first]), "big")

    def _take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self._data):
            raise ValueError("the message is cut off")
        part, self.position = self._data[self.position : end], end
        return part
