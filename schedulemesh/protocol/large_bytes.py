"""Many bytes are copied and sent in slices, between which others are served: one copy of 16 MB takes about
10 ms, and all other threads of the process wait for it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence

#: Bytes that are copied or sent at once.
SLICE = 128 * 1024


def sliced(parts: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    """All bytes of these, in their order."""
    for part in parts:
        view = memoryview(part)
        for first in range(0, len(view), SLICE):
            yield view[first : first + SLICE]


def joined(parts: Sequence[bytes | memoryview]) -> bytes:
    """These as one. Called beside the event loop where they are many."""
    # Of its whole size from the beginning: to grow it may mean to copy it.
    buffer = io.BytesIO(bytes(sum(map(len, parts))))
    for view in sliced(parts):
        buffer.write(view)
    return buffer.getvalue()  # not copied: nobody else has it
