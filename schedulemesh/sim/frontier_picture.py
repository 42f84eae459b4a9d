"""Draws the frontier of policies: mean delay against the GPU time that evictions cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schedulemesh.sim.compare import Comparison, Figure
from schedulemesh.sim.picture import BESIDE, add_legend, check, new_figure, save

_SIZE = (9.0, 5.4)  # inches
#: Below this part of all GPU time, in per cent, the axis is linear.
_LINEAR_PERCENT = 0.001
_MARKERS = "osD^vP*X"


def draw_frontier(comparisons: Sequence[Comparison], path: str | Path) -> None:
    """Write a picture with a line for each policy, and a point on it for each of its saving costs. Bars are
    the deviation over copies of the trace. Raises InvalidRequestError as ``picture.check`` does.
    """
    check(path)
    figure = new_figure(_SIZE)
    panel = figure.subplots()
    costs = list(dict.fromkeys(_cost(one) for one in comparisons))
    policies, drawn = by_policy(comparisons), []
    for of_policy in policies.values():
        lost = [100.0 * gpu_time_lost(one) for one in of_policy]
        delays = [one.figure("delay_s.mean") for one in of_policy]
        (line,) = panel.plot(lost, [delay.mean for delay in delays], linewidth=1.0)
        drawn.append(line)
        for percent, delay, one in zip(lost, delays, of_policy, strict=True):
            marker = _MARKERS[costs.index(_cost(one)) % len(_MARKERS)]
            _point(panel, percent, delay, marker, line.get_color())
    for number in range(len(costs)):
        marker = _MARKERS[number % len(_MARKERS)]
        drawn += panel.plot([], [], marker=marker, linestyle="", color="grey")
    _label(panel)
    named = [f"save {save_s:g} s, restore {restore_s:g} s" for save_s, restore_s in costs]
    add_legend(panel, [*policies, *named], drawn, **BESIDE)
    if all(one.figure("delay_s.mean").mean > 0 for one in comparisons):
        _use_log_scale(panel)
    save(figure, Path(path))


def by_policy(comparisons: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """The comparisons of each policy, in their order."""
    grouped: dict[str, list[Comparison]] = {}
    for one in comparisons:
        grouped.setdefault(one.policy, []).append(one)
    return grouped


def gpu_time_lost(comparison: Comparison) -> float:
    """What saving, restoring and repeated work cost, as a part of all work."""
    return comparison.figure("overhead").mean + comparison.figure("lost_work").mean


def _cost(comparison: Comparison) -> tuple[float, float]:
    return comparison.timing.save_s, comparison.timing.restore_s


def _point(panel: Any, percent: float, delay: Figure, marker: str, colour: Any) -> None:
    panel.errorbar(
        [percent],
        [delay.mean],
        yerr=[delay.deviation],
        marker=marker,
        color=colour,
        capsize=2,
        linewidth=0.8,
    )


def _label(panel: Any) -> None:
    panel.set_title("Mean delay and what evictions cost")
    panel.set_xlabel("GPU time spent on saving, restoring and repeated work (% of all work)")
    panel.set_ylabel("mean delay (s)")
    panel.set_xscale("symlog", linthresh=_LINEAR_PERCENT)
    panel.set_xlim(left=0.0)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.grid(visible=True, which="both", alpha=0.3)


def _use_log_scale(panel: Any) -> None:
    panel.set_yscale("log", subs=(2.0, 5.0))
    panel.yaxis.set_major_formatter("{x:,g}")
    panel.yaxis.set_minor_formatter("{x:,g}")
