"""The command ``explain``: why a task waits, where it runs, by whom it was evicted; for people or as JSON."""

from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NamedTuple
from unicodedata import east_asian_width

import typer

from schedulemesh.cli.command import Format, Target, View, command
from schedulemesh.cli.output import repeat
from schedulemesh.cli.rows import Column, Listing, Record
from schedulemesh.cli.texts import amounts, number
from schedulemesh.cli.wording import in_commands, node
from schedulemesh.domain.numbers import span_text
from schedulemesh.domain.reasons import LIMITS, Reason
from schedulemesh.protocol.wording import reworded

if TYPE_CHECKING:
    from schedulemesh.api.nodes import ExternalJobInfo
    from schedulemesh.api.results import (
        AlternativeInfo,
        ConsideredInfo,
        DurationInfo,
        EvictionInfo,
        ExplainResult,
        HolderInfo,
    )

app = typer.Typer()

#: Columns of the text where stdout is no terminal.
WIDTH = 80
#: Columns of the text at least.
_NARROWEST = 40
#: Stands for the second column of a wide character while text is wrapped.
_SECOND = "\0"
#: What each code says, as part of a line.
_MEANINGS = {reason.value: in_commands(reason.meaning).rstrip(".") for reason in Reason}
#: The columns of ``--order``.
_FACTORS = (
    Column(heading="factor", key="factor"),
    Column(heading="value", key="value", show=lambda value: number(value and round(value, 4))),
    Column(heading="", key="detail"),
)
#: States of tasks that have ended.
_ENDED = ("completed", "failed", "cancelled", "lost")
#: How many holders and spared groups of tasks are shown.
_SHOWN = 5


