"""How often a process of the control plane looks for cyclic garbage."""

from __future__ import annotations

import gc


def collect_garbage_rarely() -> None:
    """Collect cyclic garbage rarely, and leave out what lives by now: a collection walks all living objects,
    those of imported modules included, and serves nobody meanwhile. That is 50 ms for the modules of the HTTP
    API, and a second for a supervisor with a poll open for each of 10,000 hosts. What is in no cycle is freed
    at once all the same.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    gc.enable()
