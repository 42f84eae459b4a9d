"""The commands preemptions and evaluate: who was evicted for whom, and who could be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.api.rows import NameOf
from schedulemesh.cli.command import Output, Select, Since, Target, View, command
from schedulemesh.cli.language import phrase, spoken
from schedulemesh.cli.output import emit, show
from schedulemesh.cli.priorities import PriorityOption
from schedulemesh.cli.rows import Column, Listing, Record, Row
from schedulemesh.cli.selection import check_pools, unknown_names
from schedulemesh.cli.texts import (
    duration,
    local_time,
    megabytes,
    moment,
    number,
    remaining,
    short_duration,
)
from schedulemesh.domain.eviction_causes import cause_of
from schedulemesh.domain.reasons import PreemptionReason

if TYPE_CHECKING:
    from schedulemesh.api.results import EvaluationResult

app = typer.Typer()


@command(app)
def preemptions(
    target: Target,
    view: View,
    select: Select,
    task: Annotated[str | None, typer.Option(help="Only those of this task.")] = None,
    pool: Annotated[str | None, typer.Option(help="Only those of this pool.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only those of this owner.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The last so many.")] = 20,
    since: Since = None,
) -> None:
    """List the last preemptions: who was evicted for whom, why, and what it cost."""
    from schedulemesh.api.preemption import ListPreemptions
    from schedulemesh.protocol.answers import Listed

    request = ListPreemptions(task_id=task, pool_name=pool, owner=owner, limit=limit)
    after = None if since is None else moment(since)

    def look(gateway: Any) -> Listing:
        rows = gateway.ask(request, Listed).rows
        names = ((NameOf.TASK, task), (NameOf.POOL, pool), (NameOf.OWNER, owner))
        notes = () if rows else unknown_names(gateway, names)
        return preemption_listing(
            [row for row in rows if after is None or row["timestamp"] >= after], notes
        )

    show(target, view, look, select)


def rounded_score(score: float | None) -> str:
    """A score with four digits, as `explain` has it; it changes with every second that is left to run."""
    return "-" if score is None else f"{score:.4g}"


_CANDIDATES = (
    Column(heading="task", key="task_id"),
    Column(heading="owner", key="owner"),
    Column(heading="pool", key="pool_name"),
    Column(heading="prio", key="priority", show=number, right=True),
    Column(heading="score", key="preempt_score", show=rounded_score, right=True),
    Column(heading="rule", key="reason", least=20),
    Column(heading="remaining", key="remaining_time", show=remaining, right=True),
    Column(heading="agent", key="agent_name", wide=True),
)


@command(app, negative=True)
def evaluate(
    target: Target,
    output: Output,
    pool: Annotated[str, typer.Option(help="The pool of the incoming task.")],
    priority: PriorityOption = 5.0,
    cpus: Annotated[float, typer.Option(min=0, help="CPUs that it asks for.")] = 0.0,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs that it asks for.")] = 0.0,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory that it asks for, such as 64GB.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="LABEL=VALUE", help="A label of it. Repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many tasks.")] = 100,
) -> None:
    """Say which tasks an incoming task may evict, in their order; nothing changes.

    Without amounts it asks for nothing, and the rules alone decide.
    """
    from schedulemesh.api.preemption import EvaluatePreemption
    from schedulemesh.cli.changes import pairs
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.domain.numbers import parse_priority
    from schedulemesh.domain.resources import parse_resources
    from schedulemesh.protocol.answers import Evaluated
    from schedulemesh.protocol.public import evaluated

    size = 0.0 if memory is None else megabytes(memory, "--memory")
    amounts = {"cpu": cpus, "gpu": gpus, "memory": size}
    claim = {kind: amount for kind, amount in amounts.items() if amount}
    with gateway_to(target) as gateway:
        request = EvaluatePreemption(
            priority=parse_priority(priority),
            pool_name=pool,
            labels=pairs(label or (), "--label", "a label is LABEL=VALUE"),
            resources=parse_resources(claim) if claim else None,
            limit=limit,
        )
        check_pools(gateway, [pool])
        facts = evaluated(gateway.ask(request, Evaluated).evaluation)
    emit(_evaluation(facts), output)


def _evaluation(facts: EvaluationResult) -> Record:
    """The answer to EvaluatePreemption."""
    victims = ", ".join(map(str, facts["victims"]))
    spared = ", ".join(f"{code} {count}" for code, count in facts["turned_away"].items())
    lines = [
        ("evicts", victims or _some_or_nobody(facts)),
        ("cancels the start of", ", ".join(facts["cancelled_starts"])),
        ("reason", facts["reason"] or ""),
        ("spared", spared),
    ]
    rest = {key: value for key, value in facts.items() if key not in ("success", "candidates")}
    listing = Listing(
        kind="candidates", rows=facts["candidates"], columns=_CANDIDATES, name="task_id"
    )
    return Record(
        facts=rest, name="reason", lines=[line for line in lines if line[1]], listings=(listing,)
    )


def _some_or_nobody(facts: EvaluationResult) -> str:
    return phrase("evicts_one" if facts["should_preempt"] else "evicts_nobody")


def preemption_listing(rows: list[dict[str, Any]], notes: tuple[str, ...] = ()) -> Listing:
    """One row per preemption; the names are folded on a narrow terminal."""
    from schedulemesh.api.preemption import PreemptionRecord

    return Listing(
        kind="preemptions",
        rows=rows,
        columns=_COLUMNS,
        row=PreemptionRecord,
        name="task_id",
        notes=notes,
        ruled=True,
    )


def _party(task: str, owner: str, pool: str, priority: float | None) -> str:
    place = phrase("preempted_place", owner=owner, pool=pool) if owner and pool else owner or pool
    lines = [task, place]
    if priority is not None:
        lines.append(phrase("preempted_priority", value=f"{priority:.12g}"))
    return "\n".join(lines)


def _victim(row: Row) -> str:
    return _party(row["task_id"], row["owner"], row["pool_name"], row["priority"])


def _evictor(row: Row) -> str:
    evictor = row["evictor"]
    if evictor is None:
        return _cause(row["reason"], row["requested_by"])
    task = evictor["task_id"] or phrase("preempted_by_agent", agent=evictor["agent_name"])
    return _party(task, evictor["owner"], evictor["pool_name"], evictor["priority"])


def _cause(reason: str, client: str | None) -> str:
    """Why a task was evicted for no other one."""
    if client and reason == PreemptionReason.MANUAL:
        return phrase("preempted_by_client", client=client)
    cause = spoken(cause_of(reason))
    return f"{cause}\n{client.removeprefix('window ')}" if client else cause


def _rule(row: Row) -> str:
    score = row["preempt_score"]
    rule = str(row["reason"].removesuffix("_preemption"))
    if score is None:
        return rule
    return f"{rule}\n{phrase('preempted_score', score=rounded_score(score))}"


def _lost(row: Row) -> str:
    lines = [duration(row["lost_work"]), _gpu_time(row["lost_gpu_seconds"])]
    saved, failed = "preempted_no_state", "preempted_not_saved"
    if row["state_saved"]:
        saved, failed = "preempted_saved", "preempted_earlier_saved"
    return "\n".join([*lines, phrase(failed if row.get("save_error") else saved)])


def _gpu_time(gpu_seconds: float) -> str:
    return f"{gpu_seconds:.0f} GPU-s" if gpu_seconds < 360 else f"{gpu_seconds / 3600:.1f} GPU-h"


def _result(row: Row) -> str:
    """What became of it: when the resources were free, whether they were used, where the task is."""
    lines = []
    if row["time_to_evicted"] is None:
        lines.append(phrase("preempted_now"))
    if (freed := row["time_to_freed"]) is not None:
        lines.append(phrase("preempted_free", span=short_duration(freed)))
    if (start := row["time_to_start"]) is not None:
        lines.append(phrase("preempted_used", span=short_duration(start)))
    elif row["used"] is False:
        lines.append(phrase("preempted_unused"))
    if (again := row["time_to_run_again"]) is not None:
        lines.append(phrase("preempted_again", span=duration(again)))
    elif row["requeued"]:
        lines.append(phrase("preempted_requeued"))
    return "\n".join(lines)


def _csv_only(heading: str, key: str) -> Column:
    """A field that tables show as part of another column."""
    return Column(heading=heading, key=key, wide=True)


_COLUMNS = (
    Column(heading="time", key="timestamp", show=local_time),
    Column(heading="evicted", key="", show=_victim),
    Column(heading="for", key="", show=_evictor),
    Column(heading="rule", key="", show=_rule),
    Column(heading="lost", key="", show=_lost, chinese="损失"),
    Column(heading="result", key="", show=_result),
    _csv_only("task", "task_id"),
    _csv_only("owner", "owner"),
    _csv_only("pool", "pool_name"),
    _csv_only("priority", "priority"),
    _csv_only("evictor", "evictor.task_id"),
    _csv_only("evictor's owner", "evictor.owner"),
    _csv_only("evictor's pool", "evictor.pool_name"),
    _csv_only("reason", "reason"),
    _csv_only("score", "preempt_score"),
    _csv_only("lost work", "lost_work"),
    _csv_only("lost GPU-seconds", "lost_gpu_seconds"),
    _csv_only("state saved", "state_saved"),
    _csv_only("used", "used"),
)
