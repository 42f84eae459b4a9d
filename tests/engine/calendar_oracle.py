"""What docs/calendar.md says, by brute force: an oracle that knows every opening of every window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
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


def satisfies(labels: Mapping[str, str], conditions: Iterable[tuple[str, str]]) -> bool:
    """Whether labels meet conditions, each a value or ``in(a, b)``."""
    return all(
        labels.get(key) in value[3:-1].split(", ")
        if value.startswith("in(")
        else labels.get(key) == value
        for key, value in conditions
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
        #: The nodes of windows of amounts, and the beginning of the opening for which they were chosen.
        self.chosen: dict[str, tuple[float, frozenset[str]]] = {}

    def has_node(self, window: MaintenanceWindow, node_id: str, labels: Mapping[str, str]) -> bool:
        """Whether a node is one of a window."""
        if window.resources:
            _, chosen = self.chosen.get(window.name, (0.0, frozenset()))
            return node_id in chosen
        if window.node_ids:
            return node_id in window.node_ids
        return satisfies(labels, window.node_labels)

    def of_node(
        self, labels: Mapping[str, str], node_id: str, whose: Whose = NOBODY
    ) -> list[MaintenanceWindow]:
        """The windows of a node that are not for such a task."""
        return [
            window
            for window in self.windows.values()
            if self.has_node(window, node_id, labels) and not is_for(window, whose)
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
        self.chosen = {n: chosen for n, chosen in self.chosen.items() if n in self.windows}


def _next_openings(
    windows: Iterable[MaintenanceWindow], at: float
) -> Iterator[tuple[float, float]]:
    for window in windows:
        opening = next(openings(window, at), None)
        if opening is not None:
            yield opening


class Candidate(NamedTuple):
    """A node from which a window of an amount may choose."""

    node_id: str
    #: How much it has of the kind that is reserved.
    size: float
    #: How many agents there would have to leave.
    leaving: int


def is_free_for(
    calendar: Calendar,
    window: MaintenanceWindow,
    opening: tuple[float, float],
    node_id: str,
    labels: Mapping[str, str],
) -> bool:
    """Whether a node has the labels of a window of an amount, and no other window is open there meanwhile."""
    if not satisfies(labels, window.node_labels):
        return False
    for other in calendar.windows.values():
        if other.name != window.name and calendar.has_node(other, node_id, labels):
            at = next(openings(other, opening[0]), None)
            if at is not None and at[0] < opening[1]:
                return False
    return True


def best_choices(candidates: Iterable[Candidate], lacking: float) -> set[frozenset[str]]:
    """The sets of nodes that the page lets a window choose: of all sets that have what is lacking, as few
    nodes as possible, the largest first and the smallest that is enough as the last, with the fewest agents
    that have to leave. All candidates, where these are not enough.
    """
    nodes = list(candidates)
    if sum(node.size for node in nodes) < lacking:
        return {frozenset(node.node_id for node in nodes)}
    for count in range(len(nodes) + 1):
        enough = [
            each
            for each in combinations(nodes, count)
            if sum(node.size for node in each) >= lacking
        ]
        if enough:
            best = min(map(_rank, enough))
            return {frozenset(n.node_id for n in each) for each in enough if _rank(each) == best}
    return {frozenset()}


def _rank(nodes: tuple[Candidate, ...]) -> tuple[object, ...]:
    sizes = sorted((node.size for node in nodes), reverse=True)
    first = tuple(-size for size in sizes[:-1])
    return first, sizes[-1:], sum(node.leaving for node in nodes)
