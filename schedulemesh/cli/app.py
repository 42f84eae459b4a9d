"""The command ``schedulemesh``."""

from __future__ import annotations

from typing import Annotated

import typer

from schedulemesh import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Pools, quotas, preemption and placement for Ray clusters.",
)

Name = Annotated[str, typer.Option(help="The scheduler's name.")]
Namespace = Annotated[str, typer.Option(help="Its Ray namespace.")]
Address = Annotated[
    str, typer.Option(envvar="RAY_ADDRESS", help="The Ray cluster; auto: the one on this machine.")
]
Tasks = Annotated[list[str], typer.Argument(help="Ids of tasks.", show_default=False)]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"schedulemesh {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command()
def demo(
    steps: Annotated[
        int, typer.Option(min=20, help="Training steps of the pretraining job.")
    ] = 400,
) -> None:
    """Evict a real training job on a local Ray, and see it return by itself with its state."""
    from schedulemesh.cli.demo import run

    raise typer.Exit(run(steps))


@app.command()
def start(
    name: Name = "head",
    namespace: Namespace = "schedulemesh",
    address: Address = "auto",
    state_path: Annotated[
        str | None, typer.Option(help="Folder of the journal; default: Ray's session folder.")
    ] = None,
    health_interval: Annotated[
        float | None, typer.Option(min=1.0, help="Seconds between two health checks of the agents.")
    ] = None,
) -> None:
    """Start a detached scheduler on the cluster's head node, or find it running."""
    from schedulemesh.cli import standing

    raise typer.Exit(standing.start(name, namespace, address, state_path, health_interval))


@app.command()
def status(
    name: Name = "head", namespace: Namespace = "schedulemesh", address: Address = "auto"
) -> None:
    """Show a scheduler: its process, pools and agents."""
    from schedulemesh.cli import standing

    raise typer.Exit(standing.status(name, namespace, address))


@app.command()
def preemptions(
    name: Name = "head",
    namespace: Namespace = "schedulemesh",
    address: Address = "auto",
    task: Annotated[str | None, typer.Option(help="Only those of this task.")] = None,
    pool: Annotated[str | None, typer.Option(help="Only those of this pool.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only those of this owner.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The last so many.")] = 20,
) -> None:
    """List the last preemptions: who was evicted for whom, why, and what it cost."""
    from schedulemesh.cli import standing

    raise typer.Exit(
        standing.preemptions(
            name, namespace, address, task=task, pool=pool, owner=owner, limit=limit
        )
    )


@app.command()
def stop(
    name: Name = "head",
    namespace: Namespace = "schedulemesh",
    address: Address = "auto",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """End a scheduler with all its agents, and delete its journal."""
    from schedulemesh.cli import standing

    raise typer.Exit(standing.stop(name, namespace, address, asked=yes))


@app.command()
def explain(
    task: Annotated[str, typer.Argument(help="The task's id.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    name: Name = "head",
    namespace: Namespace = "schedulemesh",
    address: Address = "auto",
) -> None:
    """Say why a task waits, where it runs, by whom it was evicted or how it ended."""
    from schedulemesh.cli import explain as command

    raise typer.Exit(command.explain(name, namespace, address, task, as_json=as_json))


@app.command()
def orphans(
    name: Name = "head",
    namespace: Namespace = "schedulemesh",
    address: Address = "auto",
    end: Annotated[
        list[str] | None, typer.Option(help="End the orphaned actor of this name; repeatable.")
    ] = None,
    end_all: Annotated[bool, typer.Option("--end-all", help="End all of them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """List or end orphans: actors and placement groups that a restored journal does not know."""
    from schedulemesh.cli import standing

    raise typer.Exit(standing.orphans(name, namespace, address, end, end_all=end_all, asked=yes))


@app.command("queue")
def list_queue(
    name: Name = "head",
    namespace: Namespace = "schedulemesh",
    address: Address = "auto",
    pool: Annotated[str | None, typer.Option(help="Only this pool's queue.")] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="How many tasks of each pool are shown; 0: all.")
    ] = 20,
) -> None:
    """Show the tasks that wait, in the order in which they will start."""
    from schedulemesh.cli import queue

    raise typer.Exit(queue.show(name, namespace, address, pool, limit or None))


@app.command()
def hold(
    tasks: Tasks,
    name: Name = "head",
    namespace: Namespace = "schedulemesh",
    address: Address = "auto",
) -> None:
    """Keep queued tasks from starting until they are released."""
    from schedulemesh.cli import queue

    raise typer.Exit(
        queue.change(name, namespace, address, tasks, lambda s, t: s.hold_task(t), "held")
    )


@app.command()
def release(
    tasks: Tasks,
    name: Name = "head",
    namespace: Namespace = "schedulemesh",
    address: Address = "auto",
) -> None:
    """Let held tasks start again."""
    from schedulemesh.cli import queue

    raise typer.Exit(
        queue.change(name, namespace, address, tasks, lambda s, t: s.release_task(t), "released")
    )


@app.command()
def top(
    tasks: Tasks,
    name: Name = "head",
    namespace: Namespace = "schedulemesh",
    address: Address = "auto",
) -> None:
    """Move queued tasks to the front of their pools; of several, the last one comes first."""
    from schedulemesh.cli import queue

    raise typer.Exit(
        queue.change(name, namespace, address, tasks, lambda s, t: s.move_to_front(t), "moved")
    )


@app.command()
def priority(
    task: Annotated[str, typer.Argument(help="The task's id.")],
    value: Annotated[float, typer.Argument(help="Its new priority.")],
    name: Name = "head",
    namespace: Namespace = "schedulemesh",
    address: Address = "auto",
) -> None:
    """Change the priority of a queued task."""
    from schedulemesh.cli import queue

    done = f"priority {value:g}"
    raise typer.Exit(
        queue.change(name, namespace, address, [task], lambda s, t: s.set_priority(t, value), done)
    )


@app.command()
def cancel(
    tasks: Tasks,
    name: Name = "head",
    namespace: Namespace = "schedulemesh",
    address: Address = "auto",
) -> None:
    """Cancel tasks."""
    from schedulemesh.cli import queue

    raise typer.Exit(queue.cancel(name, namespace, address, tasks))


@app.command()
def plugins() -> None:
    """List the strategies that are built in and installed."""
    from schedulemesh.cli.plugins import show

    raise typer.Exit(show())


def main() -> None:
    """Run the command line."""
    app()
