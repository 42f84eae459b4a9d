"""Callers that wait for the outcome of a request, or for the end of an agent."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from schedulemesh.engine.messages.facts import AgentEnded
from schedulemesh.engine.messages.instructions import AnswerRequest
from schedulemesh.engine.messages.outcomes import RequestOutcome
from schedulemesh.engine.transaction import Step
from schedulemesh.runtime.reactor import Reactor

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
        known = self._reactor.state.answers.get(request_id)
        if known is not None:
            return known.outcome
        return await _wait_for(self._requests, request_id)

    async def end_of(self, agent_name: str) -> None:
        """Return once the agent is durably removed from the state."""
        if agent_name not in self._reactor.state.agents:
            await self._reactor.flushed()
        if agent_name in self._reactor.state.agents:
            await _wait_for(self._ends, agent_name)

    def __len__(self) -> int:
        """How many requests and agents somebody waits for."""
        return len(self._requests) + len(self._ends)

    def _take(self, step: Step) -> None:
        for fact in step.facts:
            if isinstance(fact, AgentEnded):
                _resolve(self._ends.pop(fact.agent_name, []), None)
        for instruction in step.instructions:
            if isinstance(instruction, AnswerRequest):
                known = self._reactor.state.answers[instruction.request_id]
                _resolve(self._requests.pop(instruction.request_id, []), known.outcome)


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
