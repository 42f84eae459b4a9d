"""Which plugin is being asked right now, in a file that outlives this process.

A plugin that ends the process (``os._exit``, a crash in C code) leaves no exception behind. The mark is a
write into shared memory of a file, without a system call, so it costs less than a microsecond and is there
for the next process on this node. It is not forced to the disk: it says nothing after the node itself went
down.
"""

from __future__ import annotations

import logging
import mmap
import os
from pathlib import Path

logger = logging.getLogger(__name__)

_SIZE = 4096
#: The first bytes hold the length of what follows; 0: nobody is being asked.
_HEAD = 2


class CallMark:
    """The mark of one supervisor. Where the file cannot be used, nothing is marked, and the log says so."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._texts: dict[tuple[str, str], bytes] = {}
        self._map: mmap.mmap | None = None
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(file, _SIZE)
                self._map = mmap.mmap(file, _SIZE)
            finally:
                os.close(file)
        except (OSError, ValueError) as error:
            logger.warning(
                "a strategy that ends this process will not be known: %s: %s", path, error
            )

    def left(self) -> tuple[str, str] | None:
        """The strategy and the hook that were being asked when the former process ended; None: none was."""
        if self._map is None:
            return None
        size = int.from_bytes(self._map[:_HEAD], "little")
        text = self._map[_HEAD : _HEAD + size].decode(errors="replace")
        name, separator, hook = text.partition("\0")
        return (name, hook) if separator else None

    def begin(self, name: str, hook: str) -> None:
        """From now on this strategy is asked this hook."""
        if self._map is None:
            return
        text = self._texts.get((name, hook))
        if text is None:
            text = self._texts[name, hook] = f"{name}\0{hook}".encode()[: _SIZE - _HEAD]
        self._map[_HEAD : _HEAD + len(text)] = text
        # The length goes last, so that a mark is whole or not there.
        self._map[:_HEAD] = len(text).to_bytes(_HEAD, "little")

    def end(self) -> None:
        """Nobody is being asked any more."""
        if self._map is not None:
            self._map[:_HEAD] = b"\0\0"

    def remove(self) -> None:
        """The scheduler ends: nobody reads this any more."""
        if self._map is not None:
            self._map.close()
            self._map = None
        self._path.unlink(missing_ok=True)
