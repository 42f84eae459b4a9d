"""The commands tasks, cancel and preempt."""

from __future__ import annotations

import uuid
from typing import Annotated

import typer

from schedulemesh.cli.columns import CHANGES, TASKS
from schedulemesh.cli.command import Output, Select, Target, Tasks, View, command, note
from schedulemesh.cli.output import emit, show
from schedulemesh.cli.rows import Listing
from schedulemesh.protocol.wording import in_commands

app = typer.Typer()


@command(app, "tasks")
def list_tasks(target: Target, view: View, select: Select) -> None:
    """List the tasks that run, and those that wait."""
    from schedulemesh.api.tasks import ListTasks
    from schedulemesh.protocol.answers import Listed

    show(target, view, lambda g: task_listing(g.ask(ListTasks(), Listed).rows), select)


def task_listing(rows: list[dict[str, object]]) -> Listing:
    """Tasks."""
    from schedulemesh.api.tasks import TaskListing

    return Listing(kind="tasks", rows=rows, columns=TASKS, row=TaskListing, name="task_id")


@command(app)
def cancel(target: Target, output: Output, tasks: Tasks) -> int:
    """Cancel tasks."""
    from schedulemesh.api.tasks import CancelTasks
    from schedulemesh.api.values import MAX_NAMES
    from schedulemesh.cli.exits import code_of_reason
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.engine.messages.outcomes import Refused, TasksCancelled
    from schedulemesh.protocol.answers import Response

    ids = tuple(dict.fromkeys(tasks))
    refused: dict[str, Refused] = {}
    with gateway_to(target) as gateway:
        for first in range(0, len(ids), MAX_NAMES):
            request = CancelTasks(task_ids=ids[first : first + MAX_NAMES])
            outcome = gateway.ask(request, Response).outcome
            refused |= outcome.refused if isinstance(outcome, TasksCancelled) else {}
    results = [f"refused: {refused[one].reason}" if one in refused else "cancelled" for one in ids]
    rows = [{"name": one, "result": result} for one, result in zip(ids, results, strict=True)]
    emit(Listing(kind="changes", rows=rows, columns=CHANGES), output)
    for why in refused.values():
        note(in_commands(why.error))
    return next((int(code_of_reason(why.reason)) for why in refused.values()), 0)


@command(app)
def preempt(
    target: Target,
    output: Output,
    tasks: Annotated[list[str], typer.Argument(help="Ids of tasks, or names of agents.")],
    for_pool: Annotated[
        str | None, typer.Option(help="Hold the freed quota for this pool for a minute.")
    ] = None,
) -> int:
    """Evict running tasks: save their states, and end their agents."""
    from schedulemesh.api.preemption import PreemptTask
    from schedulemesh.cli.changes import change_each, client_name
    from schedulemesh.protocol.answers import Response

    def evicted(answer: Response) -> str:
        saved = sum(evicted.state_saved for evicted in answer.evicted)
        return f"evicted {len(answer.evicted)}, states saved: {saved}"

    def request(task_id: str) -> PreemptTask:
        return PreemptTask(
            task_id=task_id,
            for_pool=for_pool,
            client=client_name(),
            request_id=uuid.uuid4().hex,
        )

    return change_each(target, output, tasks, request, Response, evicted)
