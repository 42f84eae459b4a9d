"""Reads the log of a task in pieces, over every way to a scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from schedulemesh.api.logs import MAX_PIECE, ReadTaskLog
from schedulemesh.domain.task import ENDED_STATES
from schedulemesh.protocol.answers import TaskLog
from schedulemesh.protocol.patience import until_answered

#: Sends a request; raises SchedulerUnavailableError where nobody answers.
Ask = Callable[[ReadTaskLog], TaskLog]

#: Seconds between two looks for what is written.
_LOOK_S = 0.5


def log_pieces(
    ask: Ask, request: ReadTaskLog, *, follow: bool, tail: int | None
) -> Iterator[bytes]:
    """What the attempt of a request has written, from its beginning: the last ``tail`` lines (None: all that
    is kept).

    With ``follow`` also what is written from then on, until the task has ended; where no attempt is named
    also that of all further ones.
    """
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
                yield from _rest(ask, msgspec.structs.replace(request, attempt=current), begin)
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


def _rest(ask: Ask, request: ReadTaskLog, begin: int) -> Iterator[bytes]:
    """What an earlier attempt wrote after a position."""
    while piece := ask(msgspec.structs.replace(request, begin=begin)).data:
        yield piece
        begin += len(piece)
