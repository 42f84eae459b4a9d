"""A cache of stored bytes, so that they need not be read from the journal."""

from __future__ import annotations


class BlobCache:
    """An LRU cache with a limit on its total size in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._blobs: dict[str, bytes] = {}

    def get(self, key: str | None) -> bytes | None:
        """The bytes; None: they are not cached."""
        data = self._blobs.pop(key, None) if key is not None else None
        if key is not None and data is not None:
            self._blobs[key] = data
        return data

    def put(self, key: str, data: bytes) -> None:
        """Cache these bytes, unless they exceed the limit alone."""
        self._size -= len(self._blobs.pop(key, b""))
        if len(data) > self._limit:
            return
        self._blobs[key] = data
        self._size += len(data)
        while self._size > self._limit:
            self._size -= len(self._blobs.pop(next(iter(self._blobs))))
