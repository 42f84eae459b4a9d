"""What the HTTP API needs of a scheduler: requests are answered."""

from __future__ import annotations

from typing import Protocol

from schedulemesh.api.call import Call
from schedulemesh.protocol.answers import AnyAnswer
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.job_command import JobCommand, Sent
from schedulemesh.protocol.submissions import RunnerCode


class SupervisorClient(Protocol):
    """The way to the supervisor of one scheduler."""

    async def ask(self, request: Call, caller: TokenCaller | None = None) -> AnyAnswer:
        """The answer to a request. ``caller``: on whose behalf it is made, whose role and limits are checked;
        None: this process itself makes it.

        Raises SchedulerUnavailableError where the supervisor does not answer.
        """

    async def ask_packed(self, request: Call, caller: TokenCaller | None = None) -> bytes:
        """As ``ask``, for who passes the answer on: as the supervisor has encoded it."""

    def packed_runner(self, command: JobCommand, sent: Sent) -> RunnerCode:
        """The agent that runs a driver command, packed for its submission, with what is sent with that.
        Raises InvalidRequestError for a command that it cannot run.
        """
