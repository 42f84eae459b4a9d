"""The commands start, status, preemptions, stop and orphans, for a detached scheduler."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import ray
import typer
from rich.console import Console
from rich.table import Table

from schedulemesh.cli.preemptions import preemption_table
from schedulemesh.core.client.head import ScheduleMeshHead
from schedulemesh.core.client.listings import OrphanInfo, PoolInfo, TaskListing
from schedulemesh.core.client.ray_cluster import join
from schedulemesh.core.client.results import AgentInfo
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.domain.resources import Amounts
from schedulemesh.errors import ScheduleMeshError


def start(
    name: str,
    namespace: str,
    address: str,
    state_path: str | None,
    health_interval_s: float | None,
) -> int:
    """Start the scheduler; returns the exit code."""
    with session_of(address) as session:
        head = ScheduleMeshHead(
            name,
            namespace=namespace,
            state_path=state_path,
            health_interval_s=health_interval_s,
        )
        about = head.start()
        print(f"scheduler {name!r} is alive (epoch {about['epoch']}, process {about['pid']})")
        print(f"journal: {about['journal']}")
        print(f"attach:  RayScheduler.attach({name!r}, namespace={namespace!r})")
        session.code = 0
    return session.code


def status(name: str, namespace: str, address: str) -> int:
    """Show the scheduler; returns the exit code, 1 where it is not alive."""
    with session_of(address) as session:
        about = ScheduleMeshHead(name, namespace=namespace).health()
        if not about["alive"]:
            return fail(about["error"])
        console = Console()
        console.print(
            f"scheduler {name} (namespace {namespace}): epoch {about['epoch']}, process {about['pid']}, "
            f"tasks: {about['running_tasks']} running, {about['queued_tasks']} queued"
        )
        scheduler = RayScheduler.attach(name, namespace=namespace)
        console.print(_pools(scheduler.list_pools()["pools"]))
        console.print(_agents(scheduler.list_agents()["agents"]))
        console.print(_tasks(scheduler.list_tasks()["tasks"]))
        session.code = 0
    return session.code


def stop(name: str, namespace: str, address: str, *, asked: bool) -> int:
    """End the scheduler; returns the exit code."""
    with session_of(address) as session:
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
            return fail(about["error"])
        if not asked and not typer.confirm(question):
            return 1
        head.stop()
        print(f"scheduler {name!r} has ended")
        session.code = 0
    return session.code


def orphans(
    name: str,
    namespace: str,
    address: str,
    names: Sequence[str] | None,
    *,
    end_all: bool,
    asked: bool,
) -> int:
    """List the orphans, or end those with these names, or all; the exit code, 1 where one was not found."""
    if names and end_all:
        return fail("give --end or --end-all, not both")
    with session_of(address) as session:
        scheduler = RayScheduler.attach(name, namespace=namespace)
        listed = scheduler.list_orphans()["orphans"]
        if not names and not end_all:
            Console().print(_orphans(listed) if listed else "there are no orphans")
            session.code = 0
            return session.code
        actors = [orphan["name"] for orphan in listed if orphan["kind"] == "actor"]
        chosen = actors if end_all else list(names or ())
        if unknown := [given for given in chosen if given not in actors]:
            return fail(
                f"{unknown[0]!r} is no orphaned actor; there are {', '.join(actors) or 'none'}"
            )
        if not asked and not typer.confirm(f"End {len(chosen)} orphaned actors?"):
            return 1
        ended = scheduler.end_orphans(None if end_all else chosen)["ended"]
        print(f"ended: {', '.join(ended) or 'nothing'}")
        session.code = 0
    return session.code


def preemptions(
    name: str,
    namespace: str,
    address: str,
    *,
    task: str | None,
    pool: str | None,
    owner: str | None,
    limit: int,
) -> int:
    """Show the last preemptions in which these took part; returns the exit code."""
    with session_of(address) as session:
        scheduler = RayScheduler.attach(name, namespace=namespace)
        answer = scheduler.list_preemptions(task_id=task, pool_name=pool, owner=owner, limit=limit)
        listed = answer["preemptions"]
        Console().print(preemption_table(listed) if listed else "there are no preemptions")
        session.code = 0
    return session.code


class _Session:
    """A command on a running Ray, with its exit code."""

    code = 1


@contextmanager
def session_of(address: str) -> Iterator[_Session]:
    """Within, this process is connected to Ray. An error is printed as one sentence on stderr."""
    session = _Session()
    try:
        join(address, log_to_driver=False)
    except ConnectionError as error:
        fail(f"no Ray cluster was joined: {error}. `ray start --head` starts one on this machine")
        raise typer.Exit(1) from None
    try:
        yield session
    except ScheduleMeshError as error:
        fail(str(error))
    finally:
        ray.shutdown()


def fail(sentence: str) -> int:
    """Print an error; the exit code."""
    print(sentence, file=sys.stderr)
    return 1


def _pools(pools: list[PoolInfo]) -> Table:
    table = Table(title="pools", title_justify="left")
    for heading in ("pool", "cohort", "total", "free", "lent", "borrowed", "agents"):
        table.add_column(heading, overflow="fold")
    for pool in pools:
        amounts = (pool["resources"], pool["free"], pool["lent"], pool["borrowed"])
        agents = str(len(pool["agents"]))
        table.add_row(pool["name"], pool["cohort"] or "", *map(amounts_of, amounts), agents)
    return table


def _agents(agents: list[AgentInfo]) -> Table:
    table = Table(title="agents", title_justify="left")
    for heading in ("agent", "pool", "holds", "state", "tasks", "process"):
        table.add_column(heading, overflow="fold")
    for agent in agents:
        table.add_row(
            agent["name"],
            agent["pool"],
            amounts_of(agent["resources"]),
            agent["state"],
            ", ".join(agent["tasks"]),
            str(agent["pid"] or ""),
        )
    return table


def _tasks(tasks: list[TaskListing]) -> Table:
    table = Table(title="tasks", title_justify="left")
    for heading in ("task", "owner", "pool", "priority", "state", "agent"):
        table.add_column(heading, overflow="fold")
    for task in tasks:
        table.add_row(
            task["task_id"],
            task["owner"],
            task["pool_name"],
            f"{task['priority']:.12g}",
            task["phase"],
            task["agent_name"],
        )
    return table


def _orphans(orphans: list[OrphanInfo]) -> Table:
    table = Table(title="orphans", title_justify="left")
    for heading in ("name in Ray", "kind"):
        table.add_column(heading, overflow="fold")
    for orphan in orphans:
        table.add_row(orphan["name"], orphan["kind"])
    return table


def amounts_of(amounts: Amounts) -> str:
    """Amounts for people."""
    own = (
        ("cpu", amounts.get("cpu")),
        ("memory", amounts.get("memory")),
        ("gpu", amounts.get("gpu")),
    )
    shown = [*own, *amounts.get("custom", {}).items()]
    return ", ".join(f"{kind} {n:.12g}" for kind, n in shown if n is not None) or "-"
