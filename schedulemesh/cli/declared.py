"""The commands apply, diff and export: cohorts, pools and policies in one YAML file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.command import Format, Output, Target, command, group
from schedulemesh.cli.output import emit
from schedulemesh.cli.rows import Column, Listing, Record
from schedulemesh.cli.texts import data

if TYPE_CHECKING:
    from schedulemesh.cli.declaration import Declaration
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()

File = Annotated[str, typer.Option("--file", "-f", help="The YAML file; -: stdin.")]


_APPLIED = (
    Column(heading="kind", key="kind"),
    Column(heading="name", key="name"),
    Column(heading="result", key="result"),
)
_DIFFERENCES = (
    Column(heading="kind", key="kind"),
    Column(heading="name", key="name"),
    Column(heading="field", key="field"),
    Column(heading="current", key="current", show=data),
    Column(heading="declared", key="declared", show=data),
)


@command(app)
def apply(
    target: Target,
    output: Output,
    file: File,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
) -> None:
    """Create and change the cohorts, pools and policies that a file declares.

    What the file leaves out stays as it is; nothing is removed.
    """
    from schedulemesh.cli import declaration
    from schedulemesh.cli.gateway import gateway_to

    wanted = declaration.read(file)
    with gateway_to(target) as gateway:
        if dry_run:
            emit(difference_listing(gateway, wanted), output)
        else:
            emit(applied(gateway, wanted), output)


@command(app)
def diff(target: Target, output: Output, file: File) -> int:
    """Show how a file differs from what the scheduler has; fails if it does."""
    from schedulemesh.cli import declaration
    from schedulemesh.cli.gateway import gateway_to

    wanted = declaration.read(file)
    with gateway_to(target) as gateway:
        found = difference_listing(gateway, wanted)
    emit(found, output)
    return 1 if found.rows else 0


exports = typer.Typer(help="Print files for other programs.")
app.add_typer(exports, name="export")

Form = Annotated[Format, typer.Option("--output", "-o", help="yaml or json.", case_sensitive=False)]


@group(exports)
def export(target: Target, output: Form = Format.YAML) -> None:
    """Print the cohorts, pools and policies of a scheduler as a file for apply, as export config does."""
    _export_config(target, output)


@command(exports)
def config(target: Target, output: Form = Format.YAML) -> None:
    """Print the cohorts, pools and policies of a scheduler as a file for apply."""
    _export_config(target, output)


@command(exports)
def alerts(
    settings: Annotated[
        str | None,
        typer.Option("--settings", help="The file that start --alerts is given; default: none."),
    ] = None,
) -> None:
    """Print the alert rules as a rules file for Prometheus; it needs no scheduler."""
    from schedulemesh.cli.alerts import alert_settings
    from schedulemesh.config.alerts import parse_alert_settings
    from schedulemesh.metrics.alert_files import rules_file
    from schedulemesh.metrics.alert_rules import effective_rules

    given = parse_alert_settings(alert_settings(settings), None)
    print(rules_file(effective_rules(given), given.interval_s), end="")


@command(exports)
def dashboard() -> None:
    """Print a dashboard for Grafana as JSON; it needs no scheduler."""
    from schedulemesh.metrics import dashboard as grafana

    print(grafana.dashboard(), end="")


def _export_config(target: Target, output: Format) -> None:
    from schedulemesh.cli import declaration
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.errors import InvalidRequestError

    if output not in (Format.YAML, Format.JSON):
        raise InvalidRequestError(f"a file is exported as yaml or json, not {output.value}")
    with gateway_to(target) as gateway:
        found = declaration.current(gateway).public()
    emit(Record(facts=found), Output(output=output))


def difference_listing(gateway: Gateway, wanted: Declaration) -> Listing:
    """The fields that are declared and different."""
    from schedulemesh.cli import declaration

    rows = declaration.differences(wanted, declaration.current(gateway))
    return Listing(kind="differences", rows=rows, columns=_DIFFERENCES)


def applied(gateway: Gateway, wanted: Declaration) -> Listing:
    """What became of each thing that a file declares. Raises RefusedError at the first that is refused."""
    from schedulemesh.cli import declaration
    from schedulemesh.cli.changes import changed_result
    from schedulemesh.cli.policy import set_policies
    from schedulemesh.protocol.answers import PoolResponse, Response

    rows: list[dict[str, Any]] = []

    def add(kind: str, name: str, result: str) -> None:
        rows.append({"kind": kind, "name": name, "result": result})

    for name in declaration.parents_first(wanted.cohorts):
        request = declaration.cohort_request(name, wanted.cohorts[name])
        add("cohort", name, changed_result(gateway.ask(request, Response)))
    for name, fields in wanted.pools.items():
        answer = gateway.ask(declaration.pool_request(name, fields), PoolResponse)
        add("pool", name, changed_result(answer))
    before = declaration.current(gateway)
    same = {"preemption": before.preemption, "queue": before.queue}
    for name, fields in set_policies(gateway, wanted.preemption, wanted.queue).items():
        add("policy", name, "unchanged" if fields == same[name] else "changed")
    return Listing(kind="changes", rows=rows, columns=_APPLIED)
