"""The commands policy get, set, diff and history: the policies of preemption and of the queue."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.command import Output, Select, Since, Target, View, command, note
from schedulemesh.cli.language import language
from schedulemesh.cli.output import emit, show
from schedulemesh.cli.root import Subcommands
from schedulemesh.cli.rows import Column, Listing, Row
from schedulemesh.cli.texts import data, local_time, moment

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()
policy = typer.Typer(
    cls=Subcommands, no_args_is_help=True, help="The policies of preemption and of the queue."
)
app.add_typer(policy, name="policy")


def _assigned(changes: Row) -> str:
    return "\n".join(f"{field}={data(value)}" for field, value in changes.items())


_FIELDS = (
    Column(heading="policy", key="policy"),
    Column(heading="field", key="field"),
    Column(heading="value", key="value", show=data),
)
_DEFAULTS = (*_FIELDS, Column(heading="default", key="default", show=data))
_CHANGES = (
    Column(heading="time", key="timestamp", show=local_time),
    Column(heading="client", key="client"),
    Column(heading="changes", key="changes", show=_assigned),
)


@command(policy, "get")
def get(target: Target, view: View, select: Select) -> None:
    """Show every field of the policies."""

    def look(gateway: Gateway) -> Listing:
        return _listing(_rows(gateway))

    show(target, view, look, select)


def _listing(rows: list[dict[str, Any]], columns: tuple[Column, ...] = _FIELDS) -> Listing:
    return Listing(kind="fields", rows=rows, columns=columns, name="field")


def _rows(gateway: Gateway) -> list[dict[str, Any]]:
    from schedulemesh.cli import declaration

    current = declaration.current(gateway)
    return _fields({"preemption": current.preemption, "queue": current.queue})


def _fields(policies: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"policy": name, "field": field, "value": value}
        for name, fields in policies.items()
        for field, value in fields.items()
    ]


@command(policy, "set")
def set_fields(
    target: Target,
    output: Output,
    changes: Annotated[
        list[str], typer.Argument(metavar="FIELD=VALUE…", help="Fields, with values as in YAML.")
    ],
) -> None:
    """Change fields of the policies; preemption_aggressiveness=LEVEL sets two thresholds."""
    from schedulemesh.cli.changes import assignments
    from schedulemesh.cli.declaration import QUEUE_FIELDS
    from schedulemesh.cli.gateway import gateway_to

    assigned = assignments(changes)
    queue = {field: value for field, value in assigned.items() if field in QUEUE_FIELDS}
    preemption = {field: value for field, value in assigned.items() if field not in queue}
    with gateway_to(target) as gateway:
        policies = set_policies(gateway, preemption, queue)
    emit(_listing(_fields(policies)), output)


def set_policies(gateway: Gateway, preemption: Row, queue: Row) -> dict[str, dict[str, Any]]:
    """Change these fields; returns those policies, whole, of which fields were given."""
    from schedulemesh.api.policies import ChangePolicy, ChangeQueuePolicy
    from schedulemesh.api.values import client_name
    from schedulemesh.cli.declaration import normal_preemption, normal_queue
    from schedulemesh.cli.wording import in_commands
    from schedulemesh.config.changes import without_null
    from schedulemesh.config.policy import PreemptionPolicy, resolve_changes
    from schedulemesh.config.queueing import QueuePolicy
    from schedulemesh.protocol.answers import Details
    from schedulemesh.protocol.wording import translated

    resolved, level = resolve_changes(without_null(preemption, PreemptionPolicy()), os.environ)
    resolved = normal_preemption(resolved)
    queue = normal_queue(without_null(queue, QueuePolicy()))
    client, policies = client_name(), {}
    if resolved:
        request = ChangePolicy(changes=resolved, client=client, level=level)
        facts = gateway.ask(request, Details).facts
        policies["preemption"] = facts["policy"]
        for warning in translated(facts, language()).get("warnings", ()):
            note(in_commands(warning))
    if queue:
        ordered = ChangeQueuePolicy(changes=queue, client=client)
        policies["queue"] = gateway.ask(ordered, Details).facts["policy"]
    return policies


@command(policy, "diff")
def diff(target: Target, view: View, select: Select) -> None:
    """Show the fields of the policies that do not have their default values."""

    def look(gateway: Gateway) -> Listing:
        from schedulemesh.config.policy import PreemptionPolicy
        from schedulemesh.config.queueing import QueuePolicy

        defaults = {"preemption": PreemptionPolicy().public(), "queue": QueuePolicy().public()}
        rows = [
            {**row, "default": default}
            for row in _rows(gateway)
            if row["value"] != (default := defaults[row["policy"]][row["field"]])
        ]
        return _listing(rows, _DEFAULTS)

    show(target, view, look, select)


@command(policy, "history")
def history(target: Target, view: View, select: Select, since: Since = None) -> None:
    """List the last changes of the preemption policy, oldest first: when, by whom, what."""
    from schedulemesh.api.policies import GetPolicy
    from schedulemesh.protocol.answers import Details

    after = None if since is None else moment(since)

    def look(gateway: Gateway) -> Listing:
        changes = gateway.ask(GetPolicy(), Details).facts["changes"]
        rows = [row for row in changes if after is None or row["timestamp"] >= after]
        return Listing(kind="changes", rows=rows, columns=_CHANGES, name="client")

    show(target, view, look, select)
