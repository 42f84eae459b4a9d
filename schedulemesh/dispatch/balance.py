"""Distributes rows of different cost so that every worker has about the same load."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from schedulemesh.dispatch.arrays import is_array
from schedulemesh.errors import InvalidRequestError, shown


def balance(
    costs: Sequence[float], groups: int, *, equal_counts: bool = False
) -> tuple[tuple[int, ...], ...]:
    """Row numbers for each of ``groups`` workers, ascending within a worker; for ``Assign``.

    ``costs`` are the costs of the rows: their tokens, or tokens squared if attention dominates; numbers, an
    array or a tensor. Rows are
    assigned in order of descending cost, each to the worker with the lowest load so far (ties: the lower
    number): no worker gets more than 4/3 of the best possible maximum (Graham, 1969, "Bounds on
    multiprocessing timing anomalies"). With ``equal_counts`` the numbers of rows differ by at most one,
    without that bound. With 0 rows the groups are empty.
    """
    exact = _floats(costs)
    if groups < 1 or exact is None or any(not 0 <= cost < float("inf") for cost in exact):
        raise InvalidRequestError(
            f"groups={groups} with costs {shown(costs)}; allowed are 1 group or more and finite costs from 0"
        )
    rows_by_group: list[list[int]] = [[] for _ in range(groups)]
    room = _room(len(exact), groups) if equal_counts else [len(exact)] * groups
    loads = [(0.0, group) for group in range(groups) if room[group]]
    for row in sorted(range(len(exact)), key=lambda row: (-exact[row], row)):
        load, group = heapq.heappop(loads)
        rows_by_group[group].append(row)
        if len(rows_by_group[group]) < room[group]:
            heapq.heappush(loads, (load + exact[row], group))
    return tuple(tuple(sorted(rows)) for rows in rows_by_group)


def _floats(costs: Sequence[float]) -> list[float] | None:
    """The costs as Python's numbers, because small dtypes overflow in sums; None: they are no numbers."""
    numbers = costs.tolist() if is_array(costs) else costs  # type: ignore[attr-defined]  # arrays have it
    try:
        return [float(cost) for cost in numbers]
    except (TypeError, ValueError, OverflowError):
        return None


def _room(rows: int, groups: int) -> list[int]:
    share, rest = divmod(rows, groups)
    return [share + (group < rest) for group in range(groups)]
