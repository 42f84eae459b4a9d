"""What the driver of a job calls: its task, attempt and checkpoint folder, and whether it is being evicted.

Importing it is fast and loads nothing of Ray. Outside of a job every call works and says that there is none,
so that the same script runs alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

__all__ = [
    "array_index",
    "attempt",
    "checkpoint_dir",
    "on_preemption",
    "preempted",
    "saved",
    "seconds_left",
    "task_id",
]

#: Seconds between two looks for the notice where no signal handler can be installed.
_LOOK_S = 0.2

_callbacks: list[Callable[[float], object]] = []
_called = threading.Lock()


def task_id() -> str | None:
    """The id of the task that this process runs for; None: it belongs to no job."""
    return os.environ.get("SCHEDULEMESH_TASK_ID")


def array_index() -> int | None:
    """The index of this task in its array; None: it is no member of an array."""
    index = os.environ.get("SCHEDULEMESH_ARRAY_INDEX")
    return int(index) if index else None


def attempt() -> int:
    """The number of this attempt to run the task, from 1: one more after each eviction, failure or loss."""
    return int(os.environ.get("SCHEDULEMESH_ATTEMPT", "1"))


def checkpoint_dir() -> Path | None:
    """The folder that every attempt of the task finds again; None: this process belongs to no job."""
    folder = os.environ.get("SCHEDULEMESH_CHECKPOINT_DIR")
    return Path(folder) if folder else None


def preempted() -> bool:
    """Whether the job is being evicted: save a checkpoint and exit.

    A driver that exits after this has been True is started again from its checkpoint, whatever its exit code;
    one that never asks and exits with code 0 is completed.
    """
    folder = _attempt_folder()
    if folder is None or not (folder / "notice").exists():
        return False
    _note(folder / "seen")
    return True


def seconds_left() -> float | None:
    """Seconds until the driver is terminated, 0 at the least; None: it is not being evicted."""
    folder = _attempt_folder()
    try:
        deadline = None if folder is None else float((folder / "notice").read_text("utf-8"))
    except FileNotFoundError:
        return None
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def saved() -> None:
    """Say that the job can be restored from what it has saved by now.

    Files that are written in ``checkpoint_dir`` are seen without it; call it where the job saves elsewhere,
    once the checkpoint is complete. Only the work since the last save counts as lost in an eviction, and a
    job that has never saved counts as one that cannot be saved.
    """
    folder = _attempt_folder()
    if folder is not None:
        _note(folder / "saved")


def on_preemption(callback: Callable[[float], object]) -> None:
    """Have ``callback`` called with the seconds that are left when the job is to be evicted.

    Called on the main thread, it installs a handler of SIGUSR1, and the callback runs on the main thread
    between two instructions of Python; otherwise it runs on a thread of its own. What was said of
    ``preempted`` holds for a driver whose callback was called. Outside of a job nothing is installed.
    """
    _callbacks.append(callback)
    folder = _attempt_folder()
    if folder is None or len(_callbacks) > 1:
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, _on_signal)
        # Only now the runner may send the signal, whose default disposition ends the process.
        _note(folder / "signals" / str(os.getpid()))
        if (folder / "notice").exists():
            _call_all()
    else:
        threading.Thread(target=_watch, args=(folder,), name="schedulemesh", daemon=True).start()


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    _call_all()


def _watch(folder: Path) -> None:
    while not (folder / "notice").exists():
        time.sleep(_LOOK_S)
    _call_all()


def _call_all() -> None:
    """Call every callback, once."""
    if preempted() and _called.acquire(blocking=False):
        for callback in _callbacks:
            callback(seconds_left() or 0.0)


def _attempt_folder() -> Path | None:
    folder = os.environ.get("SCHEDULEMESH_ATTEMPT_DIR")
    return Path(folder) if folder else None


def _note(file: Path) -> None:
    """Create an empty file; the runner may have removed its folder, which is no concern of the driver's."""
    with contextlib.suppress(OSError):
        file.touch()
