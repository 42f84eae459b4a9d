"""Reads the log of a job in pieces, over every way to a scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from schedulemesh.domain.task import EndState
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.protocol.answers import JobLog
from schedulemesh.protocol.job_logs import MAX_PIECE, ReadJobLog

#: Sends a request; raises SchedulerUnavailableError where nobody answers.
Ask = Callable[[ReadJobLog], JobLog]

#: Seconds between two looks for what is written, and for which nobody need answer.
_LOOK_S, _PATIENCE_S = 0.5, 60.0
_ENDED = frozenset(state.value for state in EndState)


def log_pieces(
    ask: Ask, task_id: str, attempt: int | None, *, follow: bool, tail: int | None
) -> Iterator[bytes]:
    """What an attempt (None: the last one) has written: the last ``tail`` lines (None: all that is kept).

    With ``follow`` also what is written from then on, until the job has ended; where no attempt is named also
    that of all further ones.
    """
    request = ReadJobLog(task_id=task_id, attempt=attempt)
    if tail is not None:
        last = ask(msgspec.structs.replace(request, begin=-MAX_PIECE))
        lines = last.data.splitlines(keepends=True)
        yield b"".join(lines[max(0, len(lines) - tail) :])
        begin, current = last.begin + len(last.data), last.attempt
    else:
        begin, current = 0, 0
    while True:
        piece = _asked(ask, msgspec.structs.replace(request, begin=begin), patient=follow)
        if piece.attempt != current:
            if current:
                yield from _rest(ask, task_id, current, begin)
            if begin:
                begin, current = 0, piece.attempt
                continue
            current = piece.attempt
        yield piece.data
        begin = piece.begin + len(piece.data)
        if piece.data:
            continue
        if not follow or piece.state in _ENDED:
            return
        time.sleep(_LOOK_S)


def _rest(ask: Ask, task_id: str, attempt: int, begin: int) -> Iterator[bytes]:
    """What an earlier attempt wrote after a position."""
    while piece := ask(ReadJobLog(task_id=task_id, attempt=attempt, begin=begin)).data:
        yield piece
        begin += len(piece)


def _asked(ask: Ask, request: ReadJobLog, *, patient: bool) -> JobLog:
    """The answer; with ``patient`` a scheduler that restarts is waited for."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return ask(request)
        except SchedulerUnavailableError:
            if not patient or time.monotonic() > until:
                raise
            time.sleep(_LOOK_S)
