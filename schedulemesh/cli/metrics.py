"""The command metrics: what the scheduler counted and measured, and what agents reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.command import Select, Target, View, command
from schedulemesh.cli.output import show, write_utf8
from schedulemesh.cli.rows import Column, Listing

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()

Prometheus = Annotated[
    bool,
    typer.Option("--prometheus", help="Print the Prometheus text format, all metrics as they are."),
]

Agents = Annotated[
    bool, typer.Option("--agents", help="Also what each agent really uses of CPU, memory and GPUs.")
]
By = Annotated[
    str | None,
    typer.Option("--by", help="Show what agents have reported, by agent, pool or label."),
]


@command(app)
def metrics(
    target: Target,
    view: View,
    select: Select,
    prometheus: Prometheus = False,
    agents: Agents = False,
    by: By = None,
) -> None:
    """Show the metrics: counts, amounts and mean latencies by pool, agent and node.

    With --by the numbers that agents have reported in the last minutes, aggregated.
    """
    if by is not None:
        show(target, view, lambda gateway: _reported(gateway, by), select)
    elif prometheus:
        _print_text(target, agents=agents)
    else:
        show(target, view, lambda gateway: metric_listing(_text(gateway, agents=agents)), select)


def metric_listing(text: str) -> Listing:
    """One row per value; of a histogram its mean."""
    return Listing(kind="metrics", rows=list(_rows(text)), columns=_COLUMNS)


def reported_listing(by: str, rows: list[dict[str, Any]]) -> Listing:
    """One row per metric of an agent, a pool or a label's value."""
    return Listing(kind="metrics", rows=rows, columns=(*_GROUPS[by], *_AGGREGATES), name="metric")


def _reported(gateway: Gateway, by: str) -> Listing:
    from schedulemesh.protocol.answers import Listed
    from schedulemesh.protocol.metric_requests import GetReportedMetrics

    return reported_listing(by, gateway.ask(GetReportedMetrics(by=by), Listed).rows)


def _print_text(target: Target, *, agents: bool) -> None:
    from schedulemesh.cli.gateway import gateway_to

    with gateway_to(target) as gateway:
        write_utf8(_text(gateway, agents=agents))


def _text(gateway: Gateway, *, agents: bool) -> str:
    from schedulemesh.protocol.answers import Details
    from schedulemesh.protocol.metric_requests import GetMetrics

    return str(gateway.ask(GetMetrics(agents=agents), Details).facts["text"])


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


def _amount(value: float) -> str:
    return f"{value:.4g}"


_GROUPS = {
    "agent": (
        Column(heading="agent", key="agent_name"),
        Column(heading="pool", key="pool_name", wide=True),
    ),
    "pool": (Column(heading="pool", key="pool_name"),),
    "label": (
        Column(heading="label", key="label"),
        Column(heading="value", key="label_value"),
    ),
}
_AGGREGATES = (
    Column(heading="metric", key="metric"),
    Column(heading="agents", key="agents", right=True, wide=True),
    Column(heading="count", key="count", right=True),
    *(
        Column(heading=name, key=name, show=_amount, right=True)
        for name in ("last", "mean", "min", "max", "p50", "p95")
    ),
)
