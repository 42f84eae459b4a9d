"""Commands beside the process of an agent, and in the claim of a lease, which has no process of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from schedulemesh.core.agent.exec_process import begin_exec
from schedulemesh.core.agent.job_runner import driver_environment, node_environment, ray_address
from schedulemesh.core.agent.process_marks import mark_this_process
from schedulemesh.protocol.agents import AgentInit, unpack
from schedulemesh.protocol.exec_messages import ExecOrder


class ExecHost:
    """An actor in a bundle of the lease. ``mark``: what everything that it starts is marked with."""

    def __init__(self, mark: int) -> None:
        mark_this_process(mark)

    def begin(self, order: bytes, variables: Mapping[str, str]) -> None:
        """Start a command, as a packed ExecOrder says, with these variables beside those of the node.

        Raises OSError where nobody takes its output.
        """
        environment = driver_environment(os.environ, node_environment())
        environment |= {"RAY_ADDRESS": ray_address(), **variables}
        begin_exec(unpack(order, ExecOrder), environment, Path.home())


def begin_in_agent(init: AgentInit, order: bytes) -> None:
    """Start a command, as a packed ExecOrder says, in the environment and the folder of this process, which
    is that of an agent. Raises OSError where nobody takes its output.
    """
    # Its GPUs and threads are those of the node for a driver, but for an agent those that Ray gave to it.
    environment = driver_environment(os.environ, os.environ) | init.array
    what = unpack(order, ExecOrder)
    environment |= {
        "RAY_ADDRESS": ray_address(),
        "SCHEDULEMESH_NAME": init.scheduler,
        "SCHEDULEMESH_NAMESPACE": init.namespace,
        "SCHEDULEMESH_TASK_ID": what.task_id,
    }
    begin_exec(what, environment, None)
