"""The timeline: what ran when and where, drawn as bars in time, and evictions as arrows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams

from schedulemesh.api.history import STATES, QueryHistory
from schedulemesh.api.pools import ListPools
from schedulemesh.domain.names import parse_name
from schedulemesh.server.listings import Row
from schedulemesh.server.page.asked_for import unknown_names, word_in
from schedulemesh.server.page.colors import colors_of
from schedulemesh.server.page.links import link, page_number
from schedulemesh.server.page.periods import SPANS, Period, period
from schedulemesh.server.page.reads import ScreenReads, together

#: The newest attempts that are looked at, and how many nodes or pools are drawn on a page.
_ATTEMPTS, _BANDS, _MOST_PAGES = 1_000, 25, 1_000
#: Measures of the picture: the names at the left, the time beside them, and the height of the axis, of a bar
#: and between two bands.
_NAMES, _WIDTH, _AXIS, _LANE, _GAP = 150, 1_070, 22, 14, 8
#: The least width of a bar.
_LEAST = 2.0
_FILTERS = ("pool_name", "owner")
#: By what is drawn: where something ran, or for whom.
_GROUPINGS = ("node", "pool")


class RunBar(NamedTuple):
    """An attempt as a bar in the band of a node or a pool."""

    row: Row
    x: float
    y: float
    width: float
    #: The colour of its pool.
    style: str


class Band(NamedTuple):
    """A node or a pool, with what ran there one below the other."""

    name: str
    y: float
    height: float
    bars: Sequence[RunBar]


class Arrow(NamedTuple):
    """From the end of what was evicted to the begin of what came for it."""

    x1: float
    y1: float
    x2: float
    y2: float
    title: str


class TimelinePicture(NamedTuple):
    """The picture, in its own units."""

    width: float
    height: float
    #: Where the time begins.
    left: float
    marks: Sequence[tuple[float, str]]
    bands: Sequence[Band]
    arrows: Sequence[Arrow]


async def timeline(reader: ScreenReads, query: QueryParams) -> Mapping[str, Any]:
    """What the template ``timeline.html`` shows. Raises InvalidRequestError."""
    word_in(reader, query, "span", SPANS)
    shown = period(query, await reader.now(), "24h")
    number = page_number(query, _MOST_PAGES)
    grouping = word_in(reader, query, "by", _GROUPINGS) or _GROUPINGS[0]
    chosen = {name: query.get(name, "") for name in _FILTERS}
    pool_name, owner = (
        parse_name(chosen[name], name) if chosen[name] else None for name in _FILTERS
    )
    state = word_in(reader, query, "state", STATES)
    history = QueryHistory(
        pool_name=pool_name,
        owner=owner,
        state=state or None,
        since=shown.since,
        until=shown.until,
        limit=_ATTEMPTS,
        at_once=True,
    )
    facts, pools, names = await together(
        reader.facts(history), reader.rows(ListPools()), reader.node_names()
    )
    ran = [row for row in facts["attempts"] if _begin(row) is not None]
    colors = colors_of(
        (str(pool["name"]) for pool in pools), (str(row["pool_name"]) for row in ran)
    )
    grouped = _grouped(ran, grouping, names)
    page = sorted(grouped)[(number - 1) * _BANDS : number * _BANDS]
    here = [*chosen.items(), ("state", state), ("by", query.get("by", "")), ("span", shown.span)]
    return {
        "period": shown,
        "spans": tuple(SPANS),
        **_drawn(ran, {name: grouped[name] for name in page}, shown, colors),
        "state": state,
        "states": STATES,
        # Of a state, those are listed as well that never ran.
        **({"ran": facts["attempts"]} if state else {}),
        "more": facts["more"],
        "limit": _ATTEMPTS,
        "chosen": chosen,
        "by": grouping,
        "groupings": _GROUPINGS,
        "pools": sorted(colors),
        "unknown": () if ran else await unknown_names(reader, "/timeline", chosen, list(colors)),
        "filtered": bool(pool_name or owner or state),
        "earlier": link("/timeline", *here, ("until", int(shown.since))),
        "later": ""
        if shown.is_current
        else link("/timeline", *here, ("until", int(shown.until + shown.length_s))),
        "total": len(grouped),
        "shown": len(page),
        "following": link("/timeline", *here, ("page", number + 1))
        if len(grouped) > number * _BANDS
        else "",
        "begun": link("/timeline", *here) if number > 1 else "",
    }


def _drawn(
    ran: Iterable[Row],
    bands: Mapping[str, Sequence[Row]],
    shown: Period,
    colors: Mapping[str, int],
) -> Mapping[str, Any]:
    """The picture of these bands, the attempts in it, and the colours of their pools."""
    cursors = {row["cursor"] for rows in bands.values() for row in rows}
    drawn = [row for row in ran if row["cursor"] in cursors]
    return {
        "picture": timeline_picture(bands, shown, colors),
        "ran": drawn,
        "colors": {name: colors[name] for name in sorted({str(row["pool_name"]) for row in drawn})},
    }


def _begin(row: Row) -> float | None:
    """When an attempt began to hold something; None: it never did."""
    begin: float | None = row["admitted_at"] if row["started_at"] is None else row["started_at"]
    return begin


def _grouped(
    rows: Sequence[Row], grouping: str, node_names: Mapping[str, str]
) -> dict[str, list[Row]]:
    """The attempts by the node on which they ran, or by their pool, the first to begin first."""
    grouped: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda one: (_begin(one), one["cursor"])):
        node_ids = [str(one) for one in row["node_ids"]]
        where = (
            [str(row["pool_name"])]
            if grouping == "pool"
            else dict.fromkeys(node_names.get(one, one[:8]) for one in node_ids)
        )
        for name in where:
            grouped.setdefault(name, []).append(row)
    return grouped


def timeline_picture(
    grouped: Mapping[str, Sequence[Row]], shown: Period, colors: Mapping[str, int]
) -> TimelinePicture:
    """The picture of attempts by band: those that overlap in time are drawn one below the other."""
    bands, y = [], float(_AXIS)
    for name, rows in grouped.items():
        band = _band(name, rows, y, shown, colors)
        bands.append(band)
        y += band.height + _GAP
    marks = [(_x(at, shown), text) for at, text in shown.marks()]
    return TimelinePicture(_NAMES + _WIDTH, y, _NAMES, marks, bands, _arrows(bands))


def _x(at: float, shown: Period) -> float:
    part = (min(max(at, shown.since), shown.until) - shown.since) / max(shown.length_s, 1.0)
    return round(_NAMES + _WIDTH * part, 1)


def _band(
    name: str, rows: Sequence[Row], y: float, shown: Period, colors: Mapping[str, int]
) -> Band:
    ends: list[float] = []
    bars = []
    for row in rows:
        x = min(_x(_begin(row) or shown.since, shown), _NAMES + _WIDTH - _LEAST)
        end = _x(shown.until if row["ended_at"] is None else row["ended_at"], shown)
        width = round(max(end - x, _LEAST), 1)
        lane = next((number for number, taken in enumerate(ends) if taken <= x), len(ends))
        ends[lane : lane + 1] = [x + width]
        style = f"color-{colors.get(str(row['pool_name']), 0)}"
        bars.append(RunBar(row, x, y + lane * _LANE, width, style))
    return Band(name, y, max(1, len(ends)) * _LANE, bars)


def _arrows(bands: Sequence[Band]) -> list[Arrow]:
    """From each bar that ended by an eviction to the next begin of the task for which it was."""
    by_task: dict[str, list[RunBar]] = {}
    for band in bands:
        for bar in band.bars:
            by_task.setdefault(str(bar.row["task_id"]), []).append(bar)
    arrows = []
    for victims in by_task.values():
        for victim in victims:
            evictor = _evictor_bar(victim.row, by_task.get(str(victim.row["by_task"]), ()))
            if evictor is not None:
                title = f"{victim.row['task_id']} → {evictor.row['task_id']}"
                y1, y2 = victim.y + _LANE / 2, evictor.y + _LANE / 2
                arrows.append(Arrow(victim.x + victim.width, y1, evictor.x, y2, title))
    return arrows


def _evictor_bar(victim: Row, bars: Sequence[RunBar]) -> RunBar | None:
    """The bar of the attempt for which a victim was evicted: the first that began afterwards."""
    if not victim["by_task"] or victim["evicted_at"] is None:
        return None
    later = [bar for bar in bars if (_begin(bar.row) or 0.0) >= victim["evicted_at"]]
    return min(later, key=lambda bar: _begin(bar.row) or 0.0, default=None)
