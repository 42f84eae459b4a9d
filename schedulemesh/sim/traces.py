"""Reads traces: the CSV form with one job a row, and the Standard Workload Format."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim.jobs import Job

#: Fields of a job in the Standard Workload Format, by their position.
_ID, _SUBMIT, _RUN, _USED, _ASKED, _ASKED_S, _USER, _QUEUE = 0, 1, 3, 4, 7, 8, 11, 14
_SWF_FIELDS = 18


def read_trace(path: str | Path) -> list[Job]:
    """The jobs of a trace in the order of their submission: a ``.csv`` or a ``.swf`` file, packed with gzip
    or not. Jobs that did not run are left out.

    A CSV file has the columns job_id, submit_s, duration_s, and any of gpus, cpus, memory_gb, user,
    group_or_vc (the pool), priority, requested_s (the estimated duration) and savable (0 or 1); others are
    passed over. Raises InvalidRequestError.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from None
    swf = path.name.removesuffix(".gz").endswith(".swf")
    read = _swf(text.splitlines()) if swf else _table(io.StringIO(text))
    try:
        jobs = [job for job in read if job.duration_s > 0]
    except (KeyError, ValueError, IndexError) as error:
        raise InvalidRequestError(f"{path} is no trace: {error!r}") from None
    return sorted(jobs, key=lambda job: job.submit_s)


def _table(file: Iterable[str]) -> Iterator[Job]:
    for row in csv.DictReader(file):
        estimate = row.get("requested_s")
        yield Job(
            job_id=row["job_id"],
            submit_s=float(row["submit_s"]),
            duration_s=float(row["duration_s"] or 0),
            gpus=float(row.get("gpus") or 0),
            cpus=float(row.get("cpus") or 0),
            memory_gb=float(row.get("memory_gb") or 0),
            user=row.get("user") or "",
            pool=row.get("group_or_vc") or "",
            priority=float(row.get("priority") or 5.0),
            estimate_s=float(estimate) if estimate else None,
            savable=row.get("savable") != "0",
        )


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
