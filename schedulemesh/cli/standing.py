"""Start, status and stop of a standing scheduler, as a person reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import typer
from rich.console import Console
from rich.table import Table

from schedulemesh.core.client.head import ScheduleMeshHead
from schedulemesh.core.client.ray_cluster import join
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.errors import ScheduleMeshError


def start(
    name: str,
    namespace: str,
    address: str,
    state_path: str | None,
    health_interval_s: float | None,
) -> int:
    """Start it; the exit code."""
    with _connected(address) as reached:
        if not reached:
            return 1
        head = ScheduleMeshHead(
            name,
            namespace=namespace,
            state_path=state_path,
            health_interval_s=health_interval_s,
        )
        try:
            about = head.start()
        except ScheduleMeshError as error:
            return _fail(str(error))
        print(f"scheduler {name!r} is alive (epoch {about['epoch']}, process {about['pid']})")
        print(f"journal: {about['journal']}")
        print(f"attach:  RayScheduler.attach({name!r}, namespace={namespace!r})")
        return 0


def status(name: str, namespace: str, address: str) -> int:
    """Show it; the exit code, 1 where it does not live."""
    with _connected(address) as reached:
        if not reached:
            return 1
        about = ScheduleMeshHead(name, namespace=namespace).health()
        if not about["alive"]:
            return _fail(about["error"])
        console = Console()
        console.print(
            f"scheduler {name} (namespace {namespace}): epoch {about['epoch']}, process {about['pid']}, "
            f"{about['running_tasks']} running tasks"
        )
        scheduler = RayScheduler.attach(name, namespace=namespace)
        console.print(_pools(scheduler.list_pools()["pools"]))
        console.print(_agents(scheduler.list_agents()["agents"]))
        return 0


def stop(name: str, namespace: str, address: str, *, asked: bool) -> int:
    """End it; the exit code."""
    with _connected(address) as reached:
        if not reached:
            return 1
        head = ScheduleMeshHead(name, namespace=namespace)
        about = head.health()
        if about["alive"]:
            question = (
                f"End scheduler {name!r} with {about['agents']} agents and forget its journal?"
            )
        elif about["registered"]:
            print(about["error"], file=sys.stderr)
            question = f"End scheduler {name!r} and what lives of it? Its journal stays as it is."
        else:
            return _fail(about["error"])
        if not asked and not typer.confirm(question):
            return 1
        try:
            head.stop()
        except ScheduleMeshError as error:
            return _fail(str(error))
        print(f"scheduler {name!r} has ended")
        return 0


@contextmanager
def _connected(address: str) -> Iterator[bool]:
    """A connection to a running Ray; False, told on stderr, where there is none."""
    try:
        join(address, log_to_driver=False)
    except ConnectionError as error:
        _fail(f"no Ray cluster was joined: {error}. `ray start --head` starts one on this machine")
        yield False
        return
    try:
        yield True
    finally:
        ray.shutdown()


def _fail(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 1


def _pools(pools: list[dict[str, Any]]) -> Table:
    table = Table(title="pools", title_justify="left")
    for heading in ("pool", "total", "free", "lent", "borrowed", "agents"):
        table.add_column(heading)
    for pool in pools:
        amounts = [_amounts(pool[key]) for key in ("resources", "free", "lent", "borrowed")]
        table.add_row(pool["name"], *amounts, str(len(pool["agents"])))
    return table


def _agents(agents: list[dict[str, Any]]) -> Table:
    table = Table(title="agents", title_justify="left")
    for heading in ("agent", "pool", "holds", "state", "tasks", "process"):
        table.add_column(heading)
    for agent in agents:
        table.add_row(
            agent["name"],
            agent["pool"],
            _amounts(agent["resources"]),
            agent["state"],
            ", ".join(agent["tasks"]),
            str(agent["pid"] or ""),
        )
    return table


def _amounts(amounts: dict[str, Any]) -> str:
    flat = {**{k: v for k, v in amounts.items() if k != "custom"}, **amounts.get("custom", {})}
    return ", ".join(f"{kind} {amount:g}" for kind, amount in flat.items()) or "-"
