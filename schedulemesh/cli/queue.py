"""The commands queue, hold, release, cancel, priority and top, for tasks that wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from schedulemesh.cli.standing import fail, session_of
from schedulemesh.core.client.listings import QueueListing
from schedulemesh.core.client.scheduler import RayScheduler

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def show(name: str, namespace: str, address: str, pool: str | None, limit: int | None) -> int:
    """List the tasks that wait; returns the exit code."""
    with session_of(address) as session:
        answer = RayScheduler.attach(name, namespace=namespace).list_queue(pool, limit)
        if not answer["success"]:
            return fail(answer["error"])
        tasks, total = answer["tasks"], answer["total"]
        console = Console()
        if not total:
            console.print("no task waits")
        else:
            console.print(table(tasks))
        if len(tasks) < total:
            console.print(f"{len(tasks)} of {total} tasks are shown; --limit 0 shows all")
        session.code = 0
    return session.code


def table(tasks: Sequence[QueueListing]) -> Table:
    """Queued tasks, in 80 columns."""
    found = Table(title="queue", title_justify="left")
    found.add_column("pool", overflow="fold", max_width=14)
    found.add_column("#", justify="right")
    found.add_column("task", overflow="fold", max_width=24)
    found.add_column("owner", overflow="ellipsis", max_width=10, no_wrap=True)
    found.add_column("prio", justify="right")
    found.add_column("waits", justify="right")
    found.add_column("note", overflow="fold")
    for task in tasks:
        found.add_row(
            task["pool_name"],
            str(task["position"]),
            task["task_id"],
            task["owner"],
            f"{task['priority']:.6g}",
            duration(task["waiting_time"]),
            _note(task),
        )
    return found


def _note(task: QueueListing) -> str:
    """What else an operator wants to know of a queued task."""
    evicted = task["preemptions"]
    notes = (
        "held" if task["held"] else "",
        f"evicted {evicted}x" if evicted else "",
    )
    return ", ".join(note for note in notes if note)


def duration(seconds: float) -> str:
    """A duration in its two largest units: 42s, 3m07s, 5h12m, 2d04h."""
    if seconds < _MINUTE:
        return f"{int(seconds)}s"
    if seconds < _HOUR:
        return f"{int(seconds // _MINUTE)}m{int(seconds % _MINUTE):02d}s"
    if seconds < _DAY:
        return f"{int(seconds // _HOUR)}h{int(seconds % _HOUR // _MINUTE):02d}m"
    return f"{int(seconds // _DAY)}d{int(seconds % _DAY // _HOUR):02d}h"


def change(
    name: str,
    namespace: str,
    address: str,
    task_ids: Sequence[str],
    call: Callable[[RayScheduler, str], Mapping[str, object]],
    done: str,
) -> int:
    """Call something for each task; the exit code is 1 where one was refused."""
    with session_of(address) as session:
        scheduler = RayScheduler.attach(name, namespace=namespace)
        session.code = 0
        for task_id in task_ids:
            answer = call(scheduler, task_id)
            if answer["success"]:
                print(f"{task_id}: {done}")
            else:
                session.code = fail(str(answer["error"]))
    return session.code


def cancel(name: str, namespace: str, address: str, task_ids: Sequence[str]) -> int:
    """Cancel tasks; the exit code is 1 where one was refused."""
    with session_of(address) as session:
        scheduler = RayScheduler.attach(name, namespace=namespace)
        answer = scheduler.cancel_tasks(task_ids)
        print(f"cancelled: {len(answer.get('cancelled', []))}")
        session.code = 0
        for refused in answer.get("refused", {}).values():
            session.code = fail(refused["error"])
    return session.code
