"""The commands apply, diff and export: cohorts, pools, policies, tokens and windows in one YAML file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.command import Format, Output, Target, command, group, note
from schedulemesh.cli.language import spoken
from schedulemesh.cli.output import emit
from schedulemesh.cli.rows import Column, Listing, Record
from schedulemesh.cli.texts import data, field_name
from schedulemesh.domain.sentences import Sentence, Text, say

if TYPE_CHECKING:
    from schedulemesh.cli.declaration import Declaration
    from schedulemesh.cli.declared_pools import PoolPlan
    from schedulemesh.cli.declared_tokens import TokenPlan
    from schedulemesh.cli.declared_windows import WindowPlan
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()

File = Annotated[str, typer.Option("--file", "-f", help="The YAML file; -: stdin.")]


def _kind_name(kind: str) -> str:
    """What something is that a file declares, in the language of this command."""
    return field_name(kind)


def _setting(value: object) -> str:
    """What a field is or becomes, or what becomes of the whole."""
    return spoken(value) if isinstance(value, Sentence) else data(value)


_APPLIED = (
    Column(heading="kind", key="kind", show=_kind_name),
    Column(heading="name", key="name"),
    Column(heading="result", key="result", show=spoken),
)
_DIFFERENCES = (
    Column(heading="kind", key="kind", show=_kind_name),
    Column(heading="name", key="name"),
    Column(heading="field", key="field"),
    Column(heading="current", key="current", show=_setting),
    Column(heading="declared", key="declared", show=_setting),
)


@command(app)
def apply(
    target: Target,
    output: Output,
    file: File,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
    secrets: Annotated[
        str | None,
        typer.Option(
            "--secrets",
            metavar="FOLDER",
            help="Where the secret of each token that is created is written.",
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Delete pools and windows, and revoke tokens, that the file leaves out where it has a list.",
        ),
    ] = False,
    drain: Annotated[
        bool,
        typer.Option("--drain", help="With --prune: also pools in use, as pools delete --drain."),
    ] = False,
) -> None:
    """Create and change the cohorts, pools, policies, tokens and windows that a file declares.

    What the file leaves out stays as it is. With --prune, pools, windows and tokens that it leaves out are
    deleted and revoked, where it has a list `pools`, `windows` or `tokens`; --dry-run names them, and what
    uses each pool.
    """
    from schedulemesh.cli import declaration, declared_tokens
    from schedulemesh.cli.declared_pools import PoolPlan
    from schedulemesh.cli.declared_windows import WindowPlan
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.errors import InvalidRequestError

    declared = declaration.read(file)
    if prune and (declared.tokens, declared.windows, declared.lists_pools) == (None, None, False):
        raise InvalidRequestError(
            "--prune deletes the pools and windows and revokes the tokens that the file leaves out, and it "
            "has none of the lists `pools`, `windows` and `tokens`"
        )
    if drain and not prune:
        raise InvalidRequestError("--drain is for pools that --prune deletes; give both")
    with gateway_to(target) as gateway:
        plan = None
        if declared.tokens is not None:
            own_hash = declared_tokens.own_hash(gateway) if prune else None
            plan = declared_tokens.TokenPlan.of(
                gateway, declared.tokens, prune=prune, own_hash=own_hash
            )
        pools = None
        if prune and declared.lists_pools:
            pools = PoolPlan.of(gateway, declared.pools, drain=drain)
        windows = None
        if declared.windows is not None:
            windows = WindowPlan.of(gateway, declared.windows, prune=prune)
        if dry_run:
            emit(difference_listing(gateway, declared, plan, pools, windows), output)
        else:
            emit(applied(gateway, declared, plan, secrets, pools, windows), output)


@command(app)
def diff(target: Target, output: Output, file: File) -> int:
    """Show how a file differs from what the scheduler has; fails if it does."""
    from schedulemesh.cli import declaration
    from schedulemesh.cli.gateway import gateway_to

    declared = declaration.read(file)
    with gateway_to(target) as gateway:
        differences = difference_listing(gateway, declared)
    emit(differences, output)
    return 1 if differences.rows else 0


exports = typer.Typer(help="Print files for other programs.")
app.add_typer(exports, name="export")

Form = Annotated[Format, typer.Option("--output", "-o", help="yaml or json.", case_sensitive=False)]


@group(exports)
def export(target: Target, output: Form = Format.YAML) -> None:
    """Print what a scheduler has as a file for apply, as export config does."""
    _export_config(target, output)


@command(exports)
def config(target: Target, output: Form = Format.YAML) -> None:
    """Print the cohorts, pools, policies, tokens and windows of a scheduler as a file for apply.

    Without secrets; tokens only for operators.
    """
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

    parsed_settings = parse_alert_settings(alert_settings(settings), None)
    print(rules_file(effective_rules(parsed_settings), parsed_settings.interval_s), end="")


@command(exports)
def dashboard() -> None:
    """Print a dashboard for Grafana as JSON; it needs no scheduler."""
    from schedulemesh.metrics import dashboard as grafana

    print(grafana.dashboard(), end="")


def _export_config(target: Target, output: Format) -> None:
    from schedulemesh.cli import declaration
    from schedulemesh.cli.exits import ExitCode, RefusedError, code_of
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.errors import InvalidRequestError, NotAllowedError

    if output not in (Format.YAML, Format.JSON):
        raise InvalidRequestError(f"a file is exported as yaml or json, not {output.value}")
    with gateway_to(target) as gateway:
        try:
            current = declaration.current(gateway, tokens=True)
        except (RefusedError, NotAllowedError) as error:
            if code_of(error) is not ExitCode.NOT_ALLOWED:
                raise
            note(f"without tokens: {error}")
            current = declaration.current(gateway)
    emit(Record(facts=current.public()), Output(output=output))


def difference_listing(
    gateway: Gateway,
    declared: Declaration,
    plan: TokenPlan | None = None,
    pools: PoolPlan | None = None,
    windows: WindowPlan | None = None,
) -> Listing:
    """The fields that are declared and different, and the pools, tokens and windows that plans remove."""
    from dataclasses import replace

    from schedulemesh.cli import declaration, declared_windows

    current = declaration.current(gateway, tokens=declared.tokens is not None)
    declared_now = declared_windows.upcoming(gateway, declared.windows or {}, current.windows or {})
    rows = declaration.differences(replace(declared, windows=declared_now), current)
    if pools is not None:
        rows += pools.differences()
    if windows is not None:
        rows += windows.differences()
    for name in () if plan is None else plan.revoked:
        row = {"kind": "token", "name": name, "field": "", "current": say("declared_exists")}
        rows.append({**row, "declared": say("declared_revoked")})
    return Listing(kind="differences", rows=rows, columns=_DIFFERENCES)


def applied(
    gateway: Gateway,
    declared: Declaration,
    plan: TokenPlan | None = None,
    secrets: str | None = None,
    pools: PoolPlan | None = None,
    windows: WindowPlan | None = None,
) -> Listing:
    """What became of each thing that a file declares. Raises RefusedError at the first that is refused.

    ``plan``: how its tokens are changed. ``secrets``: the folder for the secrets of those that are created.
    ``windows``: how its windows are changed. ``pools``: which pools are deleted, last of all.
    """
    from schedulemesh.api.pools import EnsurePool
    from schedulemesh.cli import declaration
    from schedulemesh.cli.changes import noted_result
    from schedulemesh.cli.policy import set_policies
    from schedulemesh.protocol.answers import PoolResponse, Response

    rows: list[dict[str, Any]] = []
    folder = None if plan is None else plan.folder_for(secrets)

    def add(kind: str, name: str, result: Text) -> None:
        rows.append({"kind": kind, "name": name, "result": result})

    for name in declaration.parents_first(declared.cohorts):
        request = declaration.cohort_request(name, declared.cohorts[name])
        add("cohort", name, noted_result(gateway.ask(request, Response)))
    for name, fields in declared.pools.items():
        answer = gateway.ask(EnsurePool(**declaration.pool_changes(name, fields)), PoolResponse)
        add("pool", name, noted_result(answer))
    before = declaration.current(gateway)
    same = {"preemption": before.preemption, "queue": before.queue}
    for name, fields in set_policies(gateway, declared.preemption, declared.queue).items():
        add(
            "policy",
            name,
            say("result_code", code="unchanged" if fields == same[name] else "changed"),
        )
    for name, result in () if plan is None else plan.carry_out(gateway, folder):
        add("token", name, result)
    for name, result in () if windows is None else windows.carry_out(gateway):
        add("window", name, result)
    for name, result in () if pools is None else pools.carry_out(gateway):
        add("pool", name, result)
    return Listing(kind="changes", rows=rows, columns=_APPLIED)
