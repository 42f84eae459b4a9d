"""Another command on this terminal, which ends with a lease, with all that it has started."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

from schedulemesh.cli.command import note
from schedulemesh.cli.language import phrase
from schedulemesh.core.agent.process_marks import living as living_process
from schedulemesh.core.agent.process_marks import mark_of, mark_this_process, marked, terminate

#: What a shell adds to the number of a signal that has ended a process, and what it exits with where a
#: command cannot be run.
_SIGNALLED, _NOT_RUNNABLE = 128, 126
#: Seconds between two looks at the lease.
_LOOK_S = 0.2
#: Seconds for what the command has left to end by itself; the same where the lease has ended already, or its
#: grace is nearly over.
_END_S, _LATE_S = 5.0, 1.0
#: The call by which a process asks for a signal at the death of the one that started it.
_PR_SET_PDEATHSIG = 1


class HeldLease(Protocol):
    """What a session needs of a lease."""

    @property
    def state(self) -> str:
        """See Lease."""

    def preempted(self) -> bool:
        """See Lease."""

    def grace_left(self) -> float:
        """See Lease."""


class Session:
    """A command on this terminal, which ends with a lease, and at the latest with this process."""

    def __init__(
        self, granted: HeldLease, words: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._lease, self._words, self._environment = granted, words, environment
        #: What the command and everything that it starts is marked with.
        self._mark = mark_of("session", "", uuid.uuid4().hex)
        self._ended = threading.Event()

    def run(self) -> int:
        """The command's exit code, once it and all that it has started has ended. SIGINT is the command's."""
        mark_this_process(self._mark)
        former = signal.signal(signal.SIGINT, signal.SIG_IGN)
        libc = ctypes.CDLL(None)

        def prepare() -> None:
            signal.signal(signal.SIGINT, former)
            # Killed, this process could not end it.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)

        try:
            process = subprocess.Popen(  # noqa: S603  # what the user wants to run
                self._words,
                env=self._environment,
                preexec_fn=prepare,  # noqa: PLW1509  # it calls the system only
            )
        except OSError as error:
            note(f"{self._words[0]!r} cannot be run: {error}")
            return _NOT_RUNNABLE
        try:
            threading.Thread(target=self._follow, name="lease", daemon=True).start()
            code = process.wait()
        finally:
            self._ended.set()
            signal.signal(signal.SIGINT, former)
            self._end(_END_S)
            process.wait()
        return code if code >= 0 else _SIGNALLED - code

    def _follow(self) -> None:
        """Tell the command of the eviction of its lease, and end it when the lease ends."""
        notified = False
        while not self._ended.wait(_LOOK_S):
            if self._lease.preempted() and not notified:
                notified = True
                left_s = self._lease.grace_left()
                note(phrase("remark_lease_evicted", seconds=left_s))
                self._send(signal.SIGTERM)
            over = notified and self._lease.grace_left() <= _LATE_S
            if over or self._lease.state not in ("running", "preempting"):
                if not notified:
                    note(phrase("remark_lease_ended", state=self._lease.state))
                self._end(_LATE_S)
                return

    def _end(self, patience_s: float) -> None:
        """End the command and all that it has started, within some seconds. At SIGHUP shells end."""
        self._send(signal.SIGTERM, signal.SIGHUP, signal.SIGCONT)
        end = time.monotonic() + patience_s
        while marked(self._mark) and time.monotonic() < end:
            time.sleep(_LOOK_S)
        asyncio.run(terminate(self._mark))

    def _send(self, *signals: signal.Signals) -> None:
        for process in marked(self._mark):
            if living_process(process.pid) == process:
                for number in signals:
                    try:
                        os.kill(process.pid, number)
                    except (ProcessLookupError, PermissionError):
                        break
