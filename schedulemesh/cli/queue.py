"""The commands queue, hold, release, priority and front, for tasks that wait; and limit."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

import typer

from schedulemesh.cli.columns import queue_columns
from schedulemesh.cli.command import Format, Output, Select, Target, Tasks, View, command
from schedulemesh.cli.language import phrase
from schedulemesh.cli.output import show
from schedulemesh.cli.priorities import PriorityArgument
from schedulemesh.cli.rows import Listing
from schedulemesh.cli.selection import narrowed
from schedulemesh.domain.numbers import span_text
from schedulemesh.domain.sentences import Text, say
from schedulemesh.errors import InvalidRequestError

app = typer.Typer()

#: Tasks of each pool that are shown where nothing else is asked for.
_SHOWN = 20


@command(app, "queue")
def show_queue(
    target: Target,
    view: View,
    select: Select,
    pool: Annotated[str | None, typer.Option(help="Only this pool's queue.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How many tasks of each pool are looked at; 0: all. Else 20, or all with -f, -l or --sort.",
        ),
    ] = None,
    after: Annotated[
        int, typer.Option(min=0, help="Only tasks behind this position: the next page.")
    ] = 0,
) -> None:
    """Show the tasks that wait in their order, what each asks for, and why it waits."""
    from schedulemesh.api.queue import ListQueue
    from schedulemesh.protocol.answers import QueueListed

    if limit is None:
        limit = 0 if select.everything else _SHOWN
    request = ListQueue(pool_name=pool, limit=limit or None, after=after)
    in_short = view.output is Format.TABLE and not select.everything

    def look(gateway: Any) -> Listing:
        answer = gateway.ask(narrowed(request, queue_listing([]), select), QueueListed)
        rows = [row.in_short() if in_short else row.public() for row in answer.rows]
        if len(rows) == answer.total:
            return queue_listing(rows)
        return queue_listing(rows, (_left_out(rows, answer.total, limit),))

    show(target, view, look, select)


def _left_out(rows: list[dict[str, Any]], total: int, limit: int) -> str:
    """What is not shown, and how it is."""
    if not limit or not rows:
        return phrase("remark_shown", shown=len(rows), total=total)
    last = max(row["position"] for row in rows)
    return phrase("remark_next_tasks", shown=len(rows), total=total, last=last)


def queue_listing(rows: list[dict[str, Any]], notes: tuple[str, ...] = ()) -> Listing:
    """Queued tasks."""
    from schedulemesh.api.queue import QueueListing

    return Listing(
        kind="queued tasks",
        rows=rows,
        columns=queue_columns(rows),
        row=QueueListing,
        name="task_id",
        notes=notes,
    )


@command(app)
def hold(target: Target, output: Output, tasks: Tasks) -> int:
    """Keep queued tasks from starting until they are released."""
    return _change(target, output, tasks, say("result_held"), held=True)


@command(app)
def release(target: Target, output: Output, tasks: Tasks) -> int:
    """Let held tasks start again."""
    return _change(target, output, tasks, say("result_unheld"), held=False)


@command(app)
def front(target: Target, output: Output, tasks: Tasks) -> int:
    """Move queued tasks to the front of their pools; of several, the last one comes first."""
    return _change(target, output, tasks, say("result_front"), to_front=True)


@command(app, negative=True)
def priority(
    target: Target,
    output: Output,
    task: Annotated[str, typer.Argument(help="The task's id.")],
    value: PriorityArgument,
) -> int:
    """Change the priority of a task that waits or runs."""
    from schedulemesh.api.queue import ChangeQueuedTask
    from schedulemesh.cli.changes import change_each
    from schedulemesh.domain.numbers import parse_priority
    from schedulemesh.protocol.answers import Response

    def request(task_id: str) -> ChangeQueuedTask:
        number = parse_priority(value)
        return ChangeQueuedTask(task_id=task_id, request_id=uuid.uuid4().hex, priority=number)

    def done(_: Response) -> Text:
        return say("result_priority", value=f"{parse_priority(value):g}")

    return change_each(target, output, [task], request, Response, done)


@command(app)
def limit(
    target: Target,
    output: Output,
    task: Annotated[str, typer.Argument(help="The task's id.")],
    value: Annotated[
        str,
        typer.Argument(
            metavar="DURATION", help="From its start: 4h, 90m; none: as its pool's definition says."
        ),
    ],
) -> int:
    """Change for how long a task may run, whether it runs or waits."""
    from schedulemesh.api.tasks import SetTimeLimit
    from schedulemesh.cli.changes import change_each
    from schedulemesh.cli.texts import seconds
    from schedulemesh.protocol.answers import Response

    max_run_s = None if value == "none" else seconds(value, "DURATION")
    if max_run_s == 0:
        raise InvalidRequestError("DURATION is 0; it must be above 0, or none for the pool's limit")

    def request(task_id: str) -> SetTimeLimit:
        return SetTimeLimit(task_id=task_id, max_run_s=max_run_s, request_id=uuid.uuid4().hex)

    done = say("result_pool_limit")
    if max_run_s is not None:
        done = say("result_limit", span=span_text(max_run_s))
    return change_each(target, output, [task], request, Response, lambda _: done)


def _change(target: Target, output: Output, tasks: list[str], done: Text, **fields: Any) -> int:
    """Change how each task waits."""
    from schedulemesh.api.queue import ChangeQueuedTask
    from schedulemesh.cli.changes import change_each
    from schedulemesh.protocol.answers import Response

    def request(task_id: str) -> ChangeQueuedTask:
        return ChangeQueuedTask(task_id=task_id, request_id=uuid.uuid4().hex, **fields)

    return change_each(target, output, tasks, request, Response, lambda _: done)
