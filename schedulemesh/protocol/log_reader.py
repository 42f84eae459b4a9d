"""Reads the log of a job in pieces, over every way to a scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from schedulemesh.api.jobs import MAX_PIECE, ReadJobLog
from schedulemesh.domain.task import ENDED_STATES
from schedulemesh.protocol.answers import JobLog
from schedulemesh.protocol.patience import until_answered

#: Sends a request; raises SchedulerUnavailableError where nobody answers.
Ask = Callable[[ReadJobLog], JobLog]

#: Seconds between two looks for what is written.
_LOOK_S = 0.5


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
        further = partial(ask, msgspec.structs.replace(request, begin=begin))
        piece = until_answered(further) if follow else further()
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
        if not follow or piece.state in ENDED_STATES:
            return
        time.sleep(_LOOK_S)


def _rest(ask: Ask, task_id: str, attempt: int, begin: int) -> Iterator[bytes]:
    """What an earlier attempt wrote after a position."""
    while piece := ask(ReadJobLog(task_id=task_id, attempt=attempt, begin=begin)).data:
        yield piece
        begin += len(piece)
