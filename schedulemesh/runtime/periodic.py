"""What a supervisor does again and again while it runs: failures are logged and counted, and none ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from schedulemesh.errors import JournalError
from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics.values import Family, Sample
from schedulemesh.runtime.backend import BackendError

logger = logging.getLogger(__name__)

#: Failures that are expected while the cluster or the journal is in trouble; others are logged with a
#: traceback.
_EXPECTED = (JournalError, BackendError)


class _Loop(msgspec.Struct, kw_only=True):
    #: Seconds from the completion of one round to that of the next at which it is not overdue yet.
    due_s: float
    #: When the last round was completed, or the loop began, by the clock of the event loop.
    completed_at: float
    #: What runs it.
    task: asyncio.Task[object] | None
    failures: int = 0
    #: The last failure, until a round is completed.
    failure: str = ""


class Loops:
    """The loops of one supervisor by name. A metric says which are overdue, and an alert fires for them."""

    def __init__(self) -> None:
        self._loops: dict[str, _Loop] = {}

    async def run(
        self,
        name: str,
        every_s: float,
        work: Callable[[], Awaitable[object]],
        *,
        at_once: bool = False,
        takes_s: float = 0.0,
        ended_by: type[Exception] | tuple[()] = (),
    ) -> None:
        """Do some work every so many seconds, for the first time ``at_once`` or after the first of them.
        ``takes_s``: how long a round may take. Returns only after a failure of the kind ``ended_by``.
        """
        loop = self._loops[name] = _Loop(
            due_s=every_s + takes_s, completed_at=_now(), task=asyncio.current_task()
        )
        if not at_once:
            await asyncio.sleep(every_s)
        while True:
            try:
                await work()
            except ended_by as error:
                logger.warning("%s: %s; it is not tried again", name, error)
                del self._loops[name]
                return
            except Exception as error:  # noqa: BLE001  # counted; none may end the loop
                _failed(name, loop, error)
            else:
                loop.completed_at, loop.failure = _now(), ""
            await asyncio.sleep(every_s)

    def end_all(self) -> None:
        """End all loops for good; of none is a round due any more."""
        loops, self._loops = self._loops, {}
        for loop in loops.values():
            if loop.task is not None:
                loop.task.cancel()

    def families(self) -> Iterator[Family]:
        """How often rounds have failed, and for how long none was completed that was due."""
        loops = list(self._loops.items())
        yield c.LOOP_FAILURES, [Sample((name,), loop.failures) for name, loop in loops]
        yield c.LOOP_OVERDUE, [Sample((name,), _overdue_s(loop)) for name, loop in loops]


def _failed(name: str, loop: _Loop, error: Exception) -> None:
    loop.failures += 1
    is_known = isinstance(error, _EXPECTED) or loop.failure == repr(error)
    loop.failure = repr(error)
    logger.warning(
        "%s: %s", name, error if is_known else repr(error), exc_info=None if is_known else error
    )


def _overdue_s(loop: _Loop) -> float:
    return round(max(0.0, _now() - loop.completed_at - loop.due_s), 3)


def _now() -> float:
    """The time of the event loop in seconds."""
    return asyncio.get_running_loop().time()