@command(app)
def explain(
    target: Target,
    view: View,
    task: Annotated[str, typer.Argument(help="The task's id.")],
    order: Annotated[
        bool,
        typer.Option("--order", help="By what it is compared with other tasks that wait."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Say why a task waits, where it runs, by whom it was evicted or how it ended."""
    from schedulemesh.api.tasks import ExplainTask
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.protocol.answers import Explained
    from schedulemesh.protocol.public import explained

    view = replace(view, output=Format.JSON) if as_json else view
    with gateway_to(target) as gateway:

        def look() -> Record:
            answer = explained(gateway.ask(ExplainTask(task_id=task), Explained).explanation)
            facts: ExplainResult = reworded(answer, in_commands)
            if order:
                return _order(facts)
            width = shutil.get_terminal_size((WIDTH, 24)).columns
            text = text_of(facts, time.time(), max(width, _NARROWEST))
            return Record(facts=facts, name="task_id", text=text)

        repeat(view, look)


def _order(answer: ExplainResult) -> Record:
    """The factors of its place, the first to be compared first."""
    place = {
        "task_id": answer["task_id"],
        "pool_name": answer["pool_name"],
        "state": answer["state"],
        "position": answer["position"],
        "queue_length": answer["queue_length"],
    }
    rows = [dict(factor) for factor in answer["order"]]
    listing = Listing(kind="order", rows=rows, columns=_FACTORS, name="factor")
    return Record(facts=place, name="task_id", text=_where(answer), listings=(listing,))


def _where(answer: ExplainResult) -> str:
    """Which place a task has, in one sentence."""
    task, pool = f"task {answer['task_id']}", f"pool {answer['pool_name']}"
    if not answer["position"]:
        return f"{task} is {answer['state']}; it does not wait in the queue"
    return f"{task} is number {answer['position']} of {answer['queue_length']} in {pool}"


class Line(NamedTuple):
    """A line of the text before it is wrapped: what begins its first line, and the others."""

    what: str
    first: str = ""
    later: str = "  "


def text_of(answer: ExplainResult, now: float, width: int = WIDTH) -> str:
    """The explanation for a person, in lines of at most so many columns."""
    return "\n".join(part for line in _lines(answer, now) for part in _wrapped(line, width))


def _lines(answer: ExplainResult, now: float) -> list[Line]:
    lines = [Line(_title(answer, now))]
    lines += _part("", in_commands(answer["detail"]))
    lines += _part(answer["reason"], answer["error"])
    lines += _part("next step", answer["hint"])
    for other in answer["others"]:
        lines += _part(f"also {other['reason']}", other["error"])
    for rank, one in enumerate(answer["alternatives"], start=1):
        lines += _part(f"alternative {rank}", _alternative(one))
    lines += _part("before it", _before(answer))
    if answer["weight_raised_by"] > 1.0:
        lines += _part("pool's weight", _weight(answer))
    lines += _part("waits for", ", ".join(answer["waits_for"]))
    lines += _listed("held by", [_holder(holder) for holder in answer["holders"]])
    for usage in answer["external_usage"]:
        what = f"other Ray work uses {amounts(usage['resources'])}"
        lines += _part(f"node {node(usage['node_id'])}", what)
        lines += _listed("used by", [_job(job) for job in usage["jobs"]])
    if answer["considered"] is not None:
        lines += _considered(answer["considered"])
    if answer["expected_duration"] is not None:
        lines += _part("expected duration", _duration(answer["expected_duration"]))
    lines += _part("time limit", _time_limit(answer, now))
    lines += _part("idle limit", _idle_limit(answer, now))
    if answer["state"] == "queued":
        lines += _part("earliest start", _start(answer, now))
    if answer["eviction"] is not None and not _is_said(answer["eviction"], answer):
        lines += _part("last eviction", _eviction(answer["eviction"], answer["state"], now))
    return lines


def _title(answer: ExplainResult, now: float) -> str:
    """Which task it is and of what kind, its state, and since when."""
    what = "task" if answer["kind"] == "agent" else answer["kind"]
    owner = f", owner {answer['owner']}" if answer["owner"] else ""
    title = (
        f"{what} {answer['task_id']} (pool {answer['pool_name']}, priority "
        f"{answer['priority']:.12g}{owner}): {answer['state']}"
    )
    if answer["since"] is not None:
        since = span_text(now - answer["since"])
        title += f" {since} ago" if answer["state"] in _ENDED else f" for {since}"
    if answer["alternative"] and answer["state"] != "queued":
        title += f", in its alternative {answer['alternative']}"
    if answer["position"]:
        title += f", position {answer['position']} of {answer['queue_length']}"
    if answer["preemptions"]:
        title += f", evicted {_times(answer['preemptions'])}"
    if answer["failures"]:
        title += f", failed {_times(answer['failures'])}"
    return title


def _alternative(one: AlternativeInfo) -> str:
    """Why a task does not start in one of its alternatives."""
    would = f"; it would evict {', '.join(one['victims'][:_SHOWN])}" if one["victims"] else ""
    return f"{one['alternative']}: {one['error']} ({one['reason']}){would}"


def _weight(answer: ExplainResult) -> str:
    raised = f"{answer['weight_raised_by']:.3g}"
    return (
        f"{raised} times as high among pools that wait, because its first task has waited so long"
    )


def _before(answer: ExplainResult) -> str:
    more = answer["position"] - 1 - len(answer["before"])
    named = ", ".join(answer["before"])
    return f"{named} and {more} more" if named and more > 0 else named


def _holder(holder: HolderInfo) -> str:
    tasks = " and ".join(holder["task_ids"][:_SHOWN]) or f"agent {holder['agent_name']}"
    return f"{tasks} (pool {holder['pool_name']}): {amounts(holder['resources'])}"


def _job(job: ExternalJobInfo) -> str:
    if job["task_id"]:
        return f"{amounts(job['resources'])} by job {job['task_id']}, more than it claims"
    driver = f": {job['entrypoint']}" if job["entrypoint"] else ""
    return f"{amounts(job['resources'])} by job {job['job_id']} in {job['namespace']}{driver}"


def _considered(considered: ConsideredInfo) -> Iterator[Line]:
    """Who could be evicted, or which rules spare how many."""
    if considered["victims"]:
        yield from _part("evictions", f"room after that of {', '.join(considered['victims'])}")
        return
    tasks = f"{considered['tasks']} running task{'' if considered['tasks'] == 1 else 's'}"
    spared = [
        f"{count} spared: {code} ({_MEANINGS[code]})"
        for code, count in considered["turned_away"].items()
    ]
    if considered["searched"]:
        heading = f"evictions: none, {tasks} considered"
    else:
        heading = f"evictions: {considered['evictable']} of {tasks} allowed"
    yield from _listed(heading, spared)
    if considered["sufficient_priority"] is not None:
        yield from _part("sufficient", f"priority {considered['sufficient_priority']:.12g}")


def _start(answer: ExplainResult, now: float) -> str:
    at = answer["earliest_start"]
    if at is None:
        return f"not known: {answer['no_estimate']}"
    if at <= now:
        return "now, as far as estimates say"
    rests_on = answer["start_rests_on"]
    if answer["start_waits_for_limit"]:
        return (
            f"in {span_text(at - now)}, when {answer['start_waits_for_limit']} has ended at the latest "
            "by its time limit"
        )
    if answer["start_waits_for_overdue"]:
        return (
            f"perhaps in {span_text(at - now)}: tasks that hold what is short run for longer than "
            "they declared"
        )
    if rests_on is None:
        return f"in {span_text(at - now)}, if estimates hold"
    return (
        f"in about {span_text(at - now)}, when {rests_on['task_id']} ends (estimated from "
        f"{_runs(rests_on)})"
    )


def _duration(estimate: DurationInfo) -> str:
    """How long a task runs, and how sure that is."""
    spread = f"half of them took {span_text(estimate['low_s'])} to {span_text(estimate['high_s'])}"
    return f"about {span_text(estimate['seconds'])} (estimated from {_runs(estimate)}; {spread})"


def _runs(estimate: DurationInfo) -> str:
    """From which runs an estimate was made."""
    parts = [f"owner {estimate['owner']}"] if estimate["owner"] else []
    parts += [f"pool {estimate['pool_name']}"] if estimate["pool_name"] else []
    parts += [f"pattern {estimate['pattern']}"] if estimate["pattern"] else []
    parts += [f"gpu {estimate['gpus']:g}"] if estimate["gpus"] else []
    parts += [f"cpu {estimate['cpus']:g}, no gpu"] if estimate["cpus"] else []
    return f"{estimate['runs']} earlier runs of {', '.join(parts)}"


def _is_said(eviction: EvictionInfo, answer: ExplainResult) -> bool:
    """Whether why it has ended says all of an eviction: by a limit in time, nothing is freed for anybody."""
    return eviction["rule"] in LIMITS and eviction["rule"] == answer["reason"]


def _time_limit(answer: ExplainResult, now: float) -> str:
    """How long it may run, and when it has done so."""
    limit = answer["run_limit_s"]
    if limit is None or answer["state"] not in ("queued", "starting", "running"):
        return ""
    of_pool = "" if answer["max_run_s"] == limit else f", as pool {answer['pool_name']} says"
    if answer["limit_at"] is None:
        return f"{span_text(limit)} from its start{of_pool}"
    remaining = answer["limit_at"] - now
    if remaining <= 0:
        return f"{span_text(limit)}{of_pool}; it is over"
    return f"{span_text(limit)}{of_pool}; ends at the latest in {span_text(remaining)} by its limit"


def _idle_limit(answer: ExplainResult, now: float) -> str:
    """For how long its GPUs may be idle, and whether they are."""
    limit, state = answer["idle_limit_s"], answer["state"]
    if limit is None or state not in ("starting", "running"):
        return ""
    if answer["idle_ends_at"] is not None and answer["idle_since"] is not None:
        return (
            f"its GPUs have been idle for {span_text(now - answer['idle_since'])}; it ends in "
            f"{span_text(answer['idle_ends_at'] - now)} unless they are used"
        )
    if answer["gpus_measured"] is False:
        return f"{span_text(limit)}, but nothing measures its GPUs, so this never ends it"
    return (
        f"a warning after {span_text(limit)} without use of its GPUs, its end after as long again"
    )


def _eviction(eviction: EvictionInfo, state: str, now: float) -> str:
    """By whom, by which rule, what was saved, and what became of what was freed. ``state``: of the task,
    which may not have been saved yet.
    """
    leaves = state == "preempting"
    who = f"task {eviction['by_task']}" if eviction["by_task"] else f"agent {eviction['by_agent']}"
    owner = f" of {eviction['by_owner']}" if eviction["by_owner"] else ""
    by = f"for {who}{owner} in pool {eviction['by_pool']}" if eviction["by_agent"] else "by request"
    if eviction["rule"] in LIMITS:
        by = "by its limit"
    score = "" if eviction["score"] is None else f", score {eviction['score']:.4g}"
    parts = [f"{span_text(now - eviction['at'])} ago {by} ({eviction['rule']}{score})"]
    if eviction["save_error"]:
        earlier = "; an earlier state of the attempt was" if eviction["state_saved"] else ""
        parts.append(f"its state was not saved: {eviction['save_error']}{earlier}")
    else:
        unsaved = "its state is not saved yet" if leaves else "no state was saved"
        parts.append("its state was saved" if eviction["state_saved"] else unsaved)
    if eviction["idle_since"] is not None:
        idle_s = eviction["at"] - eviction["idle_since"]
        parts.append(
            f"its GPUs had been idle for {span_text(idle_s)}, so it came first among victims"
        )
    if eviction["lost_s"] is not None:
        parts.append(f"{span_text(eviction['lost_s'])} of work {'at risk' if leaves else 'lost'}")
    if eviction["used"] is not None:
        parts.append(
            "what was freed is used" if eviction["used"] else "what was freed was not used"
        )
    if eviction["ran_again_at"] is not None:
        parts.append(f"it ran again {span_text(now - eviction['ran_again_at'])} ago")
    return "; ".join(parts)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _part(heading: str, what: str) -> list[Line]:
    """A part of the text; none where there is nothing to say."""
    if not what:
        return []
    return [Line(f"{heading}: {what}" if heading else what, "  ", "    ")]


def _listed(heading: str, entries: list[str]) -> list[Line]:
    if not entries:
        return []
    lines = [Line(f"{heading}:", "  ", "    ")]
    lines += [Line(entry, "    ", "      ") for entry in entries[:_SHOWN]]
    if len(entries) > _SHOWN:
        lines.append(Line(f"and {len(entries) - _SHOWN} more", "    "))
    return lines


def _wrapped(line: Line, width: int) -> list[str]:
    what, first, later = line
    measured = "".join(c + _SECOND if east_asian_width(c) in "WF" else c for c in what)
    # A long name may be broken within a wide character, which then reaches one column further.
    width -= measured != what
    lines = textwrap.wrap(
        measured, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False
    )
    return [part.replace(_SECOND, "") for part in lines]
