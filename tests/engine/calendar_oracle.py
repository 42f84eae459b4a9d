"""What docs/calendar.md says, by brute force: an oracle that knows every opening of every window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from schedulemesh.domain.windows import MaintenanceWindow

DAY = 86_400.0
_PERIODS = {"": None, "daily": DAY, "weekly": 7 * DAY}
#: A window comes again within this time at the latest.
_AHEAD_S = 400 * DAY


class Whose(NamedTuple):
    """What decides for whom a window is: the pool, the owner and the labels of a task."""

    pool_name: str = "p"
    owner: str = ""
    labels: Mapping[str, str] = {}


NOBODY = Whose()


def is_for(window: MaintenanceWindow, whose: Whose) -> bool:
    """Whether a window reserves something for a task."""
    if whose.pool_name in window.pools or whose.owner in window.owners:
        return True
    return bool(window.labels) and all(
        whose.labels.get(key) == value for key, value in window.labels.items()
    )


def is_reservation(window: MaintenanceWindow) -> bool:
    """Whether a window is for somebody; else it is for maintenance."""
    return bool(window.pools or window.owners or window.labels)


def openings(window: MaintenanceWindow, now: float) -> Iterator[tuple[float, float]]:
    """The times at which a window is open that are not over, the present one or the next one first."""
    start, period = window.start, _PERIODS[window.repeat]
    if period is not None and now > start:
        start += (now - start) // period * period - period
        start = max(start, window.start)
    while start <= now + _AHEAD_S:
        if now < start + window.duration_s:
            yield start, start + window.duration_s
        if period is None:
            return
        start += period


def has_node(window: MaintenanceWindow, node_id: str, labels: Mapping[str, str]) -> bool:
    """Whether a node is one of a window."""
    if window.node_ids:
        return node_id in window.node_ids
    return all(labels.get(key) == value for key, value in window.node_labels)


def reaches_into(window: MaintenanceWindow, at: float, over_at: float | None) -> bool:
    """Whether a task that starts then and is over then, its end included, reaches into a window; None: nobody
    knows when it is over.
    """
    opening = next(openings(window, at), None)
    if opening is None:
        return False
    start, _ = opening
    period = _PERIODS[window.repeat]
    longest = None if period is None else period - window.duration_s
    if over_at is None or (longest is not None and over_at - at > longest):
        return at >= start - window.notice_s
    return over_at > start


class Calendar:
    """The windows of a scheduler."""

    def __init__(self) -> None:
        self.windows: dict[str, MaintenanceWindow] = {}

    def of_node(
        self, labels: Mapping[str, str], node_id: str, whose: Whose = NOBODY
    ) -> list[MaintenanceWindow]:
        """The windows of a node that are not for such a task."""
        return [
            window
            for window in self.windows.values()
            if has_node(window, node_id, labels) and not is_for(window, whose)
        ]

    def is_open(
        self,
        labels: Mapping[str, str],
        node_id: str,
        at: float,
        whose: Whose = NOBODY,
        *,
        maintenance: bool = False,
    ) -> bool:
        """Whether a window keeps such a task from a node at a time; ``maintenance``: one of maintenance."""
        windows = self.of_node(labels, node_id, whose)
        kept = [w for w in windows if not (maintenance and is_reservation(w))]
        return any(start <= at for start, _ in _next_openings(kept, at))

    def may_start(
        self,
        labels: Mapping[str, str],
        node_id: str,
        at: float,
        over_at: float | None,
        whose: Whose = NOBODY,
    ) -> bool:
        """Whether a task that is over then, its end included, may start on a node; None: nobody knows."""
        windows = self.of_node(labels, node_id, whose)
        return not any(reaches_into(window, at, over_at) for window in windows)

    def leaves_at(
        self,
        labels: Mapping[str, str],
        node_id: str,
        at: float,
        leaving_s: float,
        whose: Whose = NOBODY,
    ) -> float | None:
        """When what runs on a node is evicted for the next opening; None: never."""
        starts = [start for start, _ in _next_openings(self.of_node(labels, node_id, whose), at)]
        return min(starts) - leaving_s if starts else None

    def forget_past(self, now: float) -> None:
        """Leave out windows that are over and do not come again."""
        self.windows = {
            name: window
            for name, window in self.windows.items()
            if next(openings(window, now), None) is not None
        }


def _next_openings(
    windows: Iterable[MaintenanceWindow], at: float
) -> Iterator[tuple[float, float]]:
    for window in windows:
        opening = next(openings(window, at), None)
        if opening is not None:
            yield opening
