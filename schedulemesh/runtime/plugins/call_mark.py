"""Records which plugin is being called, in a file that survives this process.

A plugin that ends the process (``os._exit``, a crash in C code) raises no exception. The mark is a write to a
memory-mapped file, without a system call, so it costs less than a microsecond and can be read by the next
process on this node. It is not flushed to disk, so it is lost if the node fails.
"""

from __future__ import annotations

import logging
import mmap
import os
from pathlib import Path

from schedulemesh.config.private_files import check_owner, make_private_folder

logger = logging.getLogger(__name__)

_SIZE = 4096
#: The first bytes are the length of the text that follows; 0: no plugin is being called.
_HEAD = 2


class CallMark:
    """The mark of one supervisor. If the file cannot be used, a warning is logged and nothing is recorded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._texts: dict[tuple[str, str], bytes] = {}
        self._map: mmap.mmap | None = None
        try:
            check_owner(path.parent.parent)
            make_private_folder(path.parent)
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

    def unfinished_call(self) -> tuple[str, str] | None:
        """The strategy and hook that were being called when the previous process ended; None: none was."""
        if self._map is None:
            return None
        size = int.from_bytes(self._map[:_HEAD], "little")
        text = self._map[_HEAD : _HEAD + size].decode(errors="replace")
        name, separator, hook = text.partition("\0")
        return (name, hook) if separator else None

    def begin(self, name: str, hook: str) -> None:
        """Record that this hook of this strategy is being called."""
        if self._map is None:
            return
        text = self._texts.get((name, hook))
        if text is None:
            text = self._texts[name, hook] = f"{name}\0{hook}".encode()[: _SIZE - _HEAD]
        self._map[_HEAD : _HEAD + len(text)] = text
        # The length is written last, so that a mark is complete or absent.
        self._map[:_HEAD] = len(text).to_bytes(_HEAD, "little")

    def end(self) -> None:
        """Record that the call has returned."""
        if self._map is not None:
            self._map[:_HEAD] = b"\0\0"

    def remove(self) -> None:
        """Delete the file, because the scheduler ends."""
        if self._map is not None:
            self._map.close()
            self._map = None
        self._path.unlink(missing_ok=True)
