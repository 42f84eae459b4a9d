"""Usage: GPU-hours, waiting and lost work by pool, owner or label, in sum and over time, also as CSV; and
budgets, where there are any.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams

from schedulemesh.api.history import GROUPINGS, QueryUsage
from schedulemesh.api.pools import ListBudgets, ListPools
from schedulemesh.domain.names import parse_name
from schedulemesh.server.listings import Row
from schedulemesh.server.page.asked_for import word_in
from schedulemesh.server.page.colors import COLORS, colors_of
from schedulemesh.server.page.links import link
from schedulemesh.server.page.periods import Period, period
from schedulemesh.server.page.reads import ScreenReads, together
from schedulemesh.store.history.export import write_csv_rows

#: The periods that may be chosen, and into how many parts each is drawn.
_PARTS: Mapping[str, int] = {"24h": 12, "7d": 7, "30d": 30}
_HOUR_S = 3600.0
#: The measures of the picture, and the part of a column between two.
_HEIGHT, _FOOT, _BETWEEN = 160, 20, 0.08
#: The figures of a row, in the order of the file.
FIGURES = (
    "gpu_hours",
    "cpu_hours",
    "memory_gb_hours",
    "waiting_hours",
    "lost_hours",
    "lost_gpu_hours",
    "started",
    "completed",
    "failed",
    "cancelled",
    "lost",
    "preempted",
)


class UsagePart(NamedTuple):
    """What one of the rows used in a part of the period: from the left in per cent of the picture's width,
    so that all of it is seen however wide that is.
    """

    x: float
    y: float
    width: float
    height: float
    style: str
    title: str


class UsagePicture(NamedTuple):
    """GPU-hours over time."""

    height: int
    parts: Sequence[UsagePart]
    #: Times on the axis, from the left in per cent.
    marks: Sequence[tuple[float, str]]
    #: The most of one part, in GPU-hours.
    most: float


async def usage(reader: ScreenReads, query: QueryParams) -> Mapping[str, Any]:
    """What the template ``usage.html`` shows. Raises InvalidRequestError."""
    chosen = await _chosen(reader, query)
    budgets, pools, totals, *parts = await together(
        reader.rows(ListBudgets()),
        reader.rows(ListPools()),
        _rows(reader, chosen, chosen.period.since, chosen.period.until),
        *(_rows(reader, chosen, since, until) for since, until in _parts_of(chosen.period)),
    )
    styles = _styles([row[chosen.by] for row in totals], chosen.by, pools)
    here = [("by", chosen.by), ("label_key", chosen.label_key), ("span", chosen.period.span)]
    return {
        "rows": totals,
        "budgets": budgets,
        "by": chosen.by,
        "groupings": GROUPINGS,
        "label_key": chosen.label_key,
        "period": chosen.period,
        "spans": tuple(_PARTS),
        "sum": sum(row["gpu_hours"] for row in totals),
        "style_of": styles,
        "picture": usage_picture(parts, chosen.period, chosen.by, styles),
        "csv": link("/usage.csv", *here),
    }


async def usage_csv(reader: ScreenReads, query: QueryParams) -> str:
    """The rows of the screen as CSV. Raises InvalidRequestError."""
    chosen = await _chosen(reader, query)
    rows = await _rows(reader, chosen, chosen.period.since, chosen.period.until)
    file = io.StringIO()
    columns = (chosen.by, *FIGURES)
    write_csv_rows(file, [columns, *([row[column] for column in columns] for row in rows)])
    return file.getvalue()


class _Chosen(NamedTuple):
    by: str
    label_key: str
    period: Period


async def _chosen(reader: ScreenReads, query: QueryParams) -> _Chosen:
    by = word_in(reader, query, "by", GROUPINGS) or GROUPINGS[0]
    label_key = query.get("label_key", "").strip() if by == "label" else ""
    span = word_in(reader, query, "span", _PARTS)
    now = await reader.now()
    # Whole hours, as use is summed up by them.
    end = (now // _HOUR_S + 1.0) * _HOUR_S
    shown = period(QueryParams([("span", span)]), end, "7d")
    return _Chosen(by, label_key and parse_name(label_key, "label_key"), shown)


async def _rows(reader: ScreenReads, chosen: _Chosen, since: float, until: float) -> Sequence[Row]:
    """What was used in a time, most GPU-hours first. Raises InvalidRequestError."""
    call = QueryUsage(
        by=chosen.by, label=chosen.label_key or None, since=since, until=until, at_once=True
    )
    rows: Sequence[Row] = (await reader.facts(call))["usage"]
    # Those of no owner, or without the label, have none.
    return sorted(
        rows, key=lambda row: (-row["gpu_hours"], -row["cpu_hours"], row[chosen.by] or "")
    )


def _parts_of(shown: Period) -> list[tuple[float, float]]:
    count = _PARTS[shown.span]
    length = shown.length_s / count
    return [
        (shown.since + number * length, shown.since + (number + 1) * length)
        for number in range(count)
    ]


def _styles(names: Sequence[str], by: str, pools: Sequence[Row]) -> dict[str, str]:
    """The colour of each row: of a pool its own; of others by their places, where those that come later
    share the last.
    """
    if by == "pool":
        colors = colors_of((str(pool["name"]) for pool in pools), names)
    else:
        colors = {name: min(number, COLORS - 1) for number, name in enumerate(names)}
    return {name: f"color-{colors[name]}" for name in names}


def usage_picture(
    parts: Sequence[Sequence[Row]], shown: Period, by: str, styles: Mapping[str, str]
) -> UsagePicture:
    """A column for each part of the period, of what each of these names used in it, in its colour."""
    sums = [sum(row["gpu_hours"] for row in rows) for rows in parts]
    most = max(sums, default=0.0)
    step = 100.0 / max(len(parts), 1)
    drawn: list[UsagePart] = []
    for number, rows in enumerate(parts):
        used, y = {row[by]: row["gpu_hours"] for row in rows}, float(_HEIGHT)
        for name, style in styles.items():
            if most <= 0.0 or (amount := used.get(name, 0.0)) <= 0.0:
                continue
            height = _HEIGHT * amount / most
            y -= height
            drawn.append(
                UsagePart(
                    x=round((number + _BETWEEN / 2) * step, 2),
                    y=round(y, 2),
                    width=round((1.0 - _BETWEEN) * step, 2),
                    height=round(height, 2),
                    style=style,
                    title=f"{name} {amount:,.1f}",
                )
            )
    marks = [
        (round(100.0 * (at - shown.since) / shown.length_s, 2), text) for at, text in shown.marks()
    ]
    return UsagePicture(_HEIGHT + _FOOT, drawn, marks, most)
