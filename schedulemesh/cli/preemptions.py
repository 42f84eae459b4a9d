"""The table of the command preemptions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

from rich.table import Table

from schedulemesh.core.client.listings import EvictorInfo, PreemptionRecord


def preemption_table(preemptions: Iterable[PreemptionRecord]) -> Table:
    """One row per preemption; the names are folded on a narrow terminal."""
    table = Table(title="preemptions", title_justify="left", show_lines=True)
    for heading in ("time", "evicted", "for", "rule", "lost", "result"):
        table.add_column(heading, overflow="fold")
    for row in preemptions:
        table.add_row(
            _local_time(row["timestamp"]),
            _party(row["task_id"], row["owner"], row["pool_name"], row["priority"]),
            _evictor(row["evictor"], row["requested_by"]),
            _rule(row),
            _lost(row),
            _result(row),
        )
    return table


def _local_time(at: float) -> str:
    return datetime.fromtimestamp(at, tz=timezone.utc).astimezone().strftime("%m-%d %H:%M:%S")


def _party(task: str, owner: str, pool: str, priority: float | None) -> str:
    lines = [task, " in ".join(filter(None, (owner, pool)))]
    return "\n".join(lines if priority is None else [*lines, f"priority {priority:.12g}"])


def _evictor(evictor: EvictorInfo | None, client: str | None) -> str:
    if evictor is None:
        return f"requested by {client}" if client else "requested"
    task = evictor["task_id"] or f"agent {evictor['agent_name']}"
    return _party(task, evictor["owner"], evictor["pool_name"], evictor["priority"])


def _rule(row: PreemptionRecord) -> str:
    score = row["preempt_score"]
    rule = row["reason"].removesuffix("_preemption")
    return rule if score is None else f"{rule}\nscore {score:.6g}"


def _lost(row: PreemptionRecord) -> str:
    lines = [f"{row['lost_work']:.0f} s", f"{row['lost_gpu_seconds']:.0f} GPU-s"]
    saved = "state saved" if row["state_saved"] else "no state"
    return "\n".join([*lines, "not saved" if row.get("save_error") else saved])


def _result(row: PreemptionRecord) -> str:
    """What became of it: when the resources were free, whether they were used, where the task is."""
    lines = []
    if row["time_to_evicted"] is None:
        lines.append("being evicted")
    if (freed := row["time_to_freed"]) is not None:
        lines.append(f"free after {freed:.1f} s")
    if (start := row["time_to_start"]) is not None:
        lines.append(f"used after {start:.1f} s")
    elif row["used"] is False:
        lines.append("not used")
    if (again := row["time_to_run_again"]) is not None:
        lines.append(f"ran again after {again:.0f} s")
    elif row["requeued"]:
        lines.append("requeued")
    return "\n".join(lines)
