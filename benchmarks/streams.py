"""What clients that stream events cost the decisions of the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.mesh import amounts, finished, gone, opening, reported, submitted
from benchmarks.rows import Row, at_most, note
from schedulemesh.api.history import QueryEvents
from schedulemesh.api.tokens import CreateToken, GetTokenHashes
from schedulemesh.config.settings import HistorySettings
from schedulemesh.domain.tokens import TokenSpec
from schedulemesh.engine.messages.outcomes import Done
from schedulemesh.engine.messages.stimuli import AnyStimulus
from schedulemesh.engine.transaction import Step
from schedulemesh.protocol.answers import AnyAnswer, Details, Response, encode_answer
from schedulemesh.protocol.requests import decode_request
from schedulemesh.runtime.history.recorder import history_of
from schedulemesh.runtime.periodic import Loops
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.runtime.services.history import HistoryService
from schedulemesh.store.sql import SqlJournal

_NEED = amounts(cpu=1)
#: Seconds between two tasks: the supervisor is busy, and not more than that.
_PAUSE_S = 0.003


def streams(clients: int = 50, lives: int = 3_000, rounds: int = 5) -> list[Row]:
    """Decisions while clients stream all events, and without them, alternately."""
    return asyncio.run(_streams(clients, lives // rounds, rounds))


async def _streams(clients: int, lives: int, rounds: int) -> list[Row]:
    plain: list[float] = []
    streamed: list[float] = []
    received, took = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        async with _supervisor(Path(folder)) as supervisor, _http(Path(folder)) as be:
            numbers = itertools.count()
            # Not counted: statements are compiled, and caches are empty.
            await supervisor.live(itertools.islice(numbers, lives))
            gc.collect()
            gc.freeze()
            for _ in range(rounds):
                await be(0)
                plain += await supervisor.live(itertools.islice(numbers, lives))
                before, began = await be(clients), time.perf_counter()
                streamed += await supervisor.live(itertools.islice(numbers, lives))
                took += time.perf_counter() - began
                received += await be(0) - before
            asked = supervisor.asked
    without, during = (statistics.quantiles(times, n=100)[98] * 1e3 for times in (plain, streamed))
    what = f"{clients} clients that stream all events"
    return [
        at_most(
            f"{what}: added to the p99 of decisions",
            during - without,
            5,
            " ms",
            f"{without:.3g} ms without",
        ),
        note(f"{what}: received by each", f"{received / clients / took:,.0f} events/s"),
        note(f"{what}: requests to the supervisor", f"{asked / took:.3g} /s"),
    ]


class _Supervisor:
    """What decides and writes the history, and answers requests for events."""

    def __init__(self, reactor: Reactor, service: HistoryService) -> None:
        self._reactor, self._service = reactor, service
        self._tokens: list[TokenSpec] = []
        #: Requests for events so far.
        self.asked = 0

    async def live(self, numbers: Iterator[int]) -> list[float]:
        """Whole lives of tasks: the seconds of each decision."""
        taken = []
        for number in numbers:
            step = await self._timed(submitted(number, _NEED, 5.0, 60.0), taken)
            report = reported(self._reactor.engine, step)
            for stimulus in (report, finished(number), gone(number, report.incarnation)):
                await self._timed(stimulus, taken)
            await asyncio.sleep(_PAUSE_S)
        return taken

    async def _timed(self, stimulus: AnyStimulus, taken: list[float]) -> Step:
        began = time.perf_counter()
        step = await self._reactor.step(stimulus)
        taken.append(time.perf_counter() - began)
        return step

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request on a connection of the HTTP server."""
        with contextlib.closing(writer):
            writer.write(encode_answer(await self._answer(decode_request(await reader.read()))))

    async def _answer(self, request: object) -> AnyAnswer:
        if isinstance(request, QueryEvents):
            self.asked += 1
            return await self._service.events(request)
        if isinstance(request, CreateToken):
            self._tokens.append(request.spec)
            return Response(outcome=Done())
        if isinstance(request, GetTokenHashes):
            return Details(facts={"tokens": self._tokens})
        raise TypeError(f"the HTTP server asks for {type(request).__name__}")


@contextlib.asynccontextmanager
async def _supervisor(folder: Path) -> AsyncIterator[_Supervisor]:
    journal = SqlJournal(folder / "journal.sqlite")
    reactor = await Reactor.recover(journal)
    history = history_of(journal, reactor, HistorySettings())
    if history is None:
        raise AssertionError("a journal in a file has a history")
    history.start(Loops())
    await history.caught_up(10.0)
    for stimulus in opening(100):
        await reactor.step(stimulus)
    running: Any = SimpleNamespace(history=history, reactor=reactor)
    made = _Supervisor(reactor, HistoryService(running))
    server = await asyncio.start_unix_server(made.answer, folder / "socket")
    try:
        yield made
    finally:
        server.close()
        await reactor.close(destroy=False)


@contextlib.asynccontextmanager
async def _http(folder: Path) -> AsyncIterator[Any]:
    """The HTTP server and its clients in a process of their own: a function that sets how many there are."""
    words = ["-m", "benchmarks.stream_clients", str(folder / "socket"), str(folder / "home")]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=pipe, stdout=pipe)
    if process.stdin is None or process.stdout is None:
        raise AssertionError("it has pipes")

    async def be(count: int) -> int:
        process.stdin.write(f"{count}\n".encode())
        return int(await process.stdout.readline())

    try:
        yield be
    finally:
        process.stdin.close()
        await process.wait()
