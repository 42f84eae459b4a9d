"""How long a request computes: what it waits for, and what others compute meanwhile, is not counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class ProcessorTime(Generic[Value]):
    """A coroutine whose steps are timed while it is awaited, by the processor time of the thread that makes
    them. What it has done in tasks and threads of their own is not counted.
    """

    def __init__(
        self,
        work: Coroutine[Any, Any, Value],
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._work, self._clock = work, clock
        #: Seconds that its steps have taken up to now.
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, Value]:
        """Its result."""
        advance: Callable[[Any], Any] = self._work.send
        received: Any = None
        while True:
            began = self._clock()
            try:
                awaited = advance(received)
            except StopIteration as ended:
                result: Value = ended.value
                return result
            finally:
                self.seconds += self._clock() - began
            try:
                advance, received = self._work.send, (yield awaited)
            except BaseException as error:  # noqa: BLE001  # raised where the coroutine waits, as cancelling is
                advance, received = self._work.throw, error
