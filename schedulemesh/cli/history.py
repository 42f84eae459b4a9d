"""The commands history, usage and events: what happened, and what was used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.api.rows import NameOf
from schedulemesh.cli.command import Output, Select, Since, Target, View, command, note
from schedulemesh.cli.language import phrase
from schedulemesh.cli.output import emit, emit_stream, show
from schedulemesh.cli.rows import Column, Listing, Row
from schedulemesh.cli.selection import chosen, selected, unknown_names
from schedulemesh.cli.texts import data, duration, labels, local_time, moment, names, number
from schedulemesh.cli.wording import node
from schedulemesh.errors import InvalidRequestError

if TYPE_CHECKING:
    from schedulemesh.cli.following import Part

app = typer.Typer()

Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Until then; see --since.")
]


@command(app)
def history(
    target: Target,
    view: View,
    select: Select,
    task: Annotated[str | None, typer.Argument(help="A task's id: its attempts alone.")] = None,
    pool: Annotated[str | None, typer.Option(help="Only those in this pool.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only those of this owner.")] = None,
    state: Annotated[str | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The last so many.")] = 50,
    since: Since = None,
    until: Until = None,
    export: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write all of them to a file as a job trace."),
    ] = None,
    export_format: Annotated[
        str | None,
        typer.Option("--format", help="csv, jsonl or parquet; default: as the file's name ends."),
    ] = None,
) -> None:
    """List past and present attempts to run tasks: who, where, how long, how they ended.

    With --watch they are listed again when something has happened, or after 20 s. Of one task its events are
    in JSON and YAML; `events --task` prints them.
    """
    begin, end = _moment(since, "--since"), _moment(until, "--until")
    if export is not None:
        _export(target, export, export_format, begin, end)
        return
    from schedulemesh.api.history import QueryHistory
    from schedulemesh.protocol.answers import Details

    request = QueryHistory(
        task_id=task,
        pool_name=pool,
        owner=owner,
        state=state,
        labels=_required_labels(select),
        since=begin,
        until=end,
        limit=limit,
        with_events=task is not None,
    )

    def look(gateway: Any) -> Listing:
        facts = gateway.ask(request, Details).facts
        names = ((NameOf.TASK, task), (NameOf.POOL, pool), (NameOf.OWNER, owner))
        unknown = () if facts["attempts"] else unknown_names(gateway, names)
        return attempt_listing(facts, (*unknown, *_remarks_on_future(begin)))

    show(target, view, look, select, on_events=True)


@command(app)
def usage(
    target: Target,
    view: View,
    by: Annotated[str, typer.Option(help="pool, owner, label or flavor.")] = "pool",
    label: Annotated[
        str | None, typer.Option(help="With --by label: only the values of this label.")
    ] = None,
    since: Since = "24h",
    until: Until = None,
) -> None:
    """Sum up GPU-hours, CPU-hours, waiting and lost work, in whole hours."""
    from schedulemesh.api.history import QueryUsage
    from schedulemesh.protocol.answers import Details

    begin, end = _moment(since, "--since"), _moment(until, "--until")
    request = QueryUsage(by=by, since=begin or 0.0, until=end, label=label)

    def look(gateway: Any) -> Listing:
        facts = gateway.ask(request, Details).facts
        return usage_listing(by, facts, _remarks_on_future(begin, end))

    show(target, view, look)


@command(app)
def events(
    target: Target,
    output: Output,
    select: Select,
    follow: Annotated[
        bool, typer.Option("--follow", "-F", help="Go on with what happens, until interrupted.")
    ] = False,
    after: Annotated[
        int | None, typer.Option(min=0, help="Those after this cursor; 0: from the beginning.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 1000,
    task: Annotated[str | None, typer.Option(help="Only those of this task.")] = None,
    pool: Annotated[
        str | None, typer.Option(help="Only those about this pool and its tasks.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only those of this kind; repeatable.")
    ] = None,
) -> None:
    """Print what happened, in its order.

    With --follow what happens from now on, unless --after says where to continue.
    """
    import msgspec

    from schedulemesh.api.history import QueryEvents
    from schedulemesh.cli.following import gap_note
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.protocol.answers import Details

    query = QueryEvents(
        after=after if follow else after or 0,
        limit=limit,
        task_id=task,
        pool_name=pool,
        kinds=tuple(kind or ()),
    )
    with gateway_to(target) as gateway:
        first = gateway.ask(query, Details).facts
        names = ((NameOf.TASK, task), (NameOf.POOL, pool))
        notes = () if first["events"] else unknown_names(gateway, names)
        listing = event_listing(first["events"], gap_note(query.after, first["gap"]), *notes)
        listing = chosen(gateway, listing, select)
        if follow:
            rest = gateway.follow(msgspec.structs.replace(query, after=first["cursor"]))
            emit_stream(_followed(listing, rest, select), output)
        else:
            emit(listing, output)


def _followed(first: Listing, rest: Iterator[Part], select: Select) -> Iterator[Listing]:
    """The first events, and those that follow."""
    from schedulemesh.cli.following import HEARTBEAT

    yield first
    for part in rest:
        if part != HEARTBEAT:
            yield selected(event_listing(part.rows, part.note), select)


def _export(
    target: Target, path: str, kind: str | None, since: float | None, until: float | None
) -> None:
    """Write all attempts to a file."""
    from schedulemesh.api.history import QueryHistory
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.protocol.answers import Details
    from schedulemesh.store.history.export import AttemptPage, export

    with gateway_to(target) as gateway:

        def page(after: int, limit: int) -> AttemptPage:
            query = QueryHistory(after=after, limit=limit, since=since, until=until)
            facts = gateway.ask(query, Details).facts
            return {"attempts": facts["attempts"], "more": facts["more"]}

        try:
            done = export(page, path, kind)
        except OSError as error:
            raise InvalidRequestError(
                f"{path} cannot be written: {error.strerror}; name a file in a folder that you may write"
            ) from error
    print(done.path)
    note(phrase("remark_written", count=done.jobs))


def attempt_listing(facts: dict[str, Any], notes: tuple[str, ...] = ()) -> Listing:
    """The answer to QueryHistory."""
    from schedulemesh.api.history import AttemptInfo

    if facts["more"]:
        notes = (*notes, phrase("remark_older"))
    return Listing(
        kind="attempts",
        rows=facts["attempts"],
        columns=_ATTEMPTS,
        row=AttemptInfo,
        name="task_id",
        notes=(*notes, *_delay(facts)),
    )


def usage_listing(by: str, facts: dict[str, Any], notes: tuple[str, ...] = ()) -> Listing:
    """The answer to QueryUsage."""
    begin, end = local_time(facts["since"]), local_time(facts["until"])
    span = phrase("remark_span", since=begin, until=end)
    return Listing(
        kind="usage",
        rows=facts["usage"],
        columns=(Column(heading=by, key=by), *_USAGE),
        name=by,
        notes=(span, *notes, *_delay(facts)),
    )


def event_listing(rows: list[dict[str, Any]], *remarks: str) -> Listing:
    """Events in their order, with the remarks that are not empty."""
    from schedulemesh.api.history import HistoryEvent

    return Listing(
        kind="events",
        rows=rows,
        columns=_EVENTS,
        row=HistoryEvent,
        name="cursor",
        notes=tuple(filter(None, remarks)),
    )


def _delay(facts: dict[str, Any]) -> tuple[str, ...]:
    behind = facts["behind"]
    return (phrase("remark_behind", count=behind),) if behind else ()


def _moment(text: str | None, what: str) -> float | None:
    return None if text is None else moment(text, what=what)


def _remarks_on_future(begin: float | None, end: float | None = None) -> tuple[str, ...]:
    """What is said of times that are yet to come."""
    now = time.time()
    if begin is not None and begin > now:
        return (phrase("remark_since_future"),)
    if end is not None and end > now:
        return (phrase("remark_until_future"),)
    return ()


def _required_labels(select: Select) -> dict[str, str]:
    """The labels that an attempt must have, for the scheduler; the rest is left to ``selected``."""
    pairs = [text.partition("=") for text in select.labels or () if "!=" not in text]
    return {key: value for key, equals, value in pairs if equals}


def _how(row: Row) -> str:
    """How it ended, with the reason, or for whom it was evicted."""
    evictor = row["by_task"] or row["by_agent"]
    if row["state"] == "preempted" and evictor:
        return phrase("cell_evicted_for", evictor=evictor)
    return f"{row['state']} ({row['reason']})" if row["reason"] else str(row["state"])


def _ran(row: Row) -> str:
    return duration(row["ran_s"]) if row["started_at"] is not None else "-"


def _about(row: Row) -> str:
    return str(row["task_id"] or row["agent_name"] or node(row["subject"]))


def _details(fields: dict[str, Any]) -> str:
    return " ".join(f"{key}={data(value)}" for key, value in fields.items())


def _hours(value: float) -> str:
    return f"{value:,.1f}"


def _wide(heading: str, key: str, show: Any = number) -> Column:
    return Column(heading=heading, key=key, show=show, wide=True)


#: Characters of the longest reason that is often given.
_REASON = 20

_ATTEMPTS = (
    Column(heading="task", key="task_id"),
    Column(heading="#", key="attempt", right=True),
    Column(heading="pool", key="pool_name"),
    Column(heading="owner", key="owner"),
    Column(heading="submitted", key="submitted_at", show=local_time),
    Column(heading="waited", key="waited_s", show=duration, right=True),
    Column(heading="ran", key="", show=_ran, right=True),
    Column(heading="state", key="", show=_how, least=_REASON),
    Column(heading="state", key="state", wide=True),
    Column(heading="reason", key="reason", wide=True),
    Column(heading="agent", key="agent_name", wide=True),
    Column(heading="flavor", key="flavor", wide=True),
    Column(heading="topology", key="topology", wide=True),
    _wide("GPU", "gpu"),
    _wide("CPU", "cpu"),
    _wide("GPU-s", "gpu_s"),
    _wide("started", "started_at", local_time),
    _wide("ended", "ended_at", local_time),
    _wide("ran s", "ran_s"),
    _wide("lost s", "lost_s"),
    _wide("nodes", "node_ids", names),
    _wide("labels", "labels", labels),
)

_USAGE = (
    Column(heading="GPU-h", key="gpu_hours", show=_hours, right=True),
    Column(heading="CPU-h", key="cpu_hours", show=_hours, right=True),
    Column(heading="waited h", key="waiting_hours", show=_hours, right=True),
    Column(heading="lost GPU-h", key="lost_gpu_hours", show=_hours, right=True),
    Column(heading="done", key="completed", right=True),
    Column(heading="failed", key="failed", right=True),
    Column(heading="evicted", key="preempted", right=True),
    _wide("started", "started"),
    _wide("cancelled", "cancelled"),
    _wide("lost", "lost"),
    _wide("lost h", "lost_hours", _hours),
    _wide("memory GB-h", "memory_gb_hours", _hours),
)

_EVENTS = (
    Column(heading="time", key="at", show=local_time),
    Column(heading="event", key="kind"),
    Column(heading="about", key="", show=_about),
    Column(heading="details", key="detail", show=_details, least=_REASON + len("reason=")),
    Column(heading="cursor", key="cursor", wide=True, right=True),
    Column(heading="task", key="task_id", wide=True),
    Column(heading="pool", key="pool_name", wide=True),
    Column(heading="owner", key="owner", wide=True),
    Column(heading="subject", key="subject", wide=True),
)
