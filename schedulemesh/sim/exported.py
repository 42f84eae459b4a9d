"""The jobs of a table: one for each row, or, in an export of the history, one for each submission.

An export has a row for each attempt to run a task. The attempts of one submission have the same ``job_id``
and ``submit_s``. The work of such a job is what its attempts did and did not lose; attempts that failed or
were lost with their process, and were followed by another, did work that was done again. A task that was
submitted again under its id is another job, with a number behind its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from schedulemesh.sim.jobs import Job

#: The fields of a row by the names of the columns: text, or the values themselves.
Row = dict[str, Any]


def jobs_of(rows: Iterable[Row]) -> Iterator[Job]:
    """The jobs in these rows. Raises KeyError and ValueError for rows that are none of a trace."""
    attempts: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        if row.get("attempt") in (None, ""):
            yield _job(row, float(row["duration_s"] or 0))
        else:
            attempts.setdefault((row["job_id"], float(row["submit_s"])), []).append(row)
    submitted: dict[str, int] = {}
    for (job_id, _), of_one in attempts.items():
        number = submitted[job_id] = submitted.get(job_id, 0) + 1
        yield _submission(job_id if number == 1 else f"{job_id}#{number}", of_one)


def _submission(job_id: str, attempts: list[Row]) -> Job:
    """The job whose attempts these are, in their order."""
    done, savable = 0.0, True
    fails_at: list[float] = []
    for row in attempts:
        lost_s = float(row.get("lost_s") or 0)
        done += max(0.0, float(row["duration_s"] or 0) - lost_s)
        savable = savable and not lost_s
        if row is not attempts[-1] and row.get("status") in ("failed", "lost"):
            if row["status"] == "failed" and done:
                fails_at.append(done)
            done = 0.0
    return _job(
        {**attempts[0], "job_id": job_id, "savable": "1" if savable else "0"}, done, tuple(fails_at)
    )


def _job(row: Row, duration_s: float, fails_at_s: tuple[float, ...] = ()) -> Job:
    estimate = row.get("requested_s")
    return Job(
        job_id=row["job_id"],
        submit_s=float(row["submit_s"]),
        duration_s=duration_s,
        gpus=float(row.get("gpus") or 0),
        cpus=float(row.get("cpus") or 0),
        memory_gb=float(row.get("memory_gb") or 0),
        user=row.get("user") or "",
        pool=row.get("group_or_vc") or "",
        priority=float(row.get("priority") or 5.0),
        estimate_s=float(estimate) if estimate else None,
        savable=row.get("savable") not in ("0", 0),
        fails_at_s=fails_at_s,
    )
