"""Saved states of tasks: save, read and restore them, and the functions that do so for a pool."""

from __future__ import annotations

from typing import Annotated, ClassVar

from schedulemesh.api.call import Call, ChangeWithBlobs, ChangingCall
from schedulemesh.api.routes import ListRoute, post
from schedulemesh.api.rows import OneOf
from schedulemesh.api.tables import Table, TableColumn
from schedulemesh.api.tasks import OfTask, OwnTaskChange, TaskInfo
from schedulemesh.api.values import ClientName, Key, Names, PoolName, RequestId
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.task import check_task
from schedulemesh.domain.tokens import Role


class SavedStateInfo(TaskInfo, total=False):
    """A task whose state is stored, or that was lost with its agent."""

    status: Annotated[str, OneOf("running", "preempted", "lost")]
    #: False: the task was lost before a state of it was saved.
    state_saved: bool


class SaveTaskState(OwnTaskChange, tag="save_task_state", frozen=True, kw_only=True):
    """Save the state of a running task, which continues."""

    routes: ClassVar = (
        post("/tasks/{task_id}/save", "Save the state of a running task, which continues"),
    )


class RestoreTask(ChangingCall, tag="restore_task", frozen=True, kw_only=True):
    """Restart a preempted task from this state."""

    least_role: ClassVar[Role] = Role.SUBMITTER

    saved: SavedState
    #: The client as host:pid; quota that it freed with ``preempt_task`` is used for the task.
    client: ClientName | None = None
    request_id: RequestId

    def __post_init__(self) -> None:
        super().__post_init__()
        check_task(self.saved.task)
        if self.saved.agent_name:
            parse_name(self.saved.agent_name, "saved_state['agent_name']")


class GetSavedState(OfTask, tag="get_saved_state", frozen=True, kw_only=True):
    """Get the last saved state of a task."""

    least_role: ClassVar[Role] = Role.SUBMITTER


class ListSavedStates(Call, tag="list_saved_states", frozen=True, kw_only=True):
    """List the tasks whose state is stored, and those that were lost."""

    listings: ClassVar = (
        ListRoute(
            path="/saved_states",
            row=SavedStateInfo,
            key=("task_id",),
            paged="saved_states",
            table=Table(
                command="states",
                group="Look",
                chinese="列出保存了状态的任务，以及丢失的任务。",
                rows=("saved states", "保存的状态"),
                name="task_id",
                columns=(
                    TableColumn("task_id", "task"),
                    TableColumn("owner"),
                    TableColumn("pool_name", "pool"),
                    TableColumn("priority", "prio"),
                    TableColumn("status"),
                    TableColumn("state_saved", chinese="状态已保存"),
                    TableColumn("on_preempted", "on_preempted", wide=True),
                    TableColumn("labels", wide=True),
                ),
            ),
        ),
    )

    #: Those with these ids only; None: all.
    task_ids: Names | None = None


class RegisterStateHandlers(
    ChangeWithBlobs, tag="register_state_handlers", frozen=True, kw_only=True
):
    """Save and restore the states of a pool's tasks with these functions."""

    least_role: ClassVar[Role] = Role.POOL_OPERATOR

    pool_name: PoolName
    preserver_key: Key | None = None
    restorer_key: Key | None = None
