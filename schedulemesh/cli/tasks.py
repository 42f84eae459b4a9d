"""The commands tasks, complete, cancel and preempt."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.columns import CHANGES, MEMBERS, TASKS
from schedulemesh.cli.command import Output, Select, Target, Tasks, View, command, group, note
from schedulemesh.cli.language import phrase
from schedulemesh.cli.output import emit, show
from schedulemesh.cli.rows import Listing, Record
from schedulemesh.cli.selection import listed
from schedulemesh.cli.texts import amounts, duration, labels, local_time, names
from schedulemesh.cli.waiting import wait
from schedulemesh.cli.wording import in_commands, node
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.wording import reworded

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

#: What members of an array do, or how they have ended, in the order in which a sentence counts them.
MEMBER_COUNTS = ("queued", "running", "completed", "failed", "cancelled", "lost")
#: How many members of an array are shown where nothing is said.
SHOWN_MEMBERS = 100

app = typer.Typer()
tasks_app = typer.Typer()
app.add_typer(tasks_app, name="tasks")
command(tasks_app, "wait")(wait)


@group(tasks_app)
def list_tasks(
    target: Target,
    view: View,
    select: Select,
    array: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The members of this array, those that have ended too."),
    ] = None,
    after: Annotated[
        int | None, typer.Option(min=0, help="Of an array: only members behind this index.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Of an array: how many members are shown.")
    ] = SHOWN_MEMBERS,
) -> None:
    """List the tasks that run, and those that wait; or the members of an array."""
    from schedulemesh.api.tasks import ListTasks

    if array is not None:
        show(target, view, lambda g: _members(g, array, after, limit), select)
        return
    _refuse_without_array(after is not None, "--after")
    _refuse_without_array(limit != SHOWN_MEMBERS, "--limit")
    show(target, view, lambda g: listed(g, ListTasks(), task_listing, select), select)


def _refuse_without_array(stated: bool, option: str) -> None:
    """Raise InvalidRequestError for an option that chooses members where no array is named."""
    if stated:
        raise InvalidRequestError(
            f"{option} chooses members of an array; name it with --array, or choose tasks with -f"
        )


def _members(gateway: Gateway, array_id: str, after: int | None, limit: int) -> Listing:
    """The members of an array, with how it stands. Raises RefusedError."""
    from schedulemesh.api.arrays import GetArray, MemberRow
    from schedulemesh.protocol.answers import Details

    request = GetArray(task_id=array_id, after=after, limit=limit)
    facts = gateway.ask(request, Details).facts
    counts = [
        phrase("remark_members", count=facts[state], state=state)
        for state in MEMBER_COUNTS
        if facts[state]
    ]
    array, state = facts["array"], facts["state"]
    notes = [phrase("remark_array", name=array_id, array=array, state=state, counts=counts)]
    if facts["next"] is not None:
        notes.append(phrase("remark_next_members", next=facts["next"]))
    return Listing(
        kind="members",
        rows=facts["members"],
        columns=MEMBERS,
        row=MemberRow,
        name="task_id",
        notes=tuple(notes),
    )


def task_listing(rows: list[dict[str, object]]) -> Listing:
    """Tasks."""
    from schedulemesh.api.tasks import TaskListing

    return Listing(kind="tasks", rows=rows, columns=TASKS, row=TaskListing, name="task_id")


@command(tasks_app, "get")
def get(
    target: Target, view: View, task: Annotated[str, typer.Argument(help="The task's id.")]
) -> None:
    """Show one task: its fields, how it stands, and how it ended."""
    show(target, view, lambda gateway: _record(gateway, task))


def _record(gateway: Gateway, task_id: str) -> Record:
    """A task as listings have it, if it has not ended, and how it stands. Raises RefusedError."""
    from schedulemesh.api.pages import ListPage, PageQuery
    from schedulemesh.api.tasks import WaitTasks, WaitUntil
    from schedulemesh.protocol.answers import Details, Listed

    standing = WaitTasks(task_ids=(task_id,), until=WaitUntil.RUNNING, enough=1, wait_s=0.0)
    (status,) = gateway.ask(standing, Listed).rows
    page = PageQuery(fields=(("task_id", (task_id,)),), order=(("task_id", False),), limit=1)
    rows = gateway.ask(ListPage(listing="tasks", page=page), Details).facts["items"]
    listed_facts = rows[0] if rows else _links(gateway, task_id)
    facts = reworded({**listed_facts, **status}, in_commands)
    unknown = "remaining_time" if facts.get("estimated_duration") is None else ""
    shown = {key: value for key, value in facts.items() if key != unknown}
    lines = [
        (key.removesuffix("_s").replace("_", " "), _line(key, value))
        for key, value in shown.items()
    ]
    return Record(facts=facts, name="task_id", lines=[line for line in lines if line[1]])


def _links(gateway: Gateway, task_id: str) -> dict[str, Any]:
    """The links of a task that is not listed any more."""
    from schedulemesh.api.tasks import ExplainTask
    from schedulemesh.protocol.answers import Explained

    explanation = gateway.ask(ExplainTask(task_id=task_id), Explained).explanation
    return {"links": explanation.links} if explanation.links else {}


def _line(key: str, value: Any) -> str:
    """The value of a task's field for a person."""
    if key in ("resources", "short"):
        return amounts(value)
    if key in ("labels", "links"):
        return labels(value)
    if key == "node_id":
        return node(value)
    if key.endswith("_at"):
        return local_time(value) if value else ""
    is_time = key.endswith("_s") or key in ("remaining_time", "waiting_time", "estimated_duration")
    return duration(value) if is_time and value is not None else names(value)


