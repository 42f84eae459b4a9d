"""Callers that wait for the outcome of a request, or for the end of an agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import TypeVar

from schedulemesh.api.call import Call
from schedulemesh.api.tasks import SubmitMany, SubmitTask
from schedulemesh.engine.messages.facts import AgentEnded, RequestAnswered
from schedulemesh.engine.messages.outcomes import RequestOutcome
from schedulemesh.engine.state.agents import Ending, Running
from schedulemesh.engine.transaction import Step
from schedulemesh.errors import JournalError
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.store.journal import InDoubtError

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


class Answers:
    """Resolves what callers wait for with the durable steps of a reactor, to which it subscribes."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        #: Waiting callers by request.
        self._requests: dict[str, list[asyncio.Future[RequestOutcome]]] = {}
        #: Waiting callers by agent.
        self._ends: dict[str, list[asyncio.Future[None]]] = {}
        reactor.subscribe(self._take)

    async def outcome(self, request_id: str) -> RequestOutcome:
        """The final outcome of a request, once it is durable."""
        state = self._reactor.state
        if request_id in state.answers:
            await self._reactor.flushed()
        answer = self._reactor.state.answers.get(request_id)
        if answer is not None:
            return answer.outcome
        return await _wait_for(self._requests, request_id)

    async def end_of(self, agent_name: str) -> None:
        """Return once the agent is durably removed from the state."""
        if agent_name not in self._reactor.state.agents:
            await self._reactor.flushed()
        if agent_name in self._reactor.state.agents:
            await _wait_for(self._ends, agent_name)

    async def end_with(self, task_id: str) -> None:
        """Return once the agent of a task that has ended is removed, if that is being ended."""
        state = self._reactor.state
        ended = state.ended.get(task_id)
        agent = None if ended is None else state.agents.get(ended.agent_name)
        if ended is None or agent is None or not isinstance(agent.phase, Ending):
            return
        previous = agent.phase.previous
        # Another agent may have the name by now.
        if not isinstance(previous, Running) or previous.started_at <= ended.at:
            await self.end_of(agent.spec.name)

    def __len__(self) -> int:
        """How many requests and agents somebody waits for."""
        return len(self._requests) + len(self._ends)

    def _take(self, step: Step) -> None:
        for fact in step.facts:
            if isinstance(fact, AgentEnded):
                _resolve(self._ends.pop(fact.agent_name, []), None)
            elif isinstance(fact, RequestAnswered):
                _resolve(self._requests.pop(fact.request_id, []), fact.outcome)


class OpenRequests:
    """The requests that are being answered, by the ids by which a repeated one is recognised. It may be
    unknown whether a change that failed is durable, and nobody is told of it what may turn out to be wrong.
    """

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        #: Set when a request has been answered; by id, the first request first.
        self._open: dict[str, list[asyncio.Event]] = {}

    @contextlib.contextmanager
    def answering(self, request: Call) -> Iterator[list[asyncio.Event]]:
        """While a request is being answered; gives what is set when the same ones before it have been."""
        ids, answered = _ids(request), asyncio.Event()
        earlier = [each for request_id in ids for each in self._open.get(request_id, ())]
        for request_id in ids:
            self._open.setdefault(request_id, []).append(answered)
        try:
            yield earlier
        finally:
            answered.set()
            for request_id in ids:
                self._open[request_id].remove(answered)
                if not self._open[request_id]:
                    del self._open[request_id]

    async def resolved(self, error: JournalError, earlier: Sequence[asyncio.Event]) -> None:
        """Return once nothing of a request that failed can become durable any more, so that its caller may be
        told that nothing has changed: when the journal can be written again, or at once if nothing of it was
        written; of one that is repeated, when those before it have been answered.

        It does not return after another process has taken the journal over, which alone knows.
        """
        if isinstance(error, InDoubtError):
            logger.warning("a caller waits, because its change may be durable: %s", error)
            await self._reactor.writable()
        for each in earlier:
            await each.wait()


def _ids(request: Call) -> set[str]:
    """The ids by which a request is recognised when it is repeated."""
    if isinstance(request, SubmitMany):
        request_ids = [submission.request_id for submission in request.submissions]
    elif isinstance(request, SubmitTask):
        request_ids = [request.submission.request_id]
    else:
        request_ids = [getattr(request, "request_id", None)]
    return {each for each in request_ids if each}


async def _wait_for(waiting: dict[str, list[asyncio.Future[Value]]], key: str) -> Value:
    """Wait for a value. A caller that gives up is removed."""
    future: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
    waiting.setdefault(key, []).append(future)
    try:
        return await future
    finally:
        others = waiting.get(key, [])
        if future in others:
            others.remove(future)
            if not others:
                del waiting[key]


def _resolve(futures: list[asyncio.Future[Value]], value: Value) -> None:
    for future in futures:
        if not future.done():
            future.set_result(value)
