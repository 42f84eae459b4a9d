"""Packs the runner of a job, for the processes that submit jobs: clients, and the server of the HTTP API."""

from __future__ import annotations

from functools import cache

from schedulemesh.core.agent.job_runner import JobRunner
from schedulemesh.core.backend.ray_options import parse_options
from schedulemesh.core.transport.user_code import ship_arguments, ship_class
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.job_command import JobCommand
from schedulemesh.protocol.submissions import RunnerCode


def packed_runner(command: JobCommand) -> RunnerCode:
    """The runner of this driver command. Raises InvalidRequestError for a runtime environment that Ray does
    not accept.
    """
    # The working directory of the driver is one that the runner unpacks, or one that Ray fetches. Nothing of
    # the environment of the submitting process is for it.
    options = {"runtime_env": dict(command.runtime_env)} if command.runtime_env else None
    code = _runner()
    arguments = ship_arguments((), {"command": command}, "the driver command").data
    return RunnerCode(
        class_key=key_of(code),
        arguments_key=key_of(arguments),
        options=parse_options(options, {}, None, {}, "").encoded,
        blobs={key_of(code): code, key_of(arguments): arguments},
    )


@cache
def _runner() -> bytes:
    return ship_class(JobRunner)
