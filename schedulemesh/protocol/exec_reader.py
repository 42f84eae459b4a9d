"""Follows a command inside a claim, over every way to a scheduler."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from schedulemesh.api.call import Call
from schedulemesh.api.exec_sessions import MAX_INPUT, ReadExec, StartExec, WriteExec
from schedulemesh.protocol.answers import AnswerT, Details, ExecOutput

#: Seconds for which one request waits for output.
_WAIT_S = 10.0


class AskExec(Protocol):
    """Sends a request."""

    def __call__(self, request: Call, expected: type[AnswerT], /) -> AnswerT:
        """The answer. Raises what stands for a refusal, and SchedulerUnavailableError: nobody answers."""


class ExecReader:
    """A command that was started. One thread may read it while another one writes to it."""

    def __init__(self, ask: AskExec, request: StartExec) -> None:
        self._ask, self._task_id = ask, request.task_id
        self._session_id = str(ask(request, Details).facts["session_id"])
        self._sent = 0
        #: How it has ended; None: it has not been read to its end.
        self.end: ExecOutput | None = None

    def pieces(self, until: float | None = None) -> Iterator[tuple[int, bytes]]:
        """What it writes until it has ended, each piece with the number of its stream; or until this time on
        the monotonic clock.
        """
        after = 0
        while until is None or time.monotonic() < until:
            wait_s = _WAIT_S if until is None else min(_WAIT_S, until - time.monotonic())
            request = ReadExec(
                task_id=self._task_id,
                session_id=self._session_id,
                after=after,
                wait_s=max(0.0, wait_s),
            )
            part = self._ask(request, ExecOutput)
            yield from part.pieces
            after = part.next
            if part.ended and not part.pieces:
                self.end = part
                return

    def write(self, data: bytes, *, closes: bool = False) -> None:
        """Send it input; returns when it was passed on. ``closes``: nothing comes after it."""
        begin, total = self._sent, self._sent + len(data)
        while True:
            request = WriteExec(
                task_id=self._task_id,
                session_id=self._session_id,
                data=data[self._sent - begin :][:MAX_INPUT],
                begin=self._sent,
                closes=closes and total - self._sent <= MAX_INPUT,
            )
            self._sent = int(self._ask(request, Details).facts["taken"])
            if self._sent >= total:
                return

    def resize(self, rows: int, columns: int) -> None:
        """Tell it the size of its terminal."""
        request = WriteExec(
            task_id=self._task_id,
            session_id=self._session_id,
            begin=self._sent,
            rows=rows,
            columns=columns,
        )
        self._ask(request, Details)

    def stop(self) -> None:
        """End it, with all that it has started."""
        request = WriteExec(
            task_id=self._task_id, session_id=self._session_id, begin=self._sent, ends=True
        )
        self._ask(request, Details)
