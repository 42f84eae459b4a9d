"""The columns of the tables of pools, agents, tasks, queued tasks and nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from schedulemesh.cli.language import phrase, spoken
from schedulemesh.cli.rows import Column, Row
from schedulemesh.cli.texts import (
    amounts,
    duration,
    labels,
    local_time,
    names,
    number,
    remaining,
    text,
    time_until,
)
from schedulemesh.cli.wording import in_commands, node
from schedulemesh.domain.node_labels import ACCELERATOR_TYPE


def sentence(text: str | None) -> str:
    """An error in the words of the command line; empty: there was none."""
    return in_commands(text or "")


def wide(heading: str, key: str, show: Callable[[Any], str] = text) -> Column:
    """A column that only ``-o wide`` shows."""
    return Column(heading=heading, key=key, show=show, wide=True)


def amounts_column(heading: str, key: str, *, spare: int = 0) -> Column:
    """A column of amounts by the names of resources."""
    return Column(heading=heading, key=key, show=amounts, amounts=True, spare=spare)


def priority(value: float) -> str:
    """A priority in few digits."""
    return f"{value:.6g}"


def owner_of_row(owner: str | None) -> str:
    """The owner of a row; none of the row of a pool."""
    return "" if owner is None else owner or phrase("cell_no_owner")


def percent(part: float) -> str:
    """A part of a quota."""
    return f"{part:.1%}"


def hours(value: float) -> str:
    """GPU-hours in few digits."""
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _count(value: Sequence[object] | None) -> str:
    return str(len(value or ()))


def waits_because(task: Row) -> str:
    """Why a task waits or has ended so, with what is short, and how often it was evicted."""
    evicted = task.get("preemptions")
    parts = (
        task.get("reason"),
        phrase("cell_short", amounts=amounts(task["short"])) if task.get("short") else "",
        phrase("cell_evictions", count=evicted) if evicted else "",
    )
    return ", ".join(filter(None, parts))


def _state_time(job: Row) -> str:
    """For how long a job has waited, or else run."""
    return duration(job.get("waiting_time", job.get("running_time")))


def _expected(task: Row) -> str:
    """How long it runs; "~": by earlier runs."""
    shown = duration(task["expected_duration"])
    return f"~{shown}" if task["estimated_from"] else shown


def _used(usage: Row | None) -> str:
    """What an agent's process really uses."""
    if usage is None:
        return ""
    shown = f"{usage['cpu']:.2g} cpu, {usage['memory_mb']:.0f} MB"
    gpu = usage["gpu_utilization"]
    return shown if gpu is None else f"{shown}, {gpu:.0f} % gpu"


def _run_limit(pool: Row) -> str:
    """How long tasks of a pool may run: at most, and where they do not say it, if that is less."""
    most, default = pool["max_run_s"], pool["default_max_run_s"]
    if default is None or default == most:
        return duration(most)
    return phrase("cell_default", most=duration(most), default=duration(default))


#: As wide as the longest code that is often given, with a comma, so that it can be copied.
REASON = Column(
    heading="reason",
    key="",
    show=waits_because,
    least=25,
    amounts=True,
    parts=("reason", "short", "preemptions"),
)

POOLS = (
    Column(heading="pool", key="name"),
    Column(heading="cohort", key="cohort"),
    amounts_column("total", "resources"),
    amounts_column("free", "free"),
    amounts_column("lent", "lent"),
    amounts_column("borrowed", "borrowed"),
    Column(heading="agents", key="agents", show=_count, right=True),
    Column(heading="queued", key="queued", right=True),
    wide("used", "used", amounts),
    wide("reserved", "reserved", amounts),
    wide("labels", "labels", labels),
    wide("queueing", "queueing"),
    wide("on_preempted", "on_preempted"),
    wide("run limit", "", _run_limit),
    wide("idle limit", "idle_s", duration),
)

_STATE = Column(heading="state", key="state")


def pool_columns(pools: Sequence[Row]) -> tuple[Column, ...]:
    """Those of a table of pools: with their states where one of them is drained or being deleted."""
    if all(pool["state"] == "open" for pool in pools):
        return POOLS
    return (POOLS[0], _STATE, *POOLS[1:])


AGENTS = (
    Column(heading="agent", key="name"),
    Column(heading="pool", key="pool"),
    amounts_column("holds", "resources"),
    Column(heading="state", key="state"),
    Column(heading="tasks", key="tasks", show=names),
    Column(heading="process", key="pid", show=lambda pid: str(pid or ""), right=True),
    wide("node", "node_id", node),
    wide("uses", "usage", _used),
    wide("gpus idle since", "idle_since", local_time),
    wide("restarts", "restarts"),
    wide("labels", "labels", labels),
)

