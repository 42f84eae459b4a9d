"""How long event loops work without serving anybody else."""

from __future__ import annotations

import asyncio
import threading
import time


class Portions:
    """The longest portion of work of each loop, between which it serves others, in seconds of its thread on a
    processor: what other processes take does not count. Without threads: of the loop of this thread.
    """

    def __init__(self, *threads: threading.Thread) -> None:
        measured = threads or (threading.current_thread(),)
        self._longest = dict.fromkeys((thread.ident for thread in measured), 0.0)
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)
            portion, ident = time.thread_time() - began, threading.get_ident()
            if portion > self._longest.get(ident, portion):
                self._longest[ident] = portion

        asyncio.Handle._run = timed

    def longest(self) -> list[float]:
        """Of each thread, since the last call."""
        portions = list(self._longest.values())
        self._longest = dict.fromkeys(self._longest, 0.0)
        return portions
