"""The commands start, stop, orphans, demo and version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from schedulemesh import __version__
from schedulemesh.cli.columns import ORPHANS
from schedulemesh.cli.command import Output, Speech, Target, View, Yes, command, note
from schedulemesh.cli.language import phrase, spoken
from schedulemesh.cli.output import emit, repeat
from schedulemesh.cli.rows import Listing, Record
from schedulemesh.cli.texts import seconds
from schedulemesh.cli.wording import in_commands
from schedulemesh.config.http import DEFAULT_HOST, DEFAULT_PORT
from schedulemesh.config.settings import DEFAULT_NAMESPACE
from schedulemesh.errors import nearest

if TYPE_CHECKING:
    from schedulemesh.core.client.scheduler import RayScheduler

app = typer.Typer()


@command(app)
def demo(
    steps: Annotated[
        int, typer.Option(min=20, help="Training steps of the pretraining job.")
    ] = 400,
) -> int:
    """Evict a real training job on a local Ray, and see it return by itself with its state."""
    from schedulemesh.cli.demo import run

    return run(steps)


@command(app)
def start(
    target: Target,
    state_path: Annotated[
        str | None, typer.Option(help="Folder of the journal; default: Ray's session folder.")
    ] = None,
    health_interval: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How often the health of the agents is checked: 5m."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            help="Port or host:port of its HTTP API; off: there is none. Default: 127.0.0.1:8090."
        ),
    ] = None,
    http_base_path: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="The path below which a proxy serves its HTTP API and page."
        ),
    ] = "",
    http_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="The IP address of a proxy whose header X-Forwarded-User says who looks at the page. "
            "Repeatable.",
        ),
    ] = None,
    alerts: Annotated[
        str | None,
        typer.Option(help="A YAML file of alert rules and receivers; off: there are no alerts."),
    ] = None,
    traces: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where attempts that have ended are sent as OpenTelemetry traces, such as "
            "http://collector:4318/v1/traces.",
        ),
    ] = None,
    auth: Annotated[
        str, typer.Option(help="token: every call needs a token; off: calls over Ray need none.")
    ] = "off",
) -> None:
    """Start a detached scheduler on the cluster's head node, or find it running."""
    from schedulemesh.cli.alerts import alert_settings
    from schedulemesh.cli.ray_gateway import on_ray
    from schedulemesh.config.settings import HistorySettings
    from schedulemesh.config.traces import TraceSettings
    from schedulemesh.core.client.head import ScheduleMeshHead
    from schedulemesh.errors import InvalidRequestError

    if auth not in ("off", "token"):
        raise InvalidRequestError(f"--auth is {auth!r}; allowed are token and off")
    with on_ray(target.address):
        api = _http_address(target, http)
        http_settings = {"address": api, "base_path": http_base_path, "proxies": http_proxy or ()}
        head = ScheduleMeshHead(
            target.name,
            namespace=target.namespace,
            state_path=state_path,
            health_interval_s=(
                None if health_interval is None else seconds(health_interval, "--health-interval")
            ),
            http=None if api is None else http_settings,
            alerts=alert_settings(alerts),
            history=None
            if traces is None
            else HistorySettings(traces=TraceSettings(endpoint=traces)),
            auth=None if auth == "off" else auth,
        )
        about = head.start()
    name, namespace = about["name"], about["namespace"]
    print(phrase("scheduler_alive", name=name, epoch=about["epoch"], pid=about["pid"]))
    print(phrase("journal_at", path=about["journal"]))
    print(phrase("attach_with", code=f"RayScheduler.attach({name!r}, namespace={namespace!r})"))


def _http_address(target: Target, http: str | None) -> str | None:
    """Where the HTTP API of a scheduler is to listen; ``http``: what was said. None: nowhere, or where it
    listens already.
    """
    from schedulemesh.core.client.connection import living_schedulers
    from schedulemesh.core.client.scheduler_list import chosen_scheduler

    if http is not None:
        return None if http == "off" else http
    name, namespace = chosen_scheduler(target.name, target.namespace)
    lives = (namespace or DEFAULT_NAMESPACE, name) in living_schedulers()
    return None if lives else f"{DEFAULT_HOST}:{DEFAULT_PORT}"


