"""Packs the runner of a job: the agent that runs its driver, with what the job takes along."""

from __future__ import annotations

import json
from functools import cache

import msgspec

from schedulemesh.core.agent.job_runner import JobRunner
from schedulemesh.core.backend.ray_options import parse_options
from schedulemesh.core.transport.user_code import ship_arguments, ship_class
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.job_command import JobCommand, Sent
from schedulemesh.protocol.submissions import RunnerCode


def packed_runner(command: JobCommand, sent: Sent | None = None) -> RunnerCode:
    """The runner of this driver command, with what is sent with it. Raises InvalidRequestError for a runtime
    environment that Ray does not accept.
    """
    sent = sent or Sent()
    # Nothing of the environment of the submitting process is for the driver.
    ray_options = {"runtime_env": dict(command.runtime_env)} if command.runtime_env else None
    options = parse_options(ray_options, {}, None, {}, "")
    runtime_env = json.loads(options.encoded).get("runtime_env", {})
    command = JobCommand(**{**vars(command), "runtime_env": runtime_env})
    code = _runner()
    arguments = ship_arguments((), {"command": command}, "the driver command").data
    runner = RunnerCode(
        class_key=key_of(code),
        arguments_key=key_of(arguments),
        options=options.encoded,
        blobs={
            key_of(code): code,
            key_of(arguments): arguments,
            **{module.key: data for module, data in sent.modules},
        },
        modules=tuple(module for module, _ in sent.modules),
    )
    folder = sent.folder
    if folder is None:
        return runner
    key = key_of(folder.data)
    return msgspec.structs.replace(
        runner,
        blobs={**runner.blobs, key: folder.data},
        folder_key=key,
        folder_suffix=folder.suffix,
    )


@cache
def _runner() -> bytes:
    return ship_class(JobRunner)
