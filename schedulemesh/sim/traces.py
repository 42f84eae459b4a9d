"""Reads traces: tables with one job a row, exports of the history, and the Standard Workload Format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim.exported import Placed, Row, jobs_of
from schedulemesh.sim.jobs import Job
from schedulemesh.sim.tables import csv_table, lines_of

#: Fields of a job in the Standard Workload Format, by their position.
_ID, _SUBMIT, _RUN, _USED, _ASKED, _ASKED_S, _STATUS, _USER, _QUEUE = 0, 1, 3, 4, 7, 8, 10, 11, 14
_SWF_FIELDS = 18
#: Statuses of lines that are parts of a job, which has a line of its own.
_PARTS = ("2", "3", "4")


def read_trace(path: str | Path) -> list[Job]:
    """The jobs of a trace in the order of their submission: a ``.csv``, ``.jsonl`` or ``.swf`` file, packed
    with gzip or not, or a ``.parquet`` file. Jobs that did not run are left out.

    A table has the columns job_id, submit_s, duration_s (empty or 0: it did not run), and any of gpus,
    cpus, memory_gb, user, group_or_vc (the pool), priority, requested_s (the estimated duration),
    max_run_s, on_time_limit ("end" or "requeue"), savable (0 or 1), node_labels (``zone=a;disk=!slow``),
    alternatives (``zone=b|zone=c;gpus=2``: what will do instead) after (the jobs that it starts after:
    ``first,any:second``), array (indices of many such jobs: ``0-99%10``) and topology (of jobs that are
    larger than every node: ``rack``, ``preferred:rack``); others are passed over. An export of the history,
    which has a row for each attempt, has a job for each submission
    (``schedulemesh.sim.exported``). Raises InvalidRequestError.
    """
    return read_counted(path)[0]


def read_counted(path: str | Path) -> tuple[list[Job], int]:
    """The jobs of a trace, as ``read_trace`` gives them, and how many are left out as they did not run."""
    every = list(jobs_of(_rows(Path(path))))
    jobs = [job for job in every if job.duration_s > 0]
    return sorted(jobs, key=lambda job: job.submit_s), len(every) - len(jobs)


def _rows(path: Path) -> Iterator[Placed]:
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind == ".parquet":
        return _parquet_rows(path)
    if kind == ".jsonl":
        return _json_rows(path)
    return _swf_rows(path) if kind == ".swf" else csv_table(path)[1]


def _json_rows(path: Path) -> Iterator[Placed]:
    for place, line in lines_of(path):
        try:
            yield place, msgspec.json.decode(line, type=Row)
        except msgspec.MsgspecError as error:
            raise InvalidRequestError(f"{place} is no object of JSON: {error}") from None


def _parquet_rows(path: Path) -> Iterator[Placed]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InvalidRequestError(
            "Parquet needs pyarrow: pip install 'schedulemesh-core[parquet]', or export the trace as csv"
        ) from error
    try:
        rows: list[Row] = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from None
    return ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))


def _swf_rows(path: Path) -> Iterator[Placed]:
    """The Standard Workload Format of Feitelson's archive: 18 numbers a line, -1 where unknown."""
    for place, line in lines_of(path):
        fields = line.split()
        if line.startswith(";"):
            continue
        if len(fields) < _SWF_FIELDS:
            raise InvalidRequestError(
                f"{place} has {len(fields)} fields; a job of the Standard Workload Format has {_SWF_FIELDS}"
            )
        if fields[_STATUS] not in _PARTS:
            yield place, _swf_row(["" if _is_unknown(field) else field for field in fields])


def _swf_row(fields: list[str]) -> Row:
    """The job of a line whose unknown fields are empty; processors count as CPUs. A job without processors
    did not run.
    """
    cpus = next((fields[n] for n in (_ASKED, _USED) if fields[n] not in ("", "0")), "")
    return {
        "job_id": fields[_ID],
        "submit_s": fields[_SUBMIT],
        "duration_s": fields[_RUN] if cpus else "",
        "cpus": cpus,
        "user": fields[_USER] and f"u{fields[_USER]}",
        "group_or_vc": fields[_QUEUE] and f"q{fields[_QUEUE]}",
        "requested_s": "" if fields[_ASKED_S] == "0" else fields[_ASKED_S],
    }


def _is_unknown(field: str) -> bool:
    try:
        return float(field) == -1
    except ValueError:
        return False
