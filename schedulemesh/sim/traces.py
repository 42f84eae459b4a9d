"""Reads traces: tables with one job a row, exports of the history, and the Standard Workload Format."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim.exported import Row, jobs_of
from schedulemesh.sim.jobs import Job

#: Fields of a job in the Standard Workload Format, by their position.
_ID, _SUBMIT, _RUN, _USED, _ASKED, _ASKED_S, _USER, _QUEUE = 0, 1, 3, 4, 7, 8, 11, 14
_SWF_FIELDS = 18


def read_trace(path: str | Path) -> list[Job]:
    """The jobs of a trace in the order of their submission: a ``.csv``, ``.jsonl`` or ``.swf`` file, packed
    with gzip or not, or a ``.parquet`` file. Jobs that did not run are left out.

    A table has the columns job_id, submit_s, duration_s, and any of gpus, cpus, memory_gb, user,
    group_or_vc (the pool), priority, requested_s (the estimated duration) and savable (0 or 1); others are
    passed over. An export of the history, which has a row for each attempt, has a job for each submission
    (``schedulemesh.sim.exported``). Raises InvalidRequestError.
    """
    path = Path(path)
    kind = Path(path.name.removesuffix(".gz")).suffix
    try:
        if kind == ".parquet":
            read = jobs_of(_parquet_rows(path))
        elif kind == ".jsonl":
            read = jobs_of(msgspec.json.decode(line, type=Row) for line in _text(path).splitlines())
        elif kind == ".swf":
            read = _swf(_text(path).splitlines())
        else:
            read = jobs_of(csv.DictReader(io.StringIO(_text(path))))
        jobs = [job for job in read if job.duration_s > 0]
    except KeyError as error:
        raise InvalidRequestError(
            f"{path} is no trace: it has no column {error}; a trace has job_id, submit_s and duration_s"
        ) from None
    except (ValueError, IndexError, TypeError, msgspec.MsgspecError) as error:
        raise InvalidRequestError(f"{path} is no trace, or it is damaged: {error}") from None
    return sorted(jobs, key=lambda job: job.submit_s)


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from None


def _parquet_rows(path: Path) -> list[Row]:
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
    return rows


def _swf(lines: Iterable[str]) -> Iterator[Job]:
    """The Standard Workload Format of Feitelson's archive: 18 numbers a line, -1 where unknown; processors
    count as CPUs.
    """
    for line in lines:
        if not line.strip() or line.startswith(";"):
            continue
        given = [float(field) for field in line.split()]
        if len(given) < _SWF_FIELDS:
            raise ValueError(f"a line has {len(given)} of {_SWF_FIELDS} fields: {line[:60]}")
        asked = given[_ASKED] if given[_ASKED] > 0 else given[_USED]
        yield Job(
            job_id=str(int(given[_ID])),
            submit_s=given[_SUBMIT],
            duration_s=given[_RUN],
            cpus=asked,
            user=f"u{int(given[_USER])}" if given[_USER] >= 0 else "",
            pool=f"q{int(given[_QUEUE])}" if given[_QUEUE] >= 0 else "",
            estimate_s=given[_ASKED_S] if given[_ASKED_S] > 0 else None,
        )
