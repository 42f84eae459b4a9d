"""Distributes rows of different cost so that every worker has about the same load."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from schedulemesh.errors import InvalidRequestError


def balance(
    costs: Sequence[float], groups: int, *, equal_counts: bool = False
) -> tuple[tuple[int, ...], ...]:
    """Row numbers for each of ``groups`` workers, ascending within a worker; for ``Assign``.

    ``costs`` are the costs of the rows: their tokens, or tokens squared if attention dominates. Rows are
    assigned in order of descending cost, each to the worker with the lowest load so far (ties: the lower
    number): no worker gets more than 4/3 of the best possible maximum (Graham, 1969, "Bounds on
    multiprocessing timing anomalies"). With ``equal_counts`` the numbers of rows differ by at most one,
    without that bound. With 0 rows the groups are empty.
    """
    if groups < 1 or any(not 0 <= cost < float("inf") for cost in costs):
        raise InvalidRequestError(
            f"groups={groups} with costs {_shown(costs)}; allowed are 1 group or more and finite costs from 0"
        )
    found: list[list[int]] = [[] for _ in range(groups)]
    room = _room(len(costs), groups) if equal_counts else [len(costs)] * groups
    loads = [(0.0, group) for group in range(groups) if room[group]]
    for row in sorted(range(len(costs)), key=lambda row: (-costs[row], row)):
        load, group = heapq.heappop(loads)
        found[group].append(row)
        if len(found[group]) < room[group]:
            heapq.heappush(loads, (load + costs[row], group))
    return tuple(tuple(sorted(rows)) for rows in found)


def _room(rows: int, groups: int) -> list[int]:
    share, rest = divmod(rows, groups)
    return [share + (group < rest) for group in range(groups)]


def _shown(costs: Sequence[float]) -> str:
    return str(list(costs[:8])) + (" …" if len(costs) > 8 else "")
