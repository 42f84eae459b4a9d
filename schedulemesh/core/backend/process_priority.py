"""The priority of the control plane's processes among the others of their node: for the CPU, and for the
kernel where memory runs out.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

#: By how much the process of the HTTP API is nicer than it would be: enough that the supervisor, which is
#: idle most of the time, gets a processor as soon as it wants one, and little beside other work of the node.
_BEHIND = 4
#: The highest niceness there is.
_NICEST = 19


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
        _set_niceness(niceness)
    except PermissionError:
        return False
    return True


def stand_behind_supervisor() -> None:
    """Make this process nicer than a supervisor on the same node, whose decisions are not to wait for screens
    that are drawn or long answers that are encoded here.
    """
    if sys.platform == "linux":
        _set_niceness(min(_NICEST, os.getpriority(os.PRIO_PROCESS, 0) + _BEHIND))


def _set_niceness(niceness: int) -> None:
    """Set that of all threads of this process. On Linux each has its own; threads that are started later
    inherit it. Raises PermissionError.
    """
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # one that has ended meanwhile
            os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)


def take_oom_score_of_ray() -> bool:
    """Give this process the score of the process that started it, Ray's own on this node, by which the kernel
    chooses whom to kill where memory runs out; False: its own is as low, or the system does not permit it.

    Ray gives every worker the highest score there is (``RAY_worker_oom_score_adjustment``), so that workers
    die before Ray itself; a supervisor is a worker, too. Lowering a score that an ordinary user has raised
    takes no rights.
    """
    score_file = Path("/proc/self/oom_score_adj")
    try:
        of_ray = int(Path(f"/proc/{os.getppid()}/oom_score_adj").read_text(encoding="ascii"))
        if int(score_file.read_text(encoding="ascii")) <= of_ray:
            return False
        score_file.write_text(str(of_ray), encoding="ascii")
    except OSError:  # another system than Linux, or one that does not permit it
        return False
    return True
