"""The overview of a scheduler that ``dashboard`` prints: its pools, tasks and last preemptions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from schedulemesh.api.pools import ListPools, PoolInfo
from schedulemesh.api.preemption import ListPreemptions, PreemptionRecord
from schedulemesh.api.tasks import ListTasks, TaskListing
from schedulemesh.client.asking import SchedulerConnection, listed
from schedulemesh.client.listings import AboutResult, PoolsResult, PreemptionsResult, TasksResult
from schedulemesh.domain.eviction_causes import cause_of
from schedulemesh.domain.resources import amounts_text
from schedulemesh.domain.sentences import in_words

if TYPE_CHECKING:
    from rich.table import Table

_POOLS = ("pool", "used", "total", "lent", "borrowed", "agents", "queued")
_PREEMPTIONS = ("time", "evicted", "for", "rule")
#: How many preemptions are shown.
_LAST = 5


def print_overview(connection: SchedulerConnection, about: AboutResult) -> None:
    """Print the overview to stdout, as wide as the terminal."""
    from rich.console import Console

    listing = listed(connection, ListTasks(), "tasks", TasksResult)["tasks"]
    console = Console(highlight=False, markup=False)
    console.print(
        f"scheduler {about['name']} (namespace {about['namespace']}): epoch {about['epoch']}, "
        f"process {about['pid']}"
    )
    console.print(f"agents: {about['agents']}; tasks: {_counted(listing)}")
    pools = listed(connection, ListPools(), "pools", PoolsResult)["pools"]
    last = ListPreemptions(limit=_LAST)
    recent = listed(connection, last, "preemptions", PreemptionsResult)["preemptions"]
    for title, headings, rows in (
        ("pools", _POOLS, map(_pool_row, pools)),
        ("last preemptions", _PREEMPTIONS, map(_preemption_row, recent)),
    ):
        if (table := _table(title, headings, rows)).row_count:
            console.print()
            console.print(table)


def _counted(listed: Sequence[TaskListing]) -> str:
    """How many tasks are in which state."""
    counts = Counter(task["phase"] for task in listed)
    return ", ".join(f"{many} {phase}" for phase, many in sorted(counts.items())) or "none"


def _pool_row(pool: PoolInfo) -> list[str]:
    amounts = (pool["used"], pool["resources"], pool["lent"], pool["borrowed"])
    numbers = (str(len(pool["agents"])), str(pool["queued"]))
    return [pool["name"], *map(amounts_text, amounts), *numbers]


def _preemption_row(record: PreemptionRecord) -> list[str]:
    evictor = record["evictor"]
    if evictor is None:
        by = in_words(cause_of(record["reason"]), "en")
    else:
        by = evictor["task_id"] or evictor["agent_name"]
    at = time.strftime("%m-%d %H:%M:%S", time.localtime(record["timestamp"]))
    return [at, record["task_id"], by, record["reason"]]


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
