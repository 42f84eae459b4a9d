"""Draws a comparison: jobs that wait over time, how delays are distributed, and what each pool held.

The curves are computed here without matplotlib, which only ``draw`` loads; it belongs to the extra
``simulate``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim.compare import Comparison
from schedulemesh.sim.timeline import Timeline

#: How the name of a picture's file may end.
FORMATS = (".png", ".svg")
#: Intervals that a timeline is divided into.
INTERVALS = 240
#: The most pools that have a colour of their own; the smaller ones are shown as one.
MOST_POOLS = 8
_MOST_POINTS = 500
#: Marks on the axis of delays, in seconds.
_MARKS = {
    0: "0",
    1: "1 s",
    10: "10 s",
    60: "1 min",
    600: "10 min",
    3600: "1 h",
    86_400: "1 d",
    864_000: "10 d",
    8_640_000: "100 d",
}
_DAY_S = 86400.0
_PANEL = (6.4, 3.6)  # inches
#: The place of a legend to the right of a panel.
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "frameon": False}


def check(path: str | Path) -> None:
    """Raise InvalidRequestError where a picture cannot be written to this file: its name, its folder, or
    matplotlib that is not installed.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InvalidRequestError(
            f"the picture is {str(path)!r}; its name must end in {' or '.join(FORMATS)}"
        )
    if not path.parent.is_dir():
        raise InvalidRequestError(f"the picture is {str(path)!r}; there is no such folder")
    _figure_class()