@command(app)
def stop(target: Target, yes: Yes = False) -> int:
    """End a scheduler with all its agents, and delete its journal."""
    from schedulemesh.cli.exits import ExitCode
    from schedulemesh.cli.ray_gateway import on_ray
    from schedulemesh.core.client.head import ScheduleMeshHead
    from schedulemesh.domain.sentences import say

    with on_ray(target.address):
        head = ScheduleMeshHead(target.name, namespace=target.namespace)
        about, name = head.health(), head.name
        if about["alive"]:
            question = say("end_scheduler", name=name, agents=about["agents"])
        elif about["registered"]:
            note(in_commands(about["error"]))
            question = say("end_rest_of_scheduler", name=name)
        else:
            note(in_commands(about["error"]))
            return ExitCode.NOT_FOUND
        if not yes and not typer.confirm(spoken(question)):
            return ExitCode.FAILED
        head.stop()
    print(spoken(say("scheduler_has_ended", name=name)))
    return ExitCode.OK


@command(app)
def orphans(
    target: Target,
    view: View,
    end: Annotated[
        list[str] | None, typer.Option(help="End the orphaned actor of this name; repeatable.")
    ] = None,
    end_all: Annotated[bool, typer.Option("--end-all", help="End all of them.")] = False,
    yes: Yes = False,
) -> int:
    """List or end orphans: actors and placement groups that a restored journal does not know."""
    from schedulemesh.cli.exits import ExitCode
    from schedulemesh.cli.ray_gateway import attached

    if end and end_all:
        note("give --end or --end-all, not both")
        return ExitCode.USAGE
    with attached(target) as scheduler:
        if end or end_all:
            return _end_orphans(scheduler, end, yes=yes)
        repeat(view, lambda: _orphans(scheduler))
    return ExitCode.OK


def _orphans(scheduler: RayScheduler) -> Listing:
    rows = scheduler.list_orphans()["orphans"]
    return Listing(kind="orphans", rows=rows, columns=ORPHANS)


def _end_orphans(scheduler: RayScheduler, names: Sequence[str] | None, *, yes: bool) -> int:
    """End the orphans with these names, or all; the exit code."""
    from schedulemesh.cli.exits import ExitCode
    from schedulemesh.domain.sentences import say

    rows = scheduler.list_orphans()["orphans"]
    actors = [orphan["name"] for orphan in rows if orphan["kind"] == "actor"]
    if unknown := [name for name in names or () if name not in actors]:
        note(f"{unknown[0]!r} is no orphaned actor; there are {', '.join(actors) or 'none'}")
        return ExitCode.NOT_FOUND
    question = say("end_orphans", count=len(names or actors))
    if not yes and not typer.confirm(spoken(question)):
        return ExitCode.FAILED
    ended = scheduler.end_orphans(names or None)["ended"]
    print(f"ended: {', '.join(ended) or 'nothing'}")
    return ExitCode.OK


@app.command("help")
def show_help(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="A command, such as submit or `pools set`."),
    ] = None,
    lang: Speech = None,  # noqa: ARG001  # what asks for help is looked at before: asks_for_chinese_help
) -> None:
    """Show what the commands do, or what one of them does and takes."""
    context = ctx.find_root()
    for name in names or ():
        group = context.command
        found_command = group.commands.get(name) if isinstance(group, TyperGroup) else None
        if found_command is None:
            command_names = sorted(group.commands) if isinstance(group, TyperGroup) else ()
            note(
                f"there is no command {name!r}{nearest(name, command_names)}; `schedulemesh help` lists all"
            )
            raise typer.Exit(2)
        context = found_command.context_class(found_command, info_name=name, parent=context)
    print(context.get_help())


@command(app)
def version(output: Output) -> None:
    """Show the versions of ScheduleMesh, Ray and Python."""
    import platform
    from importlib import metadata

    try:
        ray_version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        ray_version = None
    facts = {
        "schedulemesh": __version__,
        "ray": ray_version,
        "python": platform.python_version(),
    }
    emit(Record(facts=facts, name="schedulemesh"), output)
