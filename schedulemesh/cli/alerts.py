"""The commands alerts and alerts test: what fires, is pending and was resolved, and whether it is heard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.command import Output, Select, Target, View, command, group
from schedulemesh.cli.language import phrase
from schedulemesh.cli.output import emit, show
from schedulemesh.cli.rows import Column, Listing
from schedulemesh.cli.texts import labels, local_time

if TYPE_CHECKING:
    from yaml import YAMLError

    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()
alerts_app = typer.Typer()
app.add_typer(alerts_app, name="alerts")


@group(alerts_app)
def alerts(target: Target, view: View, select: Select) -> None:
    """Show the alerts that fire or are pending, and the last that were resolved."""
    from schedulemesh.api.metrics import AlertInfo, GetAlerts
    from schedulemesh.protocol.answers import Listed

    def listing(gateway: Gateway) -> Listing:
        rows = gateway.ask(GetAlerts(), Listed).rows
        return Listing(kind="alerts", rows=rows, columns=_COLUMNS, row=AlertInfo, name="id")

    show(target, view, listing, select)


@command(alerts_app, "test")
def send_test(
    target: Target,
    output: Output,
    receiver: Annotated[
        str | None,
        typer.Argument(help="The name of one receiver; all if left out.", show_default=False),
    ] = None,
) -> int:
    """Send every receiver of alerts a test message; fails if one does not accept it."""
    from schedulemesh.api.metrics import SendTestAlert
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.protocol.answers import Details

    with gateway_to(target) as gateway:
        answer = gateway.ask(SendTestAlert(receiver=receiver), Details).facts
    deliveries = Listing(
        kind="deliveries", rows=answer["deliveries"], columns=_DELIVERIES, name="receiver"
    )
    emit(deliveries, output)
    return 1 if answer["failed"] else 0


def alert_settings(path: str | None) -> Any:
    """The argument ``alerts`` of a scheduler from a YAML file; "off": none. Raises InvalidRequestError."""
    from pathlib import Path

    import yaml

    from schedulemesh.cli.yaml_files import load
    from schedulemesh.errors import InvalidRequestError

    if path is None or path == "off":
        return None if path is None else False
    try:
        settings = load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidRequestError(f"{path} cannot be read: {why}") from None
    except yaml.YAMLError as error:
        raise InvalidRequestError(f"{path} is no YAML: {_problem(error)}") from None
    if settings is not None and not isinstance(settings, dict):
        raise InvalidRequestError(f"{path} must have fields, such as rules and webhooks")
    return settings or {}


def _problem(error: YAMLError) -> str:
    """What is wrong and where, without the line itself, which may contain a secret."""
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
    return f"{getattr(error, 'problem', None) or type(error).__name__}{where}"


def _value(value: float | None) -> str:
    return "∞" if value is None else f"{value:.6g}"


def _outcome(accepted: bool) -> str:
    return phrase("cell_accepted" if accepted else "cell_failed")


_DELIVERIES = (
    Column(heading="receiver", key="receiver"),
    Column(heading="test message", key="accepted", show=_outcome),
    Column(heading="error", key="error"),
)
_COLUMNS = (
    Column(heading="state", key="state"),
    Column(heading="severity", key="severity"),
    Column(heading="rule", key="rule"),
    Column(heading="labels", key="labels", show=labels),
    Column(heading="value", key="value", show=_value, right=True),
    Column(heading="threshold", key="threshold", show=_value, wide=True, right=True),
    Column(heading="since", key="active_at", show=local_time),
    Column(heading="summary", key="summary", wide=True),
    Column(heading="what to do", key="action", wide=True),
    Column(heading="id", key="id", wide=True),
)
