"""Exports the history as a job trace: CSV, JSON Lines or Parquet.

The columns begin with those that public cluster traces have in common, in seconds from the trace's start,
so that a simulator reads an export as it reads those.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypedDict

import msgspec

from schedulemesh.api.history import AttemptInfo
from schedulemesh.domain.names import as_text
from schedulemesh.errors import InvalidRequestError, shown

#: The columns of a job trace, then our own. Empty: not known, or it has not happened.
COLUMNS: dict[str, type] = {
    "job_id": str,
    "submit_s": float,
    "duration_s": float,
    "gpus": float,
    "cpus": float,
    "memory_gb": float,
    "user": str,
    "group_or_vc": str,
    "job_type": str,
    "original_queue_s": float,
    "status": str,
    "attempt": int,
    "priority": float,
    "queued_s": float,
    "start_s": float,
    "end_s": float,
    "reason": str,
    "nodes": str,
    "labels": str,
    "preempted_by": str,
    "rule": str,
    "max_run_s": float,
    "on_time_limit": str,
    "node_labels": str,
    "alternative": int,
    "flavor": str,
    "topology": str,
    "after": str,
    "lost_s": float,
    "gpu_s": float,
    "cpu_s": float,
    "submitted_at": float,
}
_MB_PER_GB = 1024.0
#: Attempts that one request asks for.
_PAGE = 5_000
#: Rows of one group of a Parquet file.
_GROUP = 50_000


class Exported(NamedTuple):
    """What was written."""

    path: str
    #: How many attempts to run a task.
    jobs: int
    #: What time 0 of the file is, in seconds since 1970.
    begin: float


class AttemptPage(TypedDict, total=False):
    """Attempts that follow each other, and whether there are further ones."""

    attempts: list[AttemptInfo]
    more: bool


#: The next attempts after a ``cursor``, so many at most.
Pages = Callable[[int, int], AttemptPage]


def export(pages: Pages, path: str | os.PathLike[str], kind: object) -> Exported:
    """Write all attempts to run tasks. What ``pages`` raises is raised, and no file is left or replaced."""
    target = _path(path)
    write = _writer(kind, target)
    trace = _Trace(pages)
    draft = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        write(draft, trace.jobs())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return Exported(path=str(target), jobs=trace.written, begin=trace.begin)


class _Trace:
    """The attempts to run tasks as rows of a job trace, read page by page."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self.written, self.begin = 0, 0.0

    def jobs(self) -> Iterator[dict[str, Any]]:
        """The rows, the oldest first."""
        after, more = 0, True
        while more:
            page = self._pages(after, _PAGE)
            for attempt in page["attempts"]:
                after = attempt["cursor"]
                if not attempt["task_id"]:
                    continue
                if not self.written:
                    self.begin = attempt["submitted_at"] or 0.0
                self.written += 1
                yield job_of(attempt, self.begin)
            more = page["more"]


