"""Settings of a process of the control plane, whose event loop serves many callers at a time."""

from __future__ import annotations

import gc
import sys

#: Seconds for which a thread computes before another one that waits gets its turn.
SWITCH_S = 0.0005


def collect_garbage_rarely() -> None:
    """Collect cyclic garbage rarely, and leave out what lives by now: a collection walks all living objects,
    those of imported modules included, and serves nobody meanwhile. That is 50 ms for the modules of the HTTP
    API, and a second for a supervisor with a poll open for each of 10,000 hosts. What is in no cycle is freed
    at once all the same.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    gc.enable()


def switch_threads_often() -> None:
    """Let threads take turns ten times as often as Python does by itself. The loop and the thread that writes
    the journal give the interpreter's lock away at every call of the system, and get it back only when the
    other one has computed for that long: a commit, which makes several such calls, beside a long read, or the
    loop beside a thread that checks something large.
    """
    sys.setswitchinterval(SWITCH_S)
