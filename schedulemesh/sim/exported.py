"""The jobs of a table: one for each row, or, in an export of the history, one for each submission.

An export has a row for each attempt to run a task. The attempts of one submission have the same ``job_id``
and ``submit_s``. The work of such a job is what its attempts did and did not lose; attempts that failed or
were lost with their process, and were followed by another, did work that was done again. A task that was
submitted again under its id is another job, with a number behind its id. One that was submitted before the
first one of the export is submitted at its beginning. A job starts after those of the export that it waited
for, however they end there: how they ended is what the export says of the job itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from schedulemesh.domain.dependencies import parse_after
from schedulemesh.domain.node_labels import parse_node_labels
from schedulemesh.domain.numbers import MAX_DURATION_S, parse_number
from schedulemesh.domain.topology import parse_topology
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.sim.exported_order import ExportedJob, linked
from schedulemesh.sim.jobs import LIMITS, Job, JobAlternative
from schedulemesh.sim.tables import as_float, as_pairs

#: The fields of a row by the names of the columns: text, or the values themselves.
Row = dict[str, Any]
#: A row with its place, which errors begin with: "trace.csv, line 2".
Placed = tuple[str, Row]

_REQUIRED = ("job_id", "submit_s", "duration_s")
#: Limits of columns that are no fields of a job.
_MORE_LIMITS = dict.fromkeys(("requested_s", "max_run_s", "lost_s"), (0.0, MAX_DURATION_S))
#: When an attempt was submitted: an export begins with the first attempt that the history still has.
_OF_ATTEMPT = (-MAX_DURATION_S, MAX_DURATION_S)
_SAVABLE = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
#: Columns of a row that an error names.
_NAMED = 12


def jobs_of(rows: Iterable[Placed]) -> Iterator[Job]:
    """The jobs in these rows; the duration of one that did not run is 0.

    Raises InvalidRequestError, with the place, for a row that is none of a trace, a value that is not
    allowed, and a second job of the same id.
    """
    attempts: dict[tuple[str, float], list[Placed]] = {}
    places: dict[str, str] = {}
    for place, row in rows:
        _check_columns(place, row)
        job_id = _text(row, "job_id")
        if not job_id:
            raise InvalidRequestError(f"{place}: job_id is empty; each job needs an id of its own")
        if _is_missing(row.get("attempt")):
            _add(places, job_id, place)
            yield _job(place, row, job_id, _number(place, row, "submit_s"), _duration(place, row))
        else:
            submit_s = _number(place, row, "submit_s", limits=_OF_ATTEMPT)
            attempts.setdefault((job_id, submit_s), []).append((place, row))
    yield from _submissions(attempts, places)


def _submissions(
    attempts: Mapping[tuple[str, float], list[Placed]], places: dict[str, str]
) -> Iterator[Job]:
    """The jobs of submissions, whose attempts these are by id and time, each after those that it waited for.

    ``places``: of the jobs so far, by their names.
    """
    numbers: dict[str, int] = {}
    submissions: list[ExportedJob] = []
    for (job_id, submit_s), of_one in attempts.items():
        number = numbers[job_id] = numbers.get(job_id, 0) + 1
        name = job_id if number == 1 else f"{job_id}#{number}"
        _add(places, name, of_one[0][0])
        job = _submission(name, max(0.0, submit_s), of_one)
        submissions.append(ExportedJob(job_id, submit_s, job))
    yield from linked(submissions)


def _add(places: dict[str, str], job_id: str, place: str) -> None:
    """Note where a job is. Raises InvalidRequestError for the second one of an id."""
    first = places.setdefault(job_id, place)
    if first is not place:
        raise InvalidRequestError(
            f"{place}: the job_id {job_id!r} is also that of {first}; give each job an id of its own"
        )


def _submission(job_id: str, submit_s: float, attempts: list[Placed]) -> Job:
    """The job whose attempts these are, in their order."""
    done, savable = 0.0, True
    fails_at: list[float] = []
    last = attempts[-1][1]
    for place, row in attempts:
        lost_s = _number(place, row, "lost_s", 0.0)
        done += max(0.0, _duration(place, row) - lost_s)
        savable = savable and not lost_s
        if row is not last and row.get("status") in ("failed", "lost"):
            if row["status"] == "failed" and done:
                fails_at.append(done)
            done = 0.0
    place, first = attempts[0]
    return _job(place, {**first, "savable": savable}, job_id, submit_s, done, tuple(fails_at))


def _job(
    place: str,
    row: Row,
    job_id: str,
    submit_s: float,
    duration_s: float,
    fails_at_s: tuple[float, ...] = (),
) -> Job:
    requested, limit = row.get("requested_s"), row.get("max_run_s")
    try:
        node_labels = as_pairs(_text(row, "node_labels"), "node_labels")
        parse_node_labels(node_labels, "node_labels")
        alternatives = tuple(map(_alternative, filter(None, _text(row, "alternatives").split("|"))))
        after = _after(row)
        topology = _text(row, "topology") and parse_topology(_text(row, "topology"))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{place}: {error}") from None
    return Job(
        job_id=job_id,
        submit_s=submit_s,
        duration_s=duration_s,
        gpus=_number(place, row, "gpus", 0.0),
        cpus=_number(place, row, "cpus", 0.0),
        memory_gb=_number(place, row, "memory_gb", 0.0),
        user=_text(row, "user"),
        pool=_text(row, "group_or_vc"),
        priority=_number(place, row, "priority", 5.0),
        estimate_s=None if _is_missing(requested) else _number(place, row, "requested_s"),
        max_run_s=None if _is_missing(limit) else _number(place, row, "max_run_s"),
        requeued_at_limit=_text(row, "on_time_limit") == "requeue",
        savable=_savable(place, row),
        fails_at_s=fails_at_s,
        node_labels=node_labels,
        alternatives=alternatives,
        array=_text(row, "array"),
        after=after,
        topology=topology,
    )


def _after(row: Row) -> tuple[str, ...]:
    """What a row starts after: as JSON in an export, where an id may contain a comma; else with commas."""
    text = _text(row, "after")
    if not text.startswith("["):
        return parse_after(text) if text else ()
    try:
        return parse_after(msgspec.json.decode(text))
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"after is {shown(text)}, which is no JSON: {error}") from None


def _alternative(text: str) -> JobAlternative:
    """One of the alternatives in a cell, such as ``ray.io/accelerator-type=L40S;gpus=2``. Raises
    InvalidRequestError.
    """
    labels = as_pairs(text, "alternatives")
    amounts = {
        name: parse_number(as_float(labels.pop(name), name), name, *LIMITS[name])
        for name in ("gpus", "cpus", "memory_gb")
        if name in labels
    }
    return JobAlternative(node_labels=labels, **amounts)


def _check_columns(place: str, row: Row) -> None:
    for column in _REQUIRED:
        if column not in row:
            columns = ", ".join(map(str, list(row)[:_NAMED])) or "nothing"
            raise InvalidRequestError(
                f"{place} is no row of a trace: it has {columns}, and not {column}; a trace has "
                "job_id, submit_s and duration_s"
            )


def _duration(place: str, row: Row) -> float:
    return _number(place, row, "duration_s", 0.0)


def _number(
    place: str,
    row: Row,
    column: str,
    default: float | None = None,
    *,
    limits: tuple[float, float] | None = None,
) -> float:
    """The number in a column; without a default it must be there. ``limits``: other than usual."""
    cell = row.get(column)
    if cell is None or cell == "":
        if default is None:
            raise InvalidRequestError(f"{place}: {column} is empty; it must be a number")
        return default
    least, most = limits or LIMITS.get(column) or _MORE_LIMITS[column]
    try:
        value = as_float(cell, column) if isinstance(cell, str) else cell
        return parse_number(value, column, least, most)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{place}: {error}") from None


def _text(row: Row, column: str) -> str:
    """The text in a column; ids that are numbers are taken as they are written."""
    cell = row.get(column)
    if cell is None or cell != cell:
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _savable(place: str, row: Row) -> bool:
    cell = row.get("savable")
    if cell is None or cell == "":
        return True
    savable = _SAVABLE.get(_text(row, "savable").strip().lower().removesuffix(".0"))
    if savable is None:
        raise InvalidRequestError(
            f"{place}: savable is {shown(cell)}; it must be 1, true or yes, 0, false or no, or empty, "
            "which is 1"
        )
    return savable


def _is_missing(cell: object) -> bool:
    """Whether there is no value: pandas writes NaN for that."""
    if isinstance(cell, str):
        return cell.strip().lower() in ("", "nan")
    return cell is None or cell != cell