@command(app)
def complete(
    target: Target,
    output: Output,
    tasks: Tasks,
    end_agent: Annotated[
        bool, typer.Option("--end-agent", help="End its agent too, unless that runs other tasks.")
    ] = False,
) -> int:
    """Report that running tasks are done."""
    from schedulemesh.api.tasks import CompleteTask
    from schedulemesh.cli.changes import change_each
    from schedulemesh.domain.sentences import Text, say
    from schedulemesh.protocol.answers import Response

    def completed(answer: Response) -> Text:
        change = getattr(answer.outcome, "change", None)
        if change is None:
            return say("result_completed")
        return say("result_completed_with", change=change.value)

    def request(task_id: str) -> CompleteTask:
        return CompleteTask(task_id=task_id, end_agent=end_agent, request_id=uuid.uuid4().hex)

    return change_each(target, output, tasks, request, Response, completed)


@command(app)
def cancel(target: Target, output: Output, tasks: Tasks) -> int:
    """Cancel tasks."""
    from schedulemesh.api.tasks import CancelTasks
    from schedulemesh.api.values import MAX_NAMES
    from schedulemesh.cli.exits import RefusedError, code_of_reason
    from schedulemesh.cli.gateway import gateway_to, with_hint
    from schedulemesh.domain.reasons import Change
    from schedulemesh.domain.sentences import Text, say
    from schedulemesh.engine.messages.outcomes import Refused, TasksCancelled
    from schedulemesh.protocol.answers import Response

    ids = tuple(dict.fromkeys(tasks))
    refused: dict[str, Refused] = {}
    already_ended = say("result_code", code=Change.ALREADY_ENDED.value)
    results: dict[str, Text] = dict.fromkeys(ids, say("result_cancelled"))
    with gateway_to(target) as gateway:
        for first in range(0, len(ids), MAX_NAMES):
            request = CancelTasks(task_ids=ids[first : first + MAX_NAMES])
            outcome = gateway.ask(request, Response).outcome
            if isinstance(outcome, TasksCancelled):
                refused |= outcome.refused
                results |= dict.fromkeys(outcome.already_ended, already_ended)
        errors = [with_hint(gateway, RefusedError(why)) for why in refused.values()]
    for task_id, why in refused.items():
        results[task_id] = say("result_refused", reason=why.reason)
    rows = [{"name": task_id, "result": result} for task_id, result in results.items()]
    emit(Listing(kind="changes", rows=rows, columns=CHANGES), output)
    for error in errors:
        note(str(error))
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
    from schedulemesh.api.values import client_name
    from schedulemesh.cli.changes import change_each
    from schedulemesh.domain.sentences import Text, say
    from schedulemesh.protocol.answers import Response

    def evicted(answer: Response) -> Text:
        saved = sum(evicted.state_saved for evicted in answer.evicted)
        return say("result_evicted", count=len(answer.evicted), saved=saved)

    def request(task_id: str) -> PreemptTask:
        return PreemptTask(
            task_id=task_id,
            for_pool=for_pool,
            client=client_name(),
            request_id=uuid.uuid4().hex,
        )

    return change_each(target, output, tasks, request, Response, evicted)
