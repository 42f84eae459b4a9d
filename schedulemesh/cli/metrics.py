"""The command metrics: what the scheduler counted and measured, and what agents reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.command import Format, Select, Target, View, command
from schedulemesh.cli.language import phrase
from schedulemesh.cli.output import show, write_utf8
from schedulemesh.cli.rows import Column, Listing, Record
from schedulemesh.cli.texts import amounts, duration

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()

#: How the names of all metrics begin.
_PREFIX = "schedulemesh_"
_KINDS = ("cpu", "memory", "gpu")

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
    """Show how the scheduler fares in a dozen figures; with -o wide, a filter or as data, all metrics.

    With --by the numbers that agents have reported in the last minutes, aggregated.
    """
    if by is not None:
        show(target, view, lambda gateway: _reported(gateway, by), select)
    elif prometheus:
        _print_text(target, agents=agents)
    elif view.output is Format.TABLE and not (agents or select.everything):
        show(target, view, lambda gateway: summary(_text(gateway, agents=False)))
    else:
        _check_names(select)
        show(target, view, lambda gateway: metric_listing(_text(gateway, agents=agents)), select)


def _check_names(select: Select) -> None:
    """Raise InvalidRequestError for a filter by a metric that there is not."""
    from schedulemesh.errors import InvalidRequestError, nearest
    from schedulemesh.metrics.catalogue import CATALOGUE

    for condition in select.filters or ():
        field, _, name = condition.partition("=")
        if field in ("name", "metric") and name not in CATALOGUE:
            raise InvalidRequestError(
                f"there is no metric {name!r}{nearest(name, CATALOGUE)}; `schedulemesh metrics -o wide` "
                "lists them"
            )


def summary(text: str) -> Record:
    """The figures by which one sees how the scheduler fares, for the whole cluster."""
    totals = Totals(text)
    tasks = ", ".join(
        phrase("cell_counted", count=f"{totals.of('tasks', state=state):g}", what=state)
        for state in ("running", "starting", "preempting", "queued")
    )
    nodes = totals.by("nodes", "state")
    used, quota = (totals.by(f"pool_quota{part}", "resource") for part in ("_used", ""))
    lost, saved = (totals.of(f"{what}_work_gpu_seconds_total") for what in ("lost", "saved"))
    lines = [
        ("tasks", tasks),
        ("longest wait", duration(totals.most("queue_oldest_wait_seconds"))),
        ("mean wait", duration(totals.mean("queue_wait_seconds"))),
        ("submissions", _by_count(totals.by("submissions_total", "outcome"))),
        ("ended", _by_count(totals.by("tasks_ended_total", "state"))),
        ("preemptions", f"{totals.of('preemption_count'):g}"),
        ("GPU-hours", phrase("cell_work", lost=_hours(lost), saved=_hours(saved))),
        ("quota used", phrase("cell_part", used=_of_quota(used), total=_of_quota(quota))),
        ("nodes", _by_count(nodes)),
        ("decision", _in_ms(totals.mean("decision_seconds"))),
        ("journal write", _in_ms(totals.mean("journal_write_seconds"))),
        ("errors", f"{totals.of('journal_errors_total') + totals.of('loop_failures_total'):g}"),
        ("alerts", phrase("cell_firing", count=f"{totals.of('alerts', state='firing'):g}")),
    ]
    return Record(facts=dict(lines), lines=lines)


class Totals:
    """Sums over all pools, of the metrics of an exposition without the beginning of their names."""

    def __init__(self, text: str) -> None:
        from schedulemesh.metrics.reading import samples_in, times_in

        self._samples = list(samples_in(text))
        self._times = times_in(text)

    def of(self, name: str, **labels: str) -> float:
        """The sum of the values that have these labels."""
        return sum(value for _, value in self._chosen(name, labels))

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sums by the values of a label."""
        sums: dict[str, float] = {}
        for labels, value in self._chosen(name, {}):
            sums[labels[label]] = sums.get(labels[label], 0.0) + value
        return sums

    def most(self, name: str) -> float:
        """The largest value; 0: there is none."""
        return max((value for _, value in self._chosen(name, {})), default=0.0)

    def mean(self, name: str) -> float | None:
        """The mean of what was observed; None: nothing was."""
        total, count = self._times.get(_PREFIX + name, (0.0, 0.0))
        return total / count if count else None

    def _chosen(
        self, name: str, label_values: dict[str, str]
    ) -> list[tuple[dict[str, str], float]]:
        return [
            (labels, value)
            for metric, labels, value in self._samples
            if metric == _PREFIX + name and label_values.items() <= labels.items()
        ]


def _by_count(counts: dict[str, float]) -> str:
    parts = [
        phrase("cell_counted", count=f"{count:g}", what=what)
        for what, count in counts.items()
        if count
    ]
    return ", ".join(parts) or phrase("cell_none")


def _hours(gpu_seconds: float) -> str:
    return f"{gpu_seconds / 3600:.1f}"


def _of_quota(by_resource: dict[str, float]) -> str:
    custom = {name: amount for name, amount in by_resource.items() if name not in _KINDS}
    standard = {name: by_resource[name] for name in _KINDS if name in by_resource}
    return amounts({**standard, "custom": custom})


def _in_ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.2g} ms"


def metric_listing(text: str) -> Listing:
    """One row per value; of a histogram its mean."""
    return Listing(kind="metrics", rows=list(_rows(text)), columns=_COLUMNS)


def reported_listing(by: str, rows: list[dict[str, Any]]) -> Listing:
    """One row per metric of an agent, a pool or a label's value."""
    return Listing(kind="metrics", rows=rows, columns=(*_GROUPS[by], *_AGGREGATES), name="metric")


def _reported(gateway: Gateway, by: str) -> Listing:
    from schedulemesh.api.metrics import GetReportedMetrics
    from schedulemesh.protocol.answers import Listed

    return reported_listing(by, gateway.ask(GetReportedMetrics(by=by), Listed).rows)


def _print_text(target: Target, *, agents: bool) -> None:
    from schedulemesh.cli.gateway import gateway_to

    with gateway_to(target) as gateway:
        write_utf8(_text(gateway, agents=agents))


def _text(gateway: Gateway, *, agents: bool) -> str:
    from schedulemesh.api.metrics import GetMetrics
    from schedulemesh.protocol.answers import Details

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