def job_of(attempt: AttemptInfo, begin: float) -> dict[str, Any]:
    """The row of an attempt in a trace that starts at ``begin`` (seconds since 1970)."""

    def from_begin(at: float | None) -> float | None:
        return None if at is None else round(at - begin, 6)

    started, ended = attempt["started_at"], attempt["ended_at"]
    ran = None if started is None or ended is None else round(ended - started, 6)
    queue = None if started is None else attempt["waited_s"]
    return {
        "job_id": attempt["task_id"],
        "submit_s": from_begin(attempt["submitted_at"]),
        "duration_s": ran,
        "gpus": attempt["gpu"],
        "cpus": attempt["cpu"],
        "memory_gb": attempt["memory_mb"] / _MB_PER_GB,
        "user": attempt["owner"],
        "group_or_vc": attempt["pool_name"],
        "job_type": attempt["labels"].get("job_type", ""),
        "original_queue_s": None if queue is None else round(queue, 6),
        "status": attempt["state"],
        "attempt": attempt["attempt"],
        "priority": attempt["priority"],
        "queued_s": from_begin(attempt["queued_at"]),
        "start_s": from_begin(started),
        "end_s": from_begin(ended),
        "reason": attempt["reason"],
        "nodes": " ".join(attempt["node_ids"]),
        "labels": _json(attempt["labels"]),
        "preempted_by": attempt["by_task"] or attempt["by_agent"] or attempt["by_client"],
        "rule": attempt["rule"],
        "max_run_s": attempt["max_run_s"],
        "on_time_limit": attempt["on_time_limit"],
        "node_labels": ";".join(f"{k}={v}" for k, v in attempt["label_selector"].items()),
        "alternative": attempt["alternative"] or None,
        "flavor": attempt["flavor"],
        "topology": attempt["topology"],
        "after": _json(attempt["after"]),
        "lost_s": attempt["lost_s"],
        "gpu_s": round(attempt["gpu_s"], 6),
        "cpu_s": round(attempt["cpu_s"], 6),
        "submitted_at": attempt["submitted_at"],
    }


def _json(values: dict[str, str] | list[str] | None) -> str:
    """Values as JSON; empty where there are none."""
    return msgspec.json.encode(values).decode() if values else ""


#: How formulas begin in spreadsheets.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")

Rows = Iterable[dict[str, Any]]


def write_csv(path: Path, rows: Rows) -> None:
    """Write rows as CSV with a heading; None is an empty field."""
    with path.open("w", newline="", encoding="utf-8") as file:
        columns = list(COLUMNS)
        write_csv_rows(file, [columns])
        write_csv_rows(file, ([row.get(column) for column in columns] for row in rows))


def write_csv_rows(file: TextIO, rows: Iterable[Iterable[object]]) -> None:
    """Write rows as lines of CSV; None is an empty field. No text becomes a formula in a spreadsheet: what
    begins like one has an apostrophe before it, and all are quoted: where columns end at semicolons, what
    comes after one in a text would otherwise be a cell of its own.
    """
    writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows(map(_csv_cell, row) for row in rows)


def _csv_cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULAS):
        return f"'{value}"
    return "" if value is None else value


def write_jsonl(path: Path, rows: Rows) -> None:
    """Write rows as JSON Lines."""
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for row in rows:
            file.write(encoder.encode(row) + b"\n")


def write_parquet(path: Path, rows: Rows) -> None:
    """Write rows as Parquet. Raises InvalidRequestError where pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InvalidRequestError(
            "Parquet needs pyarrow: pip install 'schedulemesh-core[parquet]', or choose csv or jsonl"
        ) from error
    kinds = {str: pa.string(), float: pa.float64(), int: pa.int64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in _row_groups(rows):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))


def _row_groups(rows: Rows) -> Iterator[list[dict[str, Any]]]:
    """The rows in groups of limited size."""
    group: list[dict[str, Any]] = []
    for row in rows:
        group.append(row)
        if len(group) == _GROUP:
            yield group
            group = []
    yield group


#: How a file is written, by its format, which is also how its name may end.
WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "csv": write_csv,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}


def _path(value: object) -> Path:
    """Raises InvalidRequestError for what is no path."""
    text = as_text(os.fspath(value) if isinstance(value, os.PathLike) else value)
    if not text or not text.isprintable():
        raise InvalidRequestError(f"path is {shown(value)}; it names the file to write")
    return Path(text).expanduser()


def _writer(kind: object, path: Path) -> Callable[[Path, Rows], None]:
    name = path.suffix.lstrip(".").lower() if kind is None else as_text(kind)
    if name not in WRITERS:
        allowed = ", ".join(WRITERS)
        problem = (
            f"format is {shown(kind)}" if kind is not None else f"{path.name!r} names no format"
        )
        raise InvalidRequestError(f"{problem}; allowed are {allowed}")
    return WRITERS[name]
