"""The command metrics: what the scheduler counted and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.command import Select, Target, View, command
from schedulemesh.cli.output import show
from schedulemesh.cli.rows import Column, Listing

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()

Prometheus = Annotated[
    bool,
    typer.Option("--prometheus", help="Print the Prometheus text format, all metrics as they are."),
]


@command(app)
def metrics(target: Target, view: View, select: Select, prometheus: Prometheus = False) -> None:
    """Show the metrics: counts, amounts and mean latencies by pool, agent and node."""
    if prometheus:
        _print_text(target)
    else:
        show(target, view, lambda gateway: metric_listing(_text(gateway)), select)


def metric_listing(text: str) -> Listing:
    """One row per value; of a histogram its mean."""
    return Listing(kind="metrics", rows=list(_rows(text)), columns=_COLUMNS)


def _print_text(target: Target) -> None:
    from schedulemesh.cli.gateway import gateway_to

    with gateway_to(target) as gateway:
        print(_text(gateway), end="")


def _text(gateway: Gateway) -> str:
    from schedulemesh.protocol.answers import Details
    from schedulemesh.protocol.metric_requests import GetMetrics

    return str(gateway.ask(GetMetrics(), Details).facts["text"])


def _rows(text: str) -> list[dict[str, Any]]:
    from schedulemesh.metrics.catalogue import CATALOGUE
    from schedulemesh.metrics.reading import samples_in

    return [
        {"name": name, "labels": labels, "value": value, "unit": CATALOGUE[name].unit}
        for name, labels, value in samples_in(text)
    ]


def _labels(labels: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items() if value)


_COLUMNS = (
    Column(heading="metric", key="name"),
    Column(heading="labels", key="labels", show=_labels),
    Column(heading="value", key="value", show=lambda value: f"{value:.6g}", right=True),
    Column(heading="unit", key="unit", wide=True),
)
