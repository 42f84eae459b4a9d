"""The priority of the control plane's processes among the others of their node."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path


def take_priority_of_ray() -> bool:
    """Give all threads of this process the niceness of the process that started it, which for an actor is
    Ray's own on this node; False: its own is as low, or the system does not permit a lower one.

    Ray starts workers with a niceness of 15 (``RAY_worker_niceness``), so that on a busy node an actor that
    takes part in every decision would wait for whatever else computes there. Lowering it takes root's rights
    or ``CAP_SYS_NICE``.
    """
    if sys.platform != "linux":
        return False
    niceness = os.getpriority(os.PRIO_PROCESS, os.getppid())
    if os.getpriority(os.PRIO_PROCESS, 0) <= niceness:
        return False
    try:
        # On Linux each thread has its own; threads that are started later inherit it.
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # one that has ended meanwhile
                os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
    except PermissionError:
        return False
    return True
