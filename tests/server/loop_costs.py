"""What the requests of each kind cost the event loop of a supervisor in this process."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextvars import ContextVar
from typing import NamedTuple

from schedulemesh.api.pages import ListPage
from schedulemesh.runtime.services.requests import RequestService

_KIND = ContextVar("kind", default="")


class RequestCost(NamedTuple):
    """The requests of one kind, in a period."""

    kind: str
    per_s: float
    #: Milliseconds of the loop's thread on a processor: in each second, and at most without serving others.
    ms_per_s: float
    longest_ms: float


class LoopCosts:
    """Counts requests, and measures the work of the loop for each, from now on."""

    def __init__(self):
        self._clear()
        answer, run = RequestService.answer, asyncio.Handle._run

        async def named(service, request, *parameters, **more):
            kind = type(request).__name__
            kind += f" {request.listing}" if isinstance(request, ListPage) else ""
            _KIND.set(kind)
            self._counts[kind] += 1
            return await answer(service, request, *parameters, **more)

        def timed(handle):
            began = time.thread_time()
            run(handle)
            if kind := handle._context.get(_KIND, ""):
                took_s = time.thread_time() - began
                self._spent[kind] += took_s
                self._longest[kind] = max(self._longest[kind], took_s)

        RequestService.answer, asyncio.Handle._run = named, timed

    def _clear(self):
        self._began = time.monotonic()
        self._counts, self._spent, self._longest = Counter(), Counter(), Counter()

    def taken(self):
        """The costs since the last call, the greatest first."""
        length = time.monotonic() - self._began
        costs = [
            RequestCost(
                kind, count / length, 1e3 * self._spent[kind] / length, 1e3 * self._longest[kind]
            )
            for kind, count in self._counts.items()
        ]
        self._clear()
        return sorted(costs, key=lambda cost: -cost.ms_per_s)