MEMBERS = (
    Column(heading="index", key="array_index", right=True),
    Column(heading="task", key="task_id"),
    Column(heading="state", key="state"),
    Column(heading="since", key="started_at", show=local_time),
    Column(heading="ended", key="ended_at", show=local_time),
    Column(heading="reason", key="reason"),
    wide("node", "node_id", node),
    wide("agent", "agent_name"),
    wide("failures", "failures"),
    wide("error", "error"),
)

TASKS = (
    Column(heading="task", key="task_id"),
    Column(heading="owner", key="owner"),
    Column(heading="pool", key="pool_name"),
    Column(heading="prio", key="priority", show=priority, right=True),
    Column(heading="state", key="phase"),
    amounts_column("holds or asks", "resources"),
    Column(heading="node", key="node_id", show=node),
    wide("agent", "agent_name"),
    wide("kind", "kind"),
    wide("started", "started_at", local_time),
    wide("remaining", "remaining_time", remaining),
    wide("limit in", "limit_at", time_until),
    wide("flavor", "flavor"),
    # begin written columns
    wide("topology", "topology"),
    # end written
    wide("class", "priority_class"),
    wide("labels", "labels", labels),
)

JOBS = (
    Column(heading="job", key="task_id"),
    Column(heading="owner", key="owner", spare=3),
    Column(heading="pool", key="pool_name"),
    Column(heading="prio", key="priority", show=priority, right=True, spare=2),
    Column(heading="state", key="state"),
    Column(heading="for", key="", show=_state_time, right=True, chinese="时长", spare=4),
    amounts_column("claim", "resources", spare=1),
    REASON,
    wide("waits", "waiting_time", duration),
    wide("runs", "running_time", duration),
    wide("attempt", "attempt"),
    wide("limit in", "limit_at", time_until),
    wide("uses", "used", amounts),
    wide("beyond claim", "beyond_claim", amounts),
    wide("agent", "agent_name"),
    wide("node", "node_id", node),
    wide("started", "started_at", local_time),
    wide("ended", "ended_at", local_time),
    wide("error", "error", sentence),
    wide("flavor", "flavor"),
    # begin written columns
    wide("topology", "topology"),
    # end written
    wide("class", "priority_class"),
    wide("labels", "labels", labels),
    wide("links", "links", labels),
)

_ARRAY = Column(heading="array", key="array")


def queue_columns(tasks: Sequence[Row]) -> tuple[Column, ...]:
    """Those of a table of queued tasks: with the indices that wait where one of them is an array."""
    if not any(task.get("array") for task in tasks):
        return QUEUE
    return (*QUEUE[:3], _ARRAY, *QUEUE[3:])


QUEUE = (
    Column(heading="pool", key="pool_name"),
    Column(heading="#", key="position", right=True),
    Column(heading="task", key="task_id"),
    Column(heading="owner", key="owner", spare=3),
    Column(heading="prio", key="priority", show=priority, right=True, spare=2),
    amounts_column("asks", "resources", spare=1),
    Column(heading="waits", key="waiting_time", show=duration, right=True, spare=4),
    REASON,
    wide("held", "held"),
    wide("runs for", "", _expected),
    wide("limit", "run_limit_s", duration),
    wide("reserved start", "reserved_start", local_time),
    wide("queued", "queued_at", local_time),
    wide("not before", "not_before", local_time),
    wide("agent", "agent_name"),
    wide("kind", "kind"),
    # begin written columns
    wide("topology", "topology"),
    # end written
    wide("class", "priority_class"),
    wide("labels", "labels", labels),
)


def _other_work(node: Row) -> str:
    """What is used beside the claims of tasks, with the jobs that claim less than they hold."""
    jobs = [job["task_id"] for job in node.get("external_jobs") or () if job["task_id"]]
    used = amounts(node["external_usage"])
    return phrase("cell_with_jobs", used=used, jobs=jobs) if jobs else used


def _node_name(node: Row) -> str:
    return str(node.get("host") or node.get("address") or "")


def _model(node: Row) -> str:
    """The model of a node's GPUs."""
    return str((node.get("labels") or {}).get(ACCELERATOR_TYPE, ""))


def _domains(node: Row) -> str:
    """Where a node is in the topology, such as ``b1/r7``."""
    return "/".join((node.get("topology") or {}).values())


def _window(node: Row) -> str:
    """The window of a node that is open, or else the next one, and when it opens."""
    name, start = node.get("window"), node.get("window_start")
    return "" if name is None or start is None else f"{name} {local_time(start)}"


