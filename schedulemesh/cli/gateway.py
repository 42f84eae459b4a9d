"""How commands reach a scheduler: one request, one answer."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from schedulemesh.cli.command import Target
from schedulemesh.protocol.answers import AnswerT
from schedulemesh.protocol.requests import AnyRequest


class Gateway(Protocol):
    """A connection to one scheduler."""

    def ask(self, request: AnyRequest, expected: type[AnswerT]) -> AnswerT:
        """Send a request and wait for its answer.

        Raises RefusedError where the scheduler refuses it, InvalidRequestError where it is malformed, and
        SchedulerUnavailableError where nobody answers.
        """


def gateway_to(target: Target) -> AbstractContextManager[Gateway]:
    """A connection to the scheduler, closed at the end of the block. Ray is imported when it is needed."""
    from schedulemesh.cli.ray_gateway import connected

    return connected(target)