def draw(comparisons: Sequence[Comparison], path: str | Path) -> None:
    """Write a picture of policies, each on the trace itself. Raises InvalidRequestError as ``check`` does."""
    check(path)
    rows = 1 + -(-len(comparisons) // 2)
    figure = new_figure((2 * _PANEL[0], rows * _PANEL[1]))
    panels = figure.subplots(rows, 2, squeeze=False)
    unit, name = _time_unit([one.timeline for one in comparisons])
    _draw_waiting(panels[0][0], comparisons, unit, name)
    _draw_delays(panels[0][1], comparisons)
    below = [panel for row in panels[1:] for panel in row]
    colours = _colours(comparisons)
    for panel, one in zip(below, comparisons, strict=False):
        _draw_held(panel, one, colours, unit, name)
    for panel in below[len(comparisons) :]:
        panel.set_visible(False)
    save(figure, Path(path))


def new_figure(inches: tuple[float, float]) -> Any:
    """An empty figure of matplotlib, of this width and height."""
    return _figure_class()(figsize=inches, layout="constrained")


def save(figure: Any, path: Path) -> None:
    """Write a figure; the same figure gives the same file, without the date and random ids."""
    from matplotlib import rc_context

    metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
    try:
        with rc_context({"svg.hashsalt": "schedulemesh"}):
            figure.savefig(path, dpi=110, metadata=metadata)
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be written: {error}") from None


def add_legend(panel: Any, names: Sequence[str], drawn: Sequence[Any], **place: Any) -> None:
    """Add a legend with the names of what is drawn in a panel. ``place``: as matplotlib takes it, such as
    ``BESIDE``.

    Names are shown as they are: matplotlib takes what is between two ``$`` for a formula, and leaves names
    that begin with ``_`` out of a legend.
    """
    legend = panel.legend(drawn, [str(number) for number in range(len(names))], **place)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


# curves


def waiting_curve(timeline: Timeline) -> tuple[list[float], list[float]]:
    """Times in seconds since the first submission, and the mean number of jobs that wait in the interval that
    begins then.
    """
    interval_s = timeline.divided(INTERVALS)
    intervals = [one for one in timeline.over_time(interval_s) if not one.pool]
    return [one.time_s - timeline.begin_s for one in intervals], [one.waiting for one in intervals]


def delay_curve(delays_s: Sequence[float]) -> tuple[list[float], list[float]]:
    """Delays in seconds, and the percentage of jobs whose delay is at most that. ``delays_s``: sorted."""
    count = len(delays_s)
    step = max(1, count // _MOST_POINTS)
    chosen = sorted({max(0.0, delay) for delay in (*delays_s[::step], *delays_s[-1:])})
    parts = [100.0 * bisect_right(delays_s, delay) / count for delay in chosen]
    return chosen, parts


def held_curves(
    timeline: Timeline, pools: Sequence[str]
) -> tuple[list[float], dict[str, list[float]]]:
    """Times in seconds since the first submission, and what each of these pools held in the interval that
    begins then, as a percentage of the cluster; all other pools are one, named by their number.
    """
    capacity = timeline.largest() or 1.0
    by_pool: dict[str, list[float]] = {}
    times: list[float] = []
    for one in timeline.over_time(timeline.divided(INTERVALS)):
        if one.pool:
            by_pool.setdefault(one.pool, []).append(100.0 * one.held_gpus / capacity)
        else:
            times.append(one.time_s - timeline.begin_s)
    curves = {name: by_pool.pop(name) for name in pools if name in by_pool}
    if by_pool:
        sums = [sum(values) for values in zip(*by_pool.values(), strict=True)]
        curves[f"{len(by_pool)} other pools"] = sums
    return times, curves


def largest_pools(timelines: Sequence[Timeline]) -> list[str]:
    """The pools with the largest quotas, which have colours of their own; the largest first."""
    quotas: dict[str, float] = {}
    for timeline in timelines:
        for name, pool in timeline.pools.items():
            quotas[name] = max(pool.quota_gpus, quotas.get(name, 0.0))
    ordered = sorted(quotas, key=lambda name: (-quotas[name], name))
    return ordered if len(ordered) <= MOST_POOLS else ordered[: MOST_POOLS - 1]


# panels


def _draw_waiting(panel: Any, comparisons: Sequence[Comparison], unit: float, name: str) -> None:
    drawn = []
    for one in comparisons:
        times, waiting = waiting_curve(one.timeline)
        drawn += panel.step(_in(times, unit), waiting, where="post", linewidth=1.2)
    panel.set_title("Jobs waiting")
    panel.set_ylabel("jobs (mean of each interval)")
    panel.set_xlabel(f"time since the first submission ({name})")
    panel.set_ylim(bottom=0)
    panel.margins(x=0)
    add_legend(panel, [one.policy for one in comparisons], drawn)


def _draw_delays(panel: Any, comparisons: Sequence[Comparison]) -> None:
    curves = [delay_curve(one.timeline.delays_s) for one in comparisons]
    end = 1.2 * max([1.0, *(delays[-1] for delays, _ in curves if delays)])
    lowest = min([100.0, *(parts[0] for _, parts in curves if parts)])
    drawn = []
    for delays, parts in curves:
        along, up = [0.0, *delays, end], [0.0, *parts, *(parts[-1:] or [0.0])]
        drawn += panel.step(along, up, where="post", linewidth=1.2)
    panel.set_title("Delay: time from submission to end, less the duration")
    panel.set_xlabel("delay")
    panel.set_ylabel("jobs with at most this delay (%)")
    panel.set_xscale("symlog", linthresh=1.0)
    panel.set_xlim(0, end)
    marks = [mark for mark in _MARKS if mark <= end]
    panel.set_xticks(marks, [_MARKS[mark] for mark in marks])
    panel.set_xticks([], minor=True)
    panel.set_ylim(10.0 * max(0.0, (lowest - 1.0) // 10.0), 101)
    panel.grid(visible=True, alpha=0.3)
    add_legend(panel, [one.policy for one in comparisons], drawn)


def _draw_held(
    panel: Any, comparison: Comparison, colours: Mapping[str, Any], unit: float, name: str
) -> None:
    times, curves = held_curves(comparison.timeline, list(colours))
    drawn = panel.stackplot(
        _in(times, unit),
        *curves.values(),
        colors=[colours.get(pool, "lightgrey") for pool in curves],
        step="post",
    )
    panel.set_title(f"Utilisation by pool: {comparison.policy}", parse_math=False)
    panel.set_xlabel(f"time since the first submission ({name})")
    panel.set_ylabel("held (% of the cluster)")
    panel.set_ylim(0, 102)
    panel.margins(x=0)
    add_legend(panel, list(curves), drawn, **BESIDE)


def _colours(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """A colour for each of the largest pools, the same in every panel, and none that a policy has."""
    from matplotlib import colormaps

    pools = largest_pools([one.timeline for one in comparisons])
    return dict(zip(pools, colormaps["Set2"].colors, strict=False))


def _time_unit(timelines: Sequence[Timeline]) -> tuple[float, str]:
    """The seconds of the unit of the axes of time, and its name."""
    span = max((one.end_s - one.begin_s for one in timelines), default=0.0)
    if span > 3 * _DAY_S:
        return _DAY_S, "days"
    return (3600.0, "hours") if span > 3 * 3600.0 else (60.0, "minutes")


def _in(times_s: Sequence[float], unit: float) -> list[float]:
    return [time / unit for time in times_s]


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidRequestError(
            "a picture needs matplotlib: pip install 'schedulemesh-core[simulate]'"
        ) from error
    return Figure
