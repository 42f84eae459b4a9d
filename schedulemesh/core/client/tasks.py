"""Task calls: register, complete and list tasks. RayScheduler documents each call."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from schedulemesh.api.tasks import CompleteTask, ListTasks, RegisterTask
from schedulemesh.core.client import results
from schedulemesh.core.client.asking import listed, logged, respond
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.listings import TasksResult
from schedulemesh.core.client.task_fields import described_task
from schedulemesh.core.client.task_request import parent_of
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_flag


def register_running_task(
    connection: Connection, agent_name: object, given: Mapping[str, object]
) -> results.Result:
    """Register a task that runs on an agent; ``given`` are the fields of the task by name."""
    caller = connection.caller
    task, blobs = described_task(given, caller.owner, parent_of(caller, given))
    request = RegisterTask(task=task, agent_name=parse_name(agent_name, "agent_name"), blobs=blobs)
    return logged("register_running_task", results.done(respond(connection, request).outcome))


def complete_task(connection: Connection, task_id: object, end_agent: object) -> results.Result:
    """Report that a task is done."""
    request = CompleteTask(
        task_id=parse_name(task_id, "task_id"),
        end_agent=parse_flag(end_agent, "end_agent"),
        request_id=uuid.uuid4().hex,
    )
    return logged("complete_task", results.done(respond(connection, request).outcome))


def list_tasks(connection: Connection) -> TasksResult:
    """Every task."""
    return listed(connection, ListTasks(), "tasks", TasksResult)
