"""The command top: a live view of pools, running tasks and the queue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.columns import REASON, amounts_column, priority
from schedulemesh.cli.command import Target, View, command
from schedulemesh.cli.output import show
from schedulemesh.cli.rows import Column, Listing, Record, Row
from schedulemesh.cli.status import headline
from schedulemesh.cli.texts import data, duration

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()

#: Characters of a full bar.
_BAR = 16


def _bar(share: float) -> str:
    filled = round(max(0.0, min(1.0, share)) * _BAR)
    return f"{'#' * filled}{'.' * (_BAR - filled)} {share:4.0%}"


def _metrics(metrics: Row | None) -> str:
    """The first of the reported metrics."""
    shown = [f"{name} {data(value)}" for name, value in (metrics or {}).items()]
    return ", ".join(shown[:3])


_POOLS = (
    Column(heading="pool", key="name"),
    Column(heading="fullest resource", key="share", show=_bar),
    amounts_column("used", "used"),
    amounts_column("of", "resources"),
    Column(heading="queued", key="queued", right=True),
)
_RUNNING = (
    Column(heading="task", key="task_id"),
    Column(heading="owner", key="owner"),
    Column(heading="pool", key="pool_name"),
    Column(heading="prio", key="priority", show=priority, right=True),
    amounts_column("holds", "holds"),
    Column(heading="for", key="running_s", show=duration, right=True, chinese="时长"),
    Column(heading="metrics", key="last_metrics", show=_metrics),
)
_WAITING = (
    Column(heading="pool", key="pool_name"),
    Column(heading="#", key="position", right=True),
    Column(heading="task", key="task_id"),
    Column(heading="owner", key="owner"),
    Column(heading="prio", key="priority", show=priority, right=True),
    amounts_column("asks", "resources"),
    Column(heading="waits", key="waiting_time", show=duration, right=True),
    REASON,
)


@command(app)
def top(
    target: Target,
    view: View,
    limit: Annotated[
        int, typer.Option(min=1, help="Running and waiting tasks that are shown.")
    ] = 15,
) -> None:
    """Show pools, running tasks and the queue live: the tasks that hold most come first."""
    show(target, replace(view, watch=True), lambda gateway: live_view(gateway, limit))


def live_view(gateway: Gateway, limit: int) -> Record:
    """What ``top`` shows at one time."""
    from schedulemesh.api.agents import ListAgents
    from schedulemesh.api.cluster import GetAbout
    from schedulemesh.api.pools import ListPools
    from schedulemesh.api.tasks import ListTasks
    from schedulemesh.protocol.answers import Details, Listed

    about = gateway.ask(GetAbout(), Details).facts
    pools = [{**row, "share": _share(row)} for row in gateway.ask(ListPools(), Listed).rows]
    tasks = gateway.ask(ListTasks(), Listed).rows
    agents = {row["name"]: row["resources"] for row in gateway.ask(ListAgents(), Listed).rows}
    running = [_running(task, agents, about["time"]) for task in tasks if task["phase"] != "queued"]
    running.sort(key=_most_first)
    waiting = [task for task in tasks if task["phase"] == "queued"]
    keys = ("name", "namespace", "epoch", "running_tasks", "queued_tasks")
    return Record(
        facts={key: about[key] for key in keys},
        lines=headline(about),
        listings=(
            Listing(kind="pools", rows=sorted(pools, key=_fullest_first), columns=_POOLS),
            Listing(kind="running", rows=running[:limit], columns=_RUNNING, name="task_id"),
            Listing(kind="waiting", rows=waiting[:limit], columns=_WAITING, name="task_id"),
        ),
    )


def _running(task: dict[str, Any], agents: dict[str, Any], now: float) -> dict[str, Any]:
    started = task["started_at"]
    resources = agents.get(task["agent_name"], {})
    return {
        **task,
        "holds": resources,
        "running_s": None if started is None else max(0.0, now - started),
    }


def _share(pool: Row) -> float:
    """The used part of the resource of which the largest part is used, from 0 to 1."""
    total, used = _flat(pool["resources"]), _flat(pool["used"])
    return max(
        (used.get(kind, 0.0) / amount for kind, amount in total.items() if amount), default=0
    )


def _flat(amounts: Row) -> dict[str, float]:
    custom = amounts.get("custom", {})
    return {**{kind: n for kind, n in amounts.items() if kind != "custom"}, **custom}


def _most_first(task: Row) -> tuple[float, float, str]:
    resources = task["holds"]
    return (-resources.get("gpu", 0.0), -resources.get("cpu", 0.0), task["task_id"])


def _fullest_first(pool: Row) -> tuple[float, str]:
    return (-pool["share"], pool["name"])
