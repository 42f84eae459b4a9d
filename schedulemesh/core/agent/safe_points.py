"""Safe points: where a method lets the state of its object be saved, and waits for what follows.

A save that is requested while a method runs is one request, which exactly one thread serves: that of the
method when it comes to its next safe point, or the control channel's once it has waited for long enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from schedulemesh.protocol.agents import CommandResult

#: A method that waits at a safe point for its eviction goes on after this many seconds at the latest.
HOLD_S = 60.0


class SaveRequest:
    """One request to save the state of the object, in at most ``limit_bytes``, and by ``until`` on the
    monotonic clock.
    """

    def __init__(self, limit_bytes: int, until: float) -> None:
        self.limit_bytes, self.until = limit_bytes, until
        self._untaken = threading.Lock()
        self._result: Future[CommandResult] = Future()
        self._released: Future[None] = Future()

    def take(self) -> bool:
        """Whether the caller is the first to ask, and so the one who saves; everybody else must not."""
        return self._untaken.acquire(blocking=False)

    def answer(self, result: CommandResult) -> None:
        """Whoever took the request has saved, or failed to."""
        self._result.set_result(result)

    def result_within(self, seconds: float) -> CommandResult | None:
        """The result; None: there is none after so many seconds."""
        try:
            return self._result.result(max(0.0, seconds))
        except FutureTimeoutError:
            return None

    def release(self) -> None:
        """Whoever saved at a safe point may go on."""
        if not self._released.done():
            self._released.set_result(None)

    def hold(self) -> None:
        """Block this thread until ``release``."""
        with contextlib.suppress(FutureTimeoutError):
            self._released.result(HOLD_S)

    async def hold_async(self) -> None:
        """As ``hold``, for a coroutine, which does not block its loop."""
        await asyncio.wait({asyncio.wrap_future(self._released)}, timeout=HOLD_S)


class SafePoint:
    """A safe point that was reached: awaited by a coroutine that was saved there, it returns when the task
    was cancelled or may go on.
    """

    def __init__(
        self, points: SafePoints | None = None, request: SaveRequest | None = None
    ) -> None:
        self._points, self._request = points, request
        #: Whether a coroutine stands here, so that nothing of it changes the object.
        self.is_awaited = False

    def __await__(self) -> Generator[object, None, None]:
        self.is_awaited = True
        if self._points is not None and self._request is not None:
            yield from self._points.stand(self, self._request).__await__()

    def __reduce__(self) -> tuple[type[SafePoint], tuple[()]]:
        """As the answer to a caller in another process it is nothing to wait for."""
        return SafePoint, ()


#: Saves for a request that was taken at a safe point, and answers it; with a SafePoint on its event loop,
#: else on the thread that is there.
Save = Callable[[SaveRequest, SafePoint | None], None]


class SafePoints:
    """The safe points of one object, and the newest request to save it there. Several threads may use it."""

    def __init__(self, save: Save) -> None:
        self._save = save
        #: How many safe points were reached so far.
        self.reached = 0
        self._request: SaveRequest | None = None

    def request(self, limit_bytes: int, until: float) -> SaveRequest:
        """Have the object saved at the next safe point, or by a method that still stands at its last one."""
        earlier, self._request = self._request, SaveRequest(limit_bytes, until)
        if earlier is not None:
            earlier.release()
        return self._request

    def release(self) -> None:
        """Let a method that stands at a safe point go on."""
        if self._request is not None:
            self._request.release()

    def reach(self) -> None:
        """A method is at a safe point, on a thread that it may block: save if that is requested, and wait."""
        self.reached += 1
        while (request := self._take_request()) is not None:
            self._save(request, None)
            request.hold()

    def reach_on_loop(self) -> SafePoint:
        """As ``reach``, on an event loop: save here, and wait if the safe point is awaited."""
        self.reached += 1
        request = self._take_request()
        point = SafePoint(self, request)
        if request is not None:
            self._save(request, point)
        return point

    async def stand(self, point: SafePoint, request: SaveRequest | None) -> None:
        """Wait where the object was saved for a request, and save it again where that is requested."""
        while request is not None:
            await request.hold_async()
            request = self._take_request()
            if request is not None:
                self._save(request, point)

    def _take_request(self) -> SaveRequest | None:
        """The newest request, if this caller is to serve it."""
        request = self._request
        return request if request is not None and request.take() else None