_MODEL = Column(heading="GPU model", key="", show=_model)
_WINDOW = Column(heading="window", key="", show=_window)
_DOMAINS = Column(heading="topology", key="", show=_domains)
_NODES = (
    Column(heading="node", key="", show=_node_name),
    Column(heading="id", key="short_id"),
    _DOMAINS,
    _MODEL,
    amounts_column("total", "total"),
    amounts_column("free", "free"),
    Column(heading="other Ray work", key="", show=_other_work),
    Column(heading="cordoned", key="cordoned"),
    Column(heading="draining", key="draining"),
    _WINDOW,
    Column(heading="agents", key="agents", show=_count, right=True),
    wide("address", "address"),
    wide("node_id", "node_id"),
    wide("labels", "labels", labels),
)


def node_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns of a table of nodes; those of models of GPUs, of the topology and of windows only
    where one has any.
    """
    left_out = [] if any(map(_model, rows)) else [_MODEL]
    left_out += [] if any(map(_domains, rows)) else [_DOMAINS]
    left_out += [] if any(row.get("window") for row in rows) else [_WINDOW]
    return tuple(column for column in _NODES if column not in left_out)


def _external_job(job: Row) -> str:
    """The id of a Ray job, or of a job of the scheduler's that holds more than it claims."""
    own_job = job["task_id"]
    return phrase("cell_beyond_claim", job=own_job) if own_job else str(job["job_id"])


EXTERNAL = (
    Column(heading="job", key="", show=_external_job),
    Column(heading="namespace", key="namespace"),
    amounts_column("holds", "resources"),
    amounts_column("waits for", "waiting"),
    Column(heading="nodes", key="nodes", show=_count, right=True),
    Column(heading="driver", key="entrypoint"),
    wide("process", "driver_pid"),
    wide("on node", "driver_node_id", node),
    wide("started", "started_at", local_time),
    wide("ended", "ended"),
    wide("actors", "actors"),
    wide("groups", "placement_groups"),
)


def _drained(drain: Row) -> str:
    """What is drained."""
    return phrase("cell_node" if drain["node_id"] else "cell_pool")


def _asked_by(drain: Row) -> str:
    """Who drains."""
    return "Ray" if drain["by_ray"] else text(drain["requested_by"])


DRAINS = (
    Column(heading="what", key="", show=_drained),
    Column(heading="name", key="name", show=node),
    Column(heading="since", key="started_at", show=local_time),
    Column(heading="until", key="deadline", show=local_time),
    Column(heading="agents", key="agents", show=_count, right=True),
    Column(heading="tasks left", key="tasks", show=_count, right=True),
    Column(heading="done", key="done"),
    Column(heading="asked by", key="", show=_asked_by),
)


def _window_nodes(window: Row) -> str:
    """Which nodes a window is for, as it was given, and how many these are."""
    count = len(window["node_ids"])
    if window["resources"]:
        chosen = ", ".join(map(node, window["node_ids"])) or "-"
        return f"{amounts(window['resources'])} ({chosen})"
    if window["node_labels"]:
        return f"{labels(window['node_labels'])} ({count})"
    return ", ".join(map(node, window["nodes"])) or phrase("cell_all", count=count)


def _reserved_for(window: Row) -> str:
    """For whom a window reserves its nodes, or that it is for maintenance."""
    whom = [*window["pools"], *window["owners"]]
    whom += [labels(window["labels"])] if window["labels"] else []
    return ", ".join(whom) or phrase("cell_maintenance")


WINDOWS = (
    Column(heading="window", key="name"),
    Column(heading="opens", key="next_start", show=local_time),
    Column(heading="closes", key="next_end", show=local_time),
    Column(heading="open", key="open"),
    Column(heading="repeat", key="repeat"),
    Column(heading="nodes", key="", show=_window_nodes),
    Column(heading="for", key="", show=_reserved_for),
    Column(heading="comment", key="comment"),
    wide("first", "start"),
    wide("duration", "duration_s", duration),
    wide("notice", "notice_s", duration),
    wide("short", "short", amounts),
)

COHORTS = (
    Column(heading="cohort", key="name"),
    Column(heading="parent", key="parent"),
    Column(heading="pools", key="pools", show=names),
    amounts_column("total", "resources"),
    amounts_column("idle", "idle"),
    wide("cohorts", "cohorts", names),
    wide("weight", "weight", number),
)

ORPHANS = (
    Column(heading="name in Ray", key="name"),
    Column(heading="kind", key="kind"),
    Column(heading="namespace", key="namespace", wide=True),
)

#: What became of each thing that a command changed.
CHANGES = (
    Column(heading="name", key="name"),
    Column(heading="result", key="result", show=spoken),
)
