"""One task: why it waits or what it does, its attempts in time, its events, its log, and its saved state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams

from schedulemesh.api.history import QueryHistory
from schedulemesh.api.logs import ReadTaskLog
from schedulemesh.api.pages import PageQuery
from schedulemesh.api.tasks import ExplainTask
from schedulemesh.domain.dependencies import dependency
from schedulemesh.domain.language import Language
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.task import ENDED_STATES
from schedulemesh.protocol.answers import Explained, TaskLog
from schedulemesh.protocol.public import explained
from schedulemesh.protocol.wording import reworded, translated
from schedulemesh.server.answers import unexpected
from schedulemesh.server.listings import Row
from schedulemesh.server.page.actions import actions_of_task
from schedulemesh.server.page.reads import ScreenReads, together
from schedulemesh.server.page.texts import TEXTS
from schedulemesh.server.page.words import WORDS, Words, clock_time, in_words, number
from schedulemesh.server.problems import Problem

#: The newest attempts that are shown, and of their events the newest.
_ATTEMPTS, _EVENTS = 20, 100
#: Bytes of the end of the log that are read, and how many of its lines are shown.
_LOG_BYTES, _LOG_LINES = 16 * 1024, 100
#: The tasks that it starts after, of which so many are named.
_DEPENDENCIES = 20
#: Parts of an attempt in their order, and the fields of its row with when they begin and end.
_PHASES = (
    ("waited", "queued_at", ("admitted_at", "started_at", "ended_at")),
    ("started", "admitted_at", ("started_at", "ended_at")),
    ("ran", "started_at", ("ended_at",)),
)


#: Details of events that are codes, tasks, moments and durations.
_CODES = frozenset(("reason", "rule", "state", "cause"))
_TASKS = frozenset(("by_task", "evicting", "after", "array"))
_MOMENTS, _DURATIONS = frozenset(("limit_at", "since")), frozenset(("max_run_s",))


class EventDetail(NamedTuple):
    """A detail of an event in the language of the screen."""

    label: str
    text: str
    #: The tasks that stand for the text; empty: none do.
    task_ids: Sequence[str] = ()


class AttemptPart(NamedTuple):
    """A part of an attempt, in per cent of the time that is drawn."""

    part: str
    x: float
    width: float


async def task(reader: ScreenReads, query: QueryParams) -> Mapping[str, Any]:
    """What the template ``task.html`` shows. Raises Problem where there is no such task."""
    if not query.get("id", "").strip():
        return {"facts": None}
    task_id = parse_name(query["id"].strip(), "the task's id")
    answer, names, listed, history, log = await together(
        reader.answer(ExplainTask(task_id=task_id)),
        reader.node_names(),
        reader.page("tasks", _only(task_id)),
        _or_error(_history(reader, task_id), reader.language),
        _or_error(_log(reader, task_id), reader.language),
    )
    if not isinstance(answer, Explained):
        raise unexpected(answer)
    facts = translated(explained(answer.explanation), reader.language)
    facts = reworded(facts, lambda text: in_words(text, names))
    facts["detail"] = in_words(facts["detail"], names)
    return {
        "facts": facts,
        "actions": actions_of_task(reader.caller, listed.items[0]) if listed.items else [],
        "short": {"quota": {}, "node": {}, **facts["short"]},
        "ended": facts["state"] in ENDED_STATES,
        "dependencies": [
            (one.condition, one.task_id) for one in map(dependency, facts["after"][:_DEPENDENCIES])
        ],
        "node_names": [names.get(node_id, node_id) for node_id in facts["node_ids"]],
        "names": names,
        "history": history,
        "log": log,
        "drawn": _drawn,
        "events": partial(_events, words=WORDS[reader.language], node_names=names),
    }


def _only(task_id: str) -> PageQuery:
    """The row of one task."""
    return PageQuery(fields=(("task_id", (task_id,)),), order=(("task_id", False),), limit=1)


async def _or_error(read: Any, language: Language) -> Mapping[str, Any]:
    """What is read, as ``value``; or why it cannot be read, as ``error``: the rest is shown all the same."""
    try:
        return {"value": await read, "error": ""}
    except Problem as problem:
        return {"value": None, "error": WORDS[language].problem(problem.body)}


async def _history(reader: ScreenReads, task_id: str) -> Sequence[Row]:
    """The newest attempts of a task with their events, the newest first."""
    query = QueryHistory(task_id=task_id, limit=_ATTEMPTS, with_events=True, at_once=True)
    attempts: Sequence[Row] = (await reader.facts(query))["attempts"]
    return attempts


async def _log(reader: ScreenReads, task_id: str) -> str:
    """The last lines that the last attempt of a task has written. Raises Problem."""
    call = ReadTaskLog(task_id=task_id, begin=-_LOG_BYTES, limit=_LOG_BYTES)
    answer = await reader.of_task(call)
    if not isinstance(answer, TaskLog):
        raise unexpected(answer)
    lines = answer.data.decode(errors="replace").splitlines()
    # The first line is one that was begun earlier, where there is more than was read.
    return "\n".join(lines[1 if answer.begin else 0 :][-_LOG_LINES:])


def _drawn(attempts: Sequence[Row], now: float) -> list[Mapping[str, Any]]:
    """Attempts with the parts of their bars, all on one scale, the oldest first."""
    begun = [at for row in attempts if (at := _begin(row)) is not None]
    first = min(begun, default=now)
    last = max((row["ended_at"] or now for row in attempts), default=now)
    length = max(last - first, 1.0)
    return [{**row, "stretches": _stretches(row, first, length, now)} for row in reversed(attempts)]


def _begin(row: Row) -> float | None:
    """When the first thing is known of an attempt."""
    times = (row[field] for field in ("queued_at", "admitted_at", "started_at"))
    return next((at for at in times if at is not None), None)


def _stretches(row: Row, first: float, length: float, now: float) -> list[AttemptPart]:
    stretches = []
    for part, field, ends in _PHASES:
        begin = row[field]
        if begin is None:
            continue
        end = next((row[name] for name in ends if row[name] is not None), now)
        x = 100.0 * (begin - first) / length
        # What took no time is a line that can be seen.
        width = max(100.0 * (end - begin) / length, 0.4)
        stretches.append(AttemptPart(part, round(min(x, 99.6), 2), round(width, 2)))
    return stretches


def _events(
    attempts: Sequence[Row], words: Words, node_names: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    """The newest events of attempts, the newest first, each with the number of its attempt."""
    events: list[Row] = [
        {**event, "attempt": row["attempt"]} for row in attempts for event in row["events"]
    ]
    events.sort(key=lambda event: (event["at"], event["cursor"]), reverse=True)
    return [
        {**event, "details": event_details(event["detail"], words, node_names)}
        for event in events[:_EVENTS]
    ]


def event_details(
    detail: Mapping[str, Any], words: Words, node_names: Mapping[str, str]
) -> list[EventDetail]:
    """The details of an event. One that is not known, as of another version, has its own name."""
    details = []
    for name, value in detail.items():
        if value in (None, "", []):
            continue
        label = words.text(f"event_{name}") if f"event_{name}" in TEXTS else name
        if name in _TASKS:
            details.append(EventDetail(label, "", [value] if isinstance(value, str) else value))
        else:
            details.append(EventDetail(label, _detail(name, value, words, node_names)))
    return details


def _detail(name: str, value: Any, words: Words, node_names: Mapping[str, str]) -> str:
    """The value of a detail as people read it."""
    if isinstance(value, bool):
        return words.text("yes" if value else "no")
    if isinstance(value, (int, float)):
        if name in _MOMENTS:
            return clock_time(value)
        return words.span(value) if name in _DURATIONS else number(value)
    if isinstance(value, list):
        shown = [node_names.get(str(one), str(one)) for one in value]
        return words.text("name_separator").join(shown)
    return words.code(value) if name in _CODES else str(value)
