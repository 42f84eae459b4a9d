"""The requests about saved states of tasks; see ``requests``."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.names import parse_name
from schedulemesh.domain.request_ids import new_request_id
from schedulemesh.domain.task import check_task
from schedulemesh.protocol.agents import SavedState
from schedulemesh.protocol.request_base import OfTask, Request


class SaveTaskState(OfTask, tag="save_task_state", frozen=True, kw_only=True):
    """Save the state of a running task, which continues."""

    request_id: str = msgspec.field(default_factory=new_request_id)


class RestoreTask(Request, tag="restore_task", frozen=True, kw_only=True):
    """Restart a preempted task from this state."""

    saved: SavedState
    #: The client as host:pid; quota that it freed with ``preempt_task`` is used for the task.
    client: str | None = None
    request_id: str

    def __post_init__(self) -> None:
        if self.client is not None:
            parse_name(self.client, "the client's name")
        check_task(self.saved.task)
        if self.saved.agent_name:
            parse_name(self.saved.agent_name, "saved_state['agent_name']")
        parse_name(self.request_id, "request_id")


class GetSavedState(OfTask, tag="get_saved_state", frozen=True, kw_only=True):
    """Get the last saved state of a task."""
