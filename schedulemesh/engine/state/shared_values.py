"""Values that many tasks have in common, each of which is kept once.

What is read from a journal has its own for each task, which takes a third of the memory of the task.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import force_setattr

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.payloads import SINGLE_PROCESS, AgentPayload
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted

#: The labels of whatever has none; nothing changes labels.
_NO_LABELS: dict[str, str] = {}


class SharedValues:
    """The values that were met so far; it is needed while a state is restored, and not kept."""

    def __init__(self) -> None:
        self._values: dict[object, Any] = {}

    def share_in(self, submission: TaskSubmitted) -> None:
        """Have a submission, which stays equal, refer to the values of others where they are equal."""
        agent, task = submission.agent, submission.task
        self._share_in_agent(agent)
        if task is not None:
            self._share_in_task(task)
        if (client := submission.client) is not None:
            force_setattr(submission, "client", self._values.setdefault(client, client))

    def _share_in_agent(self, agent: AgentSpec) -> None:
        shared = self._values.setdefault
        force_setattr(agent, "pool_name", shared(agent.pool_name, agent.pool_name))
        force_setattr(agent, "resources", shared(agent.resources, agent.resources))
        force_setattr(agent, "class_key", shared(agent.class_key, agent.class_key))
        force_setattr(agent, "options", shared(agent.options, agent.options))
        if isinstance(agent.payload, AgentPayload):
            force_setattr(agent, "payload", SINGLE_PROCESS)
        if not agent.labels:
            force_setattr(agent, "labels", _NO_LABELS)

    def _share_in_task(self, task: TaskSpec) -> None:
        shared = self._values.setdefault
        force_setattr(task, "pool_name", shared(task.pool_name, task.pool_name))
        force_setattr(task, "owner", shared(task.owner, task.owner))
        if not task.labels:
            force_setattr(task, "labels", _NO_LABELS)
